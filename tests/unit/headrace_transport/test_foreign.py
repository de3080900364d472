"""Records of other versions: counted each, told once a minute."""

from __future__ import annotations

from headrace_contracts.limits import WIRE_VERSION
from headrace_transport.foreign import KINDS, Foreign
from structlog.testing import capture_logs
from support.clock import FakeClock


def test_our_own_version_is_neither_counted_nor_told() -> None:
    foreign = Foreign()
    with capture_logs() as logs:
        assert foreign.is_ours("frame", WIRE_VERSION)
    assert foreign.counts == dict.fromkeys(KINDS, 0)
    assert logs == []


def test_another_version_is_counted_each_time_and_told_once_a_minute_by_kind() -> None:
    clock = FakeClock()
    foreign = Foreign(clock.monotonic)
    with capture_logs() as logs:
        for _ in range(3):
            assert not foreign.is_ours("frame", 2)
        assert not foreign.is_ours("log", 3)
        clock.advance(61)
        assert not foreign.is_ours("frame", 2)
    assert (foreign.counts["frame"], foreign.counts["log"]) == (4, 1)
    told = [(each["kind"], each["version"], each["records"]) for each in logs]
    assert told == [("frame", 2, 1), ("log", 3, 1), ("frame", 2, 3)]
