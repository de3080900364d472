"""The real clock and the tests' clock keep the same promises."""

from __future__ import annotations

import time

import pytest
from headrace_kit.clock import Clock, SystemClock
from support.clock import FakeClock


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_time_does_not_go_back_and_is_in_the_promised_units(clock: Clock) -> None:
    first, second = clock.monotonic(), clock.monotonic()
    assert first <= second
    assert isinstance(first, float)
    assert isinstance(clock.wall_ms(), int)
    assert clock.wall_ms() > 1_700_000_000_000


def test_system_clock_agrees_with_the_machine() -> None:
    before = time.time()
    found = SystemClock().wall_ms() / 1000
    assert before - 0.001 <= found <= time.time() + 0.001


def test_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock(monotonic_s=1.0, wall_ms=5000)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.wall_ms()) == (2.5, 6500)
    clock.jump(-3)
    assert (clock.monotonic(), clock.wall_ms()) == (2.5, 3500)
    with pytest.raises(AssertionError):
        clock.advance(-1)
