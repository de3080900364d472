"""Records of other versions: counted each, told once a minute."""

from __future__ import annotations

from typing import get_args

from headrace_contracts.limits import WIRE_VERSION
from headrace_transport.damaged import DAMAGED_KINDS, Damaged, DamagedKind
from headrace_transport.foreign import KINDS, Foreign
from structlog.testing import capture_logs
from support.clock import FakeClock


def test_our_own_version_is_neither_counted_nor_told() -> None:
    foreign = Foreign(Damaged())
    with capture_logs() as logs:
        assert foreign.is_ours("frame", WIRE_VERSION)
    assert foreign.counts == dict.fromkeys(KINDS, 0)
    assert logs == []


def test_another_version_is_counted_each_time_and_told_once_a_minute_by_kind() -> None:
    clock = FakeClock()
    foreign = Foreign(Damaged(), clock.monotonic)
    with capture_logs() as logs:
        for _ in range(3):
            assert not foreign.is_ours("frame", 2)
        assert not foreign.is_ours("log", 3)
        clock.advance(61)
        assert not foreign.is_ours("frame", 2)
    assert (foreign.counts["frame"], foreign.counts["log"]) == (4, 1)
    told = [(each["kind"], each["version"], each["records"]) for each in logs]
    assert told == [("frame", 2, 1), ("log", 3, 1), ("frame", 2, 3)]


def test_what_cannot_be_decoded_is_damaged_and_of_no_other_version() -> None:
    clock = FakeClock()
    damaged = Damaged(clock.monotonic)
    foreign = Foreign(damaged, clock.monotonic)
    with capture_logs() as logs:
        for kind in KINDS:
            assert not foreign.is_ours(kind, 0)
            assert not foreign.is_ours(kind, 0)
    assert foreign.counts == dict.fromkeys(KINDS, 0)
    assert damaged.counts == dict.fromkeys(DAMAGED_KINDS, 0) | dict.fromkeys(KINDS, 2)
    told = [(each["event"], each["kind"], each["records"]) for each in logs]
    assert told == [("wire.damaged_record", kind, 1) for kind in KINDS]
    clock.advance(61)
    with capture_logs() as logs:
        assert not foreign.is_ours("frame", 0)
    assert [each["records"] for each in logs] == [2]


def test_every_kind_of_damage_is_counted_from_the_start() -> None:
    kinds = {each for part in get_args(DamagedKind) for each in get_args(part) or (part,)}
    assert set(DAMAGED_KINDS) == kinds
