"""Blame: when work on one sequence raises, its request is told from those that only waited beside it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import headrace_engine
import numpy as np
import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.cache.block import LogicalBlock, SequenceBlocks
from headrace_engine.errors import EngineFailed
from headrace_engine.loop.blame import NAMES, at_work
from headrace_engine.loop.outputs import OutputBuilder
from headrace_engine.scheduler.commit import Chunk
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_engine.state.sequence import Sequence
from structlog.testing import capture_logs
from support.engine import Rig, TokenExactExecutor

POISON = 2
"""Number of the sequence that breaks whoever works on it."""


def about(value: object) -> int | None:
    """Number of the sequence that an argument belongs to."""
    if isinstance(value, Sequence | SequenceBlocks):
        return value.number
    if isinstance(value, Chunk):
        return value.sequence.number
    if isinstance(value, LogicalBlock):
        return value.maker
    if isinstance(value, list | tuple):
        return about(value[0]) if value else None  # pyright: ignore[reportUnknownArgumentType]
    return None


def break_at(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """What stands at ``place`` raises for the poisonous sequence, and for no other."""
    module, _, name = place.rpartition(".")
    original: Callable[..., Any] = pytest.importorskip(module).__dict__[name]

    def broken(*args: Any, **fields: Any) -> Any:
        if POISON in map(about, args):
            raise ZeroDivisionError("poison")
        return original(*args, **fields)

    monkeypatch.setattr(place, broken)


def run_until_it_fails(rig: Rig) -> None:
    rig.door.drain()  # one that does not fail ends
    with pytest.raises(EngineFailed, match="poison"):
        rig.loop.run()
    for outputs in rig.door.take_outputs(0) or []:
        rig.hear(outputs)


@pytest.mark.rule("loop.failed-batch-ends-all")
@pytest.mark.parametrize(
    "place",
    [
        "headrace_engine.scheduler.scheduler.admit_prompt",
        "headrace_engine.scheduler.admit.index_missing_blocks",
        "headrace_engine.scheduler.scheduler.plan_resume",
        "headrace_engine.scheduler.scheduler.resume_ways",
        "headrace_engine.scheduler.commit.mark_produced",
        "headrace_engine.loop.setup._slot",
    ],
)
def test_only_who_was_worked_on_is_blamed_besides_those_that_ran(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    rig = Rig(max_batch=4)
    ran = rig.push([1, 2, 3], 20)
    rig.step()
    assert rig.choice(ran).started is not None
    break_at(monkeypatch, place)
    poison = rig.push([4] * 9, 5)
    beside = rig.push([5] * 9, 5)
    run_until_it_fails(rig)
    assert rig.choice(poison).started is not None, "the next engine would be broken too"
    assert rig.choice(beside).started is None
    for handle, spared in ((ran, True), (poison, False), (beside, True)):
        end = rig.choice(handle).end
        assert end is not None
        assert (end.code, end.spared) == (Code.ENGINE_FAILED, spared)


@pytest.mark.rule("loop.failed-batch-ends-all")
def test_of_a_batch_that_failed_those_that_it_held_are_blamed() -> None:
    executor = TokenExactExecutor()
    executor.broken_pass = 8
    rig = Rig(executor=executor, max_batch=2)
    waits = rig.push([1, 2, 3], 20)
    rig.step()
    urgent = [rig.push([4 + i, 5, 6], 20, band=0) for i in range(2)]
    rig.door.drain()
    with pytest.raises(EngineFailed, match="the device broke"):
        rig.loop.run()
    for outputs in rig.door.take_outputs(0) or []:
        rig.hear(outputs)
    assert rig.choice(waits).started is not None
    for handle, spared in ((waits, True), (urgent[0], False), (urgent[1], False)):
        end = rig.choice(handle).end
        assert end is not None
        assert (end.code, end.spared) == (Code.ENGINE_FAILED, spared)


@pytest.mark.rule("loop.failed-batch-ends-all")
def test_where_nobody_is_named_whoever_ran_may_be_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(max_batch=1)
    ran, waits = rig.push([1, 2, 3], 20), rig.push([4, 5, 6], 20)
    rig.step()

    def broken(now_s: float) -> None:
        raise ZeroDivisionError("poison")

    monkeypatch.setattr(rig.scheduler, "schedule", broken)
    run_until_it_fails(rig)
    assert rig.choice(ran).started is not None
    assert rig.choice(waits).started is None
    for handle in (ran, waits):
        end = rig.choice(handle).end
        assert end is not None
        assert (end.code, end.spared) == (Code.ENGINE_FAILED, False)


@pytest.mark.rule("request.one-terminal-status")
def test_requests_that_have_no_sequence_yet_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(max_batch=2, max_waiting=6)
    before = rig.push([1, 2], 3)
    poison = rig.push([1, 2], 3, n=3)  # its second choice has number 3
    behind = rig.push([1, 2], 3, n=2, finished=frozenset([0]))
    queued = rig.push([1, 2], 3)
    enter = rig.scheduler.residents.enter

    def broken(sequence: Sequence, now_s: float, since_s: float | None = None) -> None:
        if sequence.number == 3:
            raise ZeroDivisionError("poison")
        enter(sequence, now_s)

    monkeypatch.setattr(type(rig.scheduler.residents), "enter", staticmethod(broken))
    run_until_it_fails(rig)
    for handle, choices in ((before, [0]), (poison, [0, 1, 2]), (behind, [1]), (queued, [0])):
        for choice in choices:
            end = rig.choice(handle, choice).end
            assert end is not None
            assert end.code is Code.ENGINE_FAILED
    assert rig.choice(poison, 1).started is not None
    assert rig.choice(before).started is None


@pytest.mark.rule("request.one-terminal-status")
def test_a_sequence_whose_end_breaks_the_scheduler_has_that_end_and_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(max_batch=2)
    short, long = rig.push([1, 2, 3], 2), rig.push([4, 5, 6], 20)

    def broken(sequence: Sequence, now_s: float) -> None:
        raise ZeroDivisionError("poison")

    monkeypatch.setattr(rig.scheduler, "end", broken)
    run_until_it_fails(rig)
    assert rig.reason(short) is FinishReason.LENGTH
    rig.assert_true(short)
    end = rig.choice(long).end
    assert end is not None
    assert end.code is Code.ENGINE_FAILED


@pytest.mark.rule("request.one-terminal-status")
def test_nothing_is_told_of_a_start_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(max_batch=1)
    rig.push([1, 2, 3], 20)
    poison = rig.push([4, 5, 6], 5)
    rig.step()
    rig.cancel(poison)
    end_told = rig.scheduler.retire

    def broken(now_s: float) -> list[Sequence]:
        for sequence in rig.scheduler.residents.sequences.values():
            if sequence.number == POISON and sequence.end_reason is not None:
                raise ZeroDivisionError("poison")
        return end_told(now_s)

    monkeypatch.setattr(rig.scheduler, "retire", broken)
    run_until_it_fails(rig)
    assert rig.reason(poison) is FinishReason.CANCELLED
    assert rig.choice(poison).started is None


@pytest.mark.rule("loop.failed-batch-ends-all")
def test_a_start_that_was_told_some_passes_ago_is_not_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(max_batch=2, prefill_chunk_tokens=4, batch_tokens=8)
    rig.push([1], 30)
    poison = rig.push([4] * 30, 5)
    rig.clock.advance(1.0)
    rig.step()
    start = rig.choice(poison).started
    assert start is not None
    break_at(monkeypatch, "headrace_engine.scheduler.commit._commit_chunk")
    rig.clock.advance(1.0)
    run_until_it_fails(rig)  # hearing a second start fails
    assert rig.choice(poison).started is start
    assert rig.reason(poison) is FinishReason.ERROR


@pytest.mark.rule("request.one-terminal-status")
def test_what_breaks_while_the_outputs_are_told_keeps_nobody_from_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(max_batch=3, phases=1)
    ended, goes_on = rig.push([1, 2, 3], 3), rig.push([4, 5, 6], 20)
    rig.step()
    rig.step()
    late, waits = rig.push([7, 8, 9], 20), rig.push([7, 7, 7], 20)
    take, told = OutputBuilder.take, list[int]()

    def broken(outputs: OutputBuilder, pass_id: int) -> PassOutputs | None:
        if pass_id == 3 and len(told) < 2:
            # The pass breaks here, and then telling what it had to tell: an end and a start too.
            told.append(pass_id)
            raise ZeroDivisionError("poison")
        return take(outputs, pass_id)

    monkeypatch.setattr(OutputBuilder, "take", broken)
    rig.door.drain()
    with pytest.raises(EngineFailed, match="poison") as caught:
        rig.loop.run()
    assert "then ZeroDivisionError('poison')" in caught.value.__notes__
    for outputs in rig.door.take_outputs(0) or []:
        rig.hear(outputs)
    for handle in (ended, goes_on, late, waits):
        end = rig.choice(handle).end
        assert end is not None
        assert end.code is Code.ENGINE_FAILED
    assert rig.choice(late).started is not None
    assert rig.choice(waits).started is None


def test_every_function_calls_what_it_works_on_by_the_name_that_blame_reads() -> None:
    """Blame reads variables of frames: another name would let a poison go from engine to engine."""
    core = Path(str(headrace_engine.__file__)).parent
    wrong: list[str] = []
    seen = 0
    for source in chain.from_iterable(
        (core / part).glob("*.py") for part in ("loop", "scheduler", "cache")
    ):
        for function in ast.walk(ast.parse(source.read_text())):
            if isinstance(function, ast.FunctionDef):
                for argument in (*function.args.args, *function.args.kwonlyargs):
                    if isinstance(argument.annotation, ast.Name):
                        wanted = NAMES.get(argument.annotation.id)
                        seen += wanted is not None
                        if wanted not in (None, argument.arg):
                            wrong.append(
                                f"{source.name}: {function.name}({argument.arg}), not {wanted}"
                            )
    assert not wrong
    assert seen > 50


@pytest.mark.rule("loop.validate-rejects-per-request")
def test_a_request_that_cannot_even_be_checked_is_refused_alone() -> None:
    rig = Rig()
    good = rig.push([1, 2, 3], 4)
    odd: Any = None
    rig.door.push(Request("odd", RequestHandle(99), odd, Sampling(max_new_tokens=1)))
    told: list[tuple[int, Code | None, str]] = []

    def hear(outputs: Any) -> None:
        told.extend((int(outputs.handles[end.row]), end.code, end.message) for end in outputs.ends)

    rig.hear = hear
    with capture_logs() as logs:
        rig.run()
    (line,) = [line for line in logs if line["event"] == "request.check_broke"]
    assert (line["id"], line["log_level"], line["exc_info"]) == ("odd", "error", True)
    assert told[0][:2] == (99, Code.INTERNAL)
    assert "cannot be checked" in told[0][2]
    assert told[1][:2] == (int(good), None)


def test_an_error_of_no_sequence_blames_nobody() -> None:
    with pytest.raises(IndexError) as caught:
        np.zeros(2)[3]
    assert at_work(caught.value) == set()
