"""The resume log and the settlement of requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.queue_pb2 import CancelMark, LogEntry
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import Logged, Settled
from headrace_transport.memory_broker import MemoryBroker
from support.fake_engine import IntakeBench, token_of
from support.held import make_record
from support.waiting import eventually


async def entries_of(bench: IntakeBench) -> list[LogEntry]:
    """The resume log of ``r1``."""
    return [entry for _, entry in await bench.gateway.read_log("r1")]


async def published(bench: IntakeBench, tokens: int) -> None:
    """Waits until so many tokens are out."""
    await eventually(lambda: bench.value("headrace_engine_published_tokens_total") == tokens)


async def test_sixteen_tokens_are_logged_at_once_and_fewer_after_a_while() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=100))
        await bench.pushed(1)
        bench.step(16)
        await eventually(lambda: bench.logged("r1", 16))
        entries = await entries_of(bench)
        assert [entry.counts[0] for entry in entries] == [16]
        assert entries[0].prompt_tokens == 3

        bench.step(3)
        await eventually(lambda: bench.logged("r1", 19))
        entries = await entries_of(bench)
        assert [entry.counts[0] for entry in entries] == [16, 3]
        assert entries[1].prompt_tokens == 0


async def test_frames_say_how_much_the_log_holds_and_entries_which_frame_they_reach() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=100))
        await bench.pushed(1)
        bench.step(20)
        await eventually(lambda: bench.logged("r1", 20))
        bench.step()
        await published(bench, 21)

        frames = await bench.frames("gw")
        assert frames[0].logged[0] == 0
        assert frames[-1].logged[0] == 20
        entries = await entries_of(bench)
        posted = bench.broker.out("gw").after("0-0")
        reached = [index for index, (name, _) in enumerate(posted) if name == entries[0].frame_id]
        assert reached == [len(frames) - 2]


async def test_the_end_of_one_choice_is_logged_while_another_goes_on() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(n=2, max_new_tokens=100))
        await bench.pushed(1)
        bench.step(2)
        mark = CancelMark(reason=codes_pb2.FINISH_REASON_STOP, choice=1)
        await bench.gateway.cancel("m", "r1", mark)
        await eventually(lambda: bool(bench.fake.cancels))
        bench.step()

        async def finishes() -> list[tuple[int, int]]:
            return [
                (entry.choices[finish.row], finish.reason)
                for entry in await entries_of(bench)
                for finish in entry.finishes
            ]

        await eventually(finishes)
        assert await finishes() == [(1, FinishReason.STOP)]
        assert bench.intake.state().held == 1


@pytest.mark.rule("log.append-in-order")
@pytest.mark.parametrize("losses", [1, 3])
async def test_an_append_whose_answer_was_lost_leaves_no_gap_and_no_double(
    monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    real, failures = bench.wire.append_logs, [losses]

    async def lossy(engine: str, entries: Sequence[tuple[str, int, LogEntry]]) -> Sequence[Logged]:
        logged = await real(engine, entries)
        if failures[0]:
            failures[0] -= 1
            bench.step(2)  # the request ends before anybody knows what the log holds
            raise TransportUnavailable("the answer was lost")
        return logged

    monkeypatch.setattr(bench.wire, "append_logs", lossy)
    record = make_record(max_new_tokens=18)
    record.sampling.logprobs = 0
    async with bench.running():
        await bench.submit(record)
        await bench.pushed(1)
        bench.step(16)
        await eventually(lambda: bench.intake.state().held == 0)

    entries = await entries_of(bench)
    tokens = [token for entry in entries for token in entry.tokens]
    assert tokens == [token_of(1, 0, index) for index in range(18)]
    chosen = [value for entry in entries for item in entry.logprobs for value in item.chosen]
    assert chosen == [-float(index) for index in range(18)]
    assert [len(entry.finishes) for entry in entries] == [0] * (len(entries) - 1) + [1]


@pytest.mark.rule("finish.after-terminal-frame")
async def test_finish_is_repeated_until_it_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    real, failures = bench.wire.finish, [3]

    async def failing(*arguments: Any, **named: Any) -> Settled:
        if failures[0]:
            failures[0] -= 1
            raise TransportUnavailable("gone")
        return await real(*arguments, **named)

    monkeypatch.setattr(bench.wire, "finish", failing)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=1))
        await bench.pushed(1)
        bench.step()
        await eventually(lambda: bench.intake.state().held == 0)

    state = await bench.gateway.request_state("r1")
    assert state is not None
    assert state.finish is FinishReason.LENGTH
    assert bench.value("headrace_engine_requests_finished_total", reason="length") == 1


async def test_a_finish_that_is_not_ours_is_dropped_without_a_word() -> None:
    broker = MemoryBroker()
    bench = IntakeBench(broker, lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=1))
        await bench.pushed(1)
        broker.flush()
        bench.step()
        await eventually(lambda: bench.intake.state().held == 0)

    assert bench.value("headrace_engine_requests_finished_total", reason="length") == 0
    assert bench.value("headrace_engine_requests_let_go_total", why="lost") == 1


@pytest.mark.rule("lease.lost-is-silent")
async def test_an_append_that_is_not_ours_ends_the_work() -> None:
    broker = MemoryBroker()
    bench = IntakeBench(broker, lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=100))
        await bench.pushed(1)
        broker.flush()
        bench.step(16)
        await eventually(lambda: bench.intake.state().held == 0)

    assert bench.fake.cancels
    assert bench.value("headrace_engine_requests_let_go_total", why="lost") == 1


async def test_a_log_that_lost_what_was_written_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    real, calls = bench.wire.append_logs, [0]

    async def shortened(
        engine: str, entries: Sequence[tuple[str, int, LogEntry]]
    ) -> Sequence[Logged]:
        calls[0] += 1
        logged = await real(engine, entries)
        return [Logged(ours=True, lengths=[0])] if calls[0] == 2 else logged

    monkeypatch.setattr(bench.wire, "append_logs", shortened)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=80))
        await bench.pushed(1)
        for count in range(1, 5):
            bench.step(16)
            await published(bench, 16 * count)
            await eventually(lambda count=count: calls[0] >= min(count, 2))
        assert calls[0] == 2
        bench.step(16)
        await eventually(lambda: bench.intake.state().held == 0)

    assert (await bench.out()).finishes == {10: FinishReason.LENGTH}


async def test_many_requests_that_end_together_are_all_settled() -> None:
    bench = IntakeBench(MemoryBroker(), slots=200, lease_ms=60_000)
    async with bench.running():
        for number in range(200):
            await bench.submit(make_record(f"r{number}", max_new_tokens=1, slot=number + 1))
        await bench.pushed(200)
        bench.step()
        await eventually(lambda: bench.intake.state().held == 0)

    assert bench.value("headrace_engine_requests_finished_total", reason="length") == 200
