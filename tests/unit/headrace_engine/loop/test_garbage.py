"""Garbage: collected when nobody waits, and the interpreter is left as it was found."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from headrace_engine.loop.garbage import QUIET_S, Garbage
from headrace_engine.state.inbound import Inbound
from support.engine import Rig


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


class Told(Garbage):
    """Says what it is told to, and notes how often it collected."""

    presses = False

    def owed(self) -> bool:
        return True

    def pressing(self) -> bool:
        return self.presses

    def collect(self) -> None:
        self.collections += 1


def test_the_collector_is_taken_over_and_given_back() -> None:
    garbage = Garbage()
    garbage.start()
    assert not gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert not garbage.owed()
    kept = [[i] for i in range(gc.get_threshold()[0] + 10)]
    assert garbage.owed()
    assert not garbage.pressing()
    assert Garbage(max_young=len(kept) // 2).pressing()
    garbage.collect()
    assert not garbage.owed()
    assert garbage.collections == 1
    garbage.stop()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


@pytest.mark.rule("loop.no-collection-in-a-pass")
def test_it_collects_in_a_quiet_moment_and_not_while_there_is_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    garbage = rig.loop.garbage = Told()
    waits: list[float | None] = []
    pop = rig.door.pop

    def quiet(budget: int, *, block: bool, timeout_s: float | None = None) -> Inbound:
        if block:
            waits.append(timeout_s)
            if timeout_s is None:
                rig.push([1, 2, 3], 6)
        return pop(budget, block=False)

    monkeypatch.setattr(rig.door, "pop", quiet)
    rig.loop.step()
    assert waits == [QUIET_S, None]
    assert garbage.collections == 1
    rig.run()
    assert garbage.collections == 1


def test_a_request_that_comes_soon_does_not_wait_for_a_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    garbage = rig.loop.garbage = Told()
    pop = rig.door.pop

    def soon(budget: int, *, block: bool, timeout_s: float | None = None) -> Inbound:
        assert timeout_s == QUIET_S or not block, "it went to sleep with a request at the door"
        if block:
            rig.push([1, 2, 3], 2)
        return pop(budget, block=False)

    monkeypatch.setattr(rig.door, "pop", soon)
    rig.loop.step()
    assert garbage.collections == 0
    assert rig.scheduler.residents.sequences


def test_what_cannot_wait_is_collected_between_passes() -> None:
    rig = Rig()
    garbage = rig.loop.garbage = Told()
    rig.push([1, 2, 3], 6)
    rig.step()
    assert garbage.collections == 0
    garbage.presses = True
    rig.step()
    assert garbage.collections == 1


def test_run_gives_the_collector_back() -> None:
    rig = Rig()
    rig.loop.garbage = Garbage()
    rig.push([1, 2, 3], 3)
    rig.door.drain()
    rig.loop.run()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
