"""Records that cannot be read: left out, counted each time, told once."""

from __future__ import annotations

import pytest
from headrace_transport import damaged as module
from headrace_transport.damaged import DAMAGED_KINDS, Damaged
from headrace_transport.errors import CommandFailed, TransportUnavailable
from structlog.testing import capture_logs


def meet(damaged: Damaged, name: str) -> None:
    with damaged.skipped("key", name):
        raise CommandFailed(f"{name} cannot be read")


def test_what_cannot_be_read_is_counted_each_time_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TOLD_MOST", 2)
    damaged = Damaged()
    with capture_logs() as said:
        for name in ("a", "a", "b", "c"):
            meet(damaged, name)
    assert damaged.counts == dict.fromkeys(DAMAGED_KINDS, 0) | {"key": 4}
    assert [each["name"] for each in said] == ["a", "b"]
    assert said[0]["reason"] == "a cannot be read"


def test_a_server_that_is_away_is_no_damage() -> None:
    damaged = Damaged()
    with pytest.raises(TransportUnavailable), damaged.skipped("card", "m"):
        raise TransportUnavailable("away")
    assert damaged.counts["card"] == 0
