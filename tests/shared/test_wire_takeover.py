"""Take-over: no delivered token is decided again, and a stale engine changes nothing."""

from __future__ import annotations

from typing import cast

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb.queue_pb2 import Fence, Frame, LogEntry, RowFinish, RowLogprobs, Usage
from headrace_transport.claims import ClaimSteps
from headrace_transport.interface import (
    FIRST_FRAME,
    MAX_PAST,
    EngineWire,
    GatewayWire,
    OutEntry,
)
from support.wires import (
    GATEWAY,
    LEASE_MS,
    MODEL,
    SHORT_MS,
    Wires,
    claim,
    entry,
    finish,
    frame,
    record,
)

STOP = RowFinish(row=0, reason="FINISH_REASON_STOP", usage=Usage(completion_tokens=2))


async def begun(wires: Wires, *, n: int = 1) -> tuple[GatewayWire, EngineWire, EngineWire]:
    """A request ``r1`` of which engine e-1 holds a lease that lapses soon."""
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    await gateway.submit(record("r1", n=n), max_queued=9)
    assert set(await claim(engine, lease_ms=SHORT_MS)) == {"r1"}
    return gateway, engine, await wires.engine()


def believed(entries: list[OutEntry]) -> list[int]:
    """Tokens of slot 10 that a gateway believes, by the fence rule."""
    oldest, tokens = 0, list[int]()
    for each in entries:
        if isinstance(each.item, Fence):
            oldest = max(oldest, each.item.attempt)
            continue
        assert each.item is not None
        at = 0
        for row, count in enumerate(each.item.counts):
            row_tokens = each.item.tokens[at : at + count]
            at += count
            first = each.item.firsts[row]
            if (
                each.item.slots[row] == 10
                and each.item.attempts[row] >= oldest
                and first == len(tokens)
            ):
                tokens += row_tokens
    return tokens


async def test_successor_gets_log_and_frames_that_the_log_lacks(wires: Wires) -> None:
    gateway, engine, successor = await begun(wires)
    first = await engine.publish({GATEWAY: frame([1, 2])})
    await engine.append_log("e-1", "r1", 1, entry([1, 2], frame_id=first[GATEWAY]))
    await engine.publish({GATEWAY: frame([3], first=2)})
    await engine.publish({GATEWAY: frame([4, 5], first=3)})
    await wires.pass_ms(2 * SHORT_MS)

    taken = (await claim(successor, "e-2"))["r1"]

    assert list(taken.delivered[0]) == [1, 2, 3, 4, 5]
    assert (taken.attempt, taken.crashes) == (2, 1)
    # the log holds all of it now, so the successor's first append goes on at 5
    logged = await successor.append_log("e-2", "r1", 2, entry([6], first=5, attempt=2))
    assert (logged.ours, list(logged.lengths)) == (True, [6])
    tokens = [t for _, each in await gateway.read_log("r1") for t in each.tokens]
    assert tokens == [1, 2, 3, 4, 5, 6]


async def test_frames_after_the_fence_are_nobodys(wires: Wires) -> None:
    gateway, engine, successor = await begun(wires)
    await engine.publish({GATEWAY: frame([1])})
    await wires.pass_ms(2 * SHORT_MS)
    taken = (await claim(successor, "e-2", lease_ms=SHORT_MS))["r1"]
    assert list(taken.delivered[0]) == [1]

    # the first engine wakes and goes on with what it would have decided
    await engine.publish({GATEWAY: frame([66, 67], first=1)})
    assert not (await engine.append_log("e-1", "r1", 1, entry([66], first=1))).ours
    assert not await finish(engine, "r1", generated=2, last=entry([66], first=1))
    assert list((await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=LEASE_MS)).lost) == ["r1"]
    await engine.release(MODEL, "e-1", {"r1": 1})
    await successor.publish({GATEWAY: frame([2], first=1, attempt=2)})

    out = list(await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000))
    assert believed(out) == [1, 2]
    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.status, state.attempt) == ("running", 2)

    # nor does the next successor take them for delivered
    await wires.pass_ms(2 * SHORT_MS)
    taken = (await claim(await wires.engine(), "e-3"))["r1"]
    assert list(taken.delivered[0]) == [1, 2]


async def test_fence_names_the_request_and_its_new_attempt(wires: Wires) -> None:
    gateway, _, successor = await begun(wires, n=2)
    await wires.pass_ms(2 * SHORT_MS)
    await claim(successor, "e-2")
    (fence,) = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    assert fence.item == Fence(version=1, id="r1", slot=10, n=2, attempt=2)


async def test_first_attempt_makes_no_fence(wires: Wires) -> None:
    gateway, _, _ = await begun(wires)
    assert await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1) == []


async def test_choices_are_recovered_each(wires: Wires) -> None:
    _, engine, successor = await begun(wires, n=3)
    both = Frame(
        version=1,
        slots=[99, 10, 11],
        attempts=[1, 1, 1],
        firsts=[0, 0, 0],
        counts=[2, 1, 2],
        tokens=[90, 91, 1, 7, 8],
        logged=[0, 0, 0],
    )
    name = (await engine.publish({GATEWAY: both}))[GATEWAY]
    await engine.append_log("e-1", "r1", 1, entry([7, 8], choice=1, frame_id=name))
    await engine.publish({GATEWAY: frame([2], first=1)})
    await engine.publish({GATEWAY: frame([], slot=11, first=2, finish=STOP)})
    await wires.pass_ms(2 * SHORT_MS)

    taken = (await claim(successor, "e-2"))["r1"]

    assert [list(tokens) for tokens in taken.delivered] == [[1, 2], [7, 8], []]
    assert list(taken.ended) == [1]
    assert taken.ended[1].finishes[0].reason == FinishReason.STOP


async def test_request_that_had_ended_is_only_finished(wires: Wires) -> None:
    gateway, engine, successor = await begun(wires)
    await engine.publish({GATEWAY: frame([1, 2], finish=STOP)})
    await wires.pass_ms(2 * SHORT_MS)

    assert await claim(successor, "e-2") == {}

    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.STOP)
    assert state.usage is not None
    assert (state.usage.prompt_tokens, state.usage.completion_tokens) == (3, 2)
    tokens = [t for _, each in await gateway.read_log("r1") for t in each.tokens]
    assert tokens == [1, 2]
    finishes = [f.reason for _, each in await gateway.read_log("r1") for f in each.finishes]
    assert finishes == [FinishReason.STOP]


async def test_resume_entry_brings_ended_choices(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    resume = LogEntry(
        version=1,
        attempt=1,
        choices=[0, 1],
        firsts=[0, 0],
        counts=[2, 1],
        tokens=[4, 5, 9],
        finishes=[STOP],
    )
    await gateway.submit(record("r1", n=2, attempt=1), max_queued=9, resume=resume)
    taken = (await claim(engine))["r1"]
    assert [list(tokens) for tokens in taken.delivered] == [[4, 5], [9]]
    assert set(taken.ended) == {0}
    logged = await engine.append_log("e-1", "r1", 2, entry([10], choice=1, first=1, attempt=2))
    assert list(logged.lengths) == [2, 2]


async def test_log_takes_rows_that_continue_it_and_only_once(wires: Wires) -> None:
    gateway, engine, _ = await begun(wires)
    for _ in range(2):
        logged = await engine.append_log("e-1", "r1", 1, entry([1, 2, 3]))
        assert (logged.ours, list(logged.lengths)) == (True, [3])
    gap = await engine.append_log("e-1", "r1", 1, entry([9], first=5))
    assert (gap.ours, list(gap.lengths)) == (True, [3])

    overlap = entry([2, 3, 4, 5], first=1)
    overlap.logprobs.append(
        RowLogprobs(
            row=0,
            width=1,
            chosen=[-2, -3, -4, -5],
            top_ids=[2, 3, 4, 5],
            top_values=[-2, -3, -4, -5],
        )
    )
    logged = await engine.append_log("e-1", "r1", 1, overlap)
    assert list(logged.lengths) == [5]

    entries = [each for _, each in await gateway.read_log("r1")]
    assert [list(each.tokens) for each in entries] == [[1, 2, 3], [4, 5]]
    assert list(entries[1].logprobs[0].chosen) == [-4, -5]
    assert list(entries[1].logprobs[0].top_ids) == [4, 5]


async def test_many_logs_are_appended_at_once(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(3):
        await gateway.submit(record(f"r{i}", slot=i), max_queued=9)
    await claim(engine)
    logged = await engine.append_logs(
        "e-1",
        [
            ("r0", 1, entry([1])),
            ("r1", 7, entry([1])),
            ("unknown", 1, entry([1])),
            ("r2", 1, entry([1, 2])),
        ],
    )
    assert [(each.ours, list(each.lengths)) for each in logged] == [
        (True, [1]),
        (False, []),
        (False, []),
        (True, [2]),
    ]
    assert await engine.append_logs("e-1", []) == []


async def test_log_is_read_after_an_entry(wires: Wires) -> None:
    gateway, engine, _ = await begun(wires)
    await engine.append_log("e-1", "r1", 1, entry([1]))
    ((name, _),) = await gateway.read_log("r1")
    await engine.append_log("e-1", "r1", 1, entry([2], first=1))
    assert [list(each.tokens) for _, each in await gateway.read_log("r1", name)] == [[2]]
    assert await gateway.read_log("unknown") == []


async def test_attached_gateway_gets_the_rest_and_successors_look_at_both(wires: Wires) -> None:
    gateway, engine, successor = await begun(wires)
    await engine.publish({GATEWAY: frame([1])})
    await gateway.beat_gateway("gw-2", ttl_ms=LEASE_MS)

    lease = await gateway.attach("r1", "gw-2", 40, 1)

    assert lease is not None
    assert (lease.owner, lease.attempt, lease.gateway, lease.slot) == ("e-1", 1, "gw-2", 40)
    assert lease.overdue_ms < 0
    ((_, control),) = await engine.read_control("e-1", "0-0", block_ms=1000)
    assert control is not None
    assert (control.attach.id, control.attach.gateway) == ("r1", "gw-2")
    assert (control.attach.slot, control.attach.first) == (40, 1)
    state = await gateway.request_state("r1")
    assert state is not None
    assert state.gateway == "gw-2"

    await engine.publish({"gw-2": frame([2], slot=40, first=1)})
    await wires.pass_ms(2 * SHORT_MS)
    taken = (await claim(successor, "e-2"))["r1"]
    assert list(taken.delivered[0]) == [1, 2]
    assert (taken.record.gateway, taken.record.slot) == ("gw-2", 40)
    fences = [e.item for e in await gateway.read_out("gw-2", FIRST_FRAME, block_ms=1000)][1:]
    assert fences == [Fence(version=1, id="r1", slot=40, n=1, attempt=2)]


async def test_one_that_looks_after_a_request_takes_it_from_nobody(wires: Wires) -> None:
    gateway, engine, _ = await begun(wires)
    assert await gateway.attach("r1", GATEWAY, 7, 1, keeping=True) is not None  # still its own
    await gateway.attach("r1", "gw-2", 40, 1)

    assert await gateway.attach("r1", GATEWAY, 7, 1, keeping=True) is None

    state = await gateway.request_state("r1")
    assert state is not None
    assert state.gateway == "gw-2"
    told = [item for _, item in await engine.read_control("e-1", "0-0", block_ms=1000)]
    assert [item.attach.gateway for item in told if item is not None] == [GATEWAY, "gw-2"]


async def test_of_many_places_a_successor_looks_at_the_newest(wires: Wires) -> None:
    """How often a client comes back makes a request no larger."""
    gateway, engine, successor = await begun(wires)
    for i in range(MAX_PAST + 3):
        assert await gateway.attach("r1", f"gw-{i % 2}", 100 + i, 0) is not None
    last = f"gw-{(MAX_PAST + 2) % 2}"
    await engine.publish({last: frame([7], slot=100 + MAX_PAST + 2)})
    await gateway.attach("r1", "gw-new", 7, 0)
    await wires.pass_ms(2 * SHORT_MS)

    steps = cast("ClaimSteps", successor)
    [taken] = await steps.take(MODEL, "e-2", credit=1, lease_ms=SHORT_MS)
    assert len(taken.past) == MAX_PAST
    assert taken.past[-1] == (last, 100 + MAX_PAST + 2)

    await successor.release(MODEL, "e-2", {"r1": 2})
    again = (await claim(successor, "e-2"))["r1"]
    assert list(again.delivered[0]) == [7]


async def test_what_is_queued_moves_to_the_gateway_that_attaches(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9)

    assert await gateway.attach("r1", "gw-2", 40, 0) is None  # nobody runs it

    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.gateway, state.status) == ("gw-2", "queued")
    await gateway.leave_gateway(GATEWAY)
    await engine.reap(MODEL)  # it is not the old gateway's any more
    taken = (await claim(engine))["r1"]
    assert (taken.record.gateway, taken.record.slot) == ("gw-2", 40)


async def test_nobody_is_attached_to_what_is_over_or_unknown(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    assert await gateway.attach("unknown", "gw-2", 1, 0) is None
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    await finish(engine, "r1")
    assert await gateway.attach("r1", "gw-2", 1, 0) is None
    state = await gateway.request_state("r1")
    assert state is not None
    assert state.gateway == GATEWAY


async def die(wires: Wires, engine: EngineWire, name: str, attempt: int) -> None:
    """The engine renews no more: its lease of ``suspect`` expires."""
    await engine.renew(MODEL, name, {"suspect": attempt}, lease_ms=1)
    await wires.pass_ms(5)


async def suspected(wires: Wires, gateway: GatewayWire) -> None:
    """A request ``suspect``, two of whose engines died. Nobody has looked since."""
    await gateway.submit(record("suspect"), max_queued=9)
    for attempt in (1, 2):
        engine, name = await wires.engine(), f"dead-{attempt}"
        assert set(await claim(engine, name)) == {"suspect"}
        await die(wires, engine, name, attempt)


async def test_request_that_keeps_killing_engines_runs_alone_and_is_then_given_up(
    wires: Wires,
) -> None:
    gateway = await wires.gateway()
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    await suspected(wires, gateway)
    engine = await wires.engine()
    await gateway.submit(record("good"), max_queued=9)
    taken = await claim(engine, "dead-3")
    assert set(taken) == {"suspect"}
    assert (taken["suspect"].attempt, taken["suspect"].alone) == (3, True)
    # what runs alone is given no company
    assert await claim(engine, "dead-3") == {}
    await die(wires, engine, "dead-3", 3)

    assert set(await claim(await wires.engine(), "e-9")) == {"good"}

    state = await gateway.request_state("suspect")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.ERROR)
    out = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    last = out[-1].item
    assert isinstance(last, Frame)
    assert last.attempts[0] == 4
    assert last.finishes[0].reason == FinishReason.ERROR
    assert "suspect" in last.finishes[0].message


async def test_suspect_waits_for_an_engine_that_is_empty(wires: Wires) -> None:
    gateway = await wires.gateway()
    busy, other = await wires.engine(), await wires.engine()
    await gateway.submit(record("a"), max_queued=9)
    assert set(await claim(busy, "busy")) == {"a"}
    await suspected(wires, gateway)
    await gateway.submit(record("b"), max_queued=9)

    # the busy engine empties itself for the suspect; others go on meanwhile
    assert await claim(busy, "busy") == {}
    assert await finish(busy, "a", name="busy")
    taken = await claim(busy, "busy")
    assert set(taken) == {"suspect"}
    assert taken["suspect"].alone
    assert await claim(busy, "busy") == {}
    assert set(await claim(other, "other")) == {"b"}
    assert await finish(busy, "suspect", name="busy", attempt=3)
    await gateway.submit(record("c"), max_queued=9)
    assert set(await claim(busy, "busy")) == {"c"}


async def test_one_engine_at_a_time_empties_itself_for_a_suspect(wires: Wires) -> None:
    gateway = await wires.gateway()
    first, second = await wires.engine(), await wires.engine()
    for name, engine, owner in (("a", first, "busy-1"), ("b", second, "busy-2")):
        await gateway.submit(record(name), max_queued=9)
        assert set(await claim(engine, owner)) == {name}
    await suspected(wires, gateway)
    await gateway.submit(record("c"), max_queued=9)
    assert await claim(first, "busy-1") == {}
    assert set(await claim(second, "busy-2")) == {"c"}
    assert await claim(first, "busy-1") == {}


# logs and frames that make no sense
def lone_end(reason: int, *, row: int = 0) -> LogEntry:
    """A log entry of one token that ends its choice."""
    made = entry([7])
    made.finishes.append(RowFinish(row=row, reason=reason))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    "senseless",
    [
        lone_end(0),
        lone_end(77),
        lone_end(FinishReason.STOP, row=9),
        entry([7], frame_id="x-y"),
        entry([7], frame_id="9" * 20),
        LogEntry(version=1, attempt=1, choices=[0], firsts=[0], counts=[2], tokens=[7]),
    ],
)
async def test_a_log_that_makes_no_sense_ends_its_request_alone(
    wires: Wires, senseless: LogEntry
) -> None:
    gateway, engine, successor = await begun(wires)
    await engine.append_log("e-1", "r1", 1, senseless)
    await gateway.submit(record("r2", slot=20), max_queued=9)
    await wires.pass_ms(2 * SHORT_MS)

    assert set(await claim(successor, "e-2")) == {"r2"}

    state = await gateway.request_state("r1")
    assert state is not None
    assert state.finish is FinishReason.ERROR
    read = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1)
    told = [end for each in read if isinstance(each.item, Frame) for end in each.item.finishes]
    assert [end.code for end in told] == [Code.INTERNAL]
    assert gateway.damaged.counts["log"] + successor.damaged.counts["log"] == 1


@pytest.mark.parametrize(
    "senseless",
    [
        Frame(version=1, slots=[10, 11], attempts=[1], firsts=[0], counts=[1], tokens=[7]),
        Frame(version=1, slots=[10], attempts=[1], firsts=[0], tokens=[7]),
        Frame(version=1, slots=[10], attempts=[1], firsts=[0], counts=[2], tokens=[7]),
        Frame(version=1, slots=[10], attempts=[1], firsts=[0], counts=[1], tokens=[7, 7]),
    ],
)
async def test_a_frame_that_makes_no_sense_is_believed_by_neither_end(
    wires: Wires, senseless: Frame
) -> None:
    gateway, engine, successor = await begun(wires)
    await engine.publish({GATEWAY: senseless})
    [read] = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1)
    assert read.item is None
    await wires.pass_ms(2 * SHORT_MS)
    taken = (await claim(successor, "e-2"))["r1"]
    assert list(taken.delivered[0]) == []


async def test_an_end_for_an_unknown_reason_is_none(wires: Wires) -> None:
    _, engine, successor = await begun(wires)
    end = RowFinish(row=0, reason=77)  # type: ignore[arg-type]
    await engine.publish({GATEWAY: frame([7], finish=end)})
    await wires.pass_ms(2 * SHORT_MS)
    taken = (await claim(successor, "e-2"))["r1"]
    assert list(taken.delivered[0]) == [7]
    assert not taken.ended
