"""A reader's deltas: text and tokens keep step, whatever is held back, stopped or resumed."""

from __future__ import annotations

import asyncio

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import RequestRecord
from headrace_gateway.errors import Internal
from headrace_gateway.inference.calls import Delta, Done, Event, KeepAlive
from headrace_gateway.inference.running import OpenCall, Running
from headrace_gateway.inference.session import Session
from headrace_gateway.text.pipeline import TextPipeline
from support.wire import END, read, texts, toy_card, toy_files, toy_ids

TEXT = TextPipeline.from_card(toy_card(), toy_files())
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


class Owner:
    """Notes what readers ask for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def left(self, call: OpenCall, reader: Running) -> None:
        """A reader went."""
        self.asked.append(f"left {len(call.readers)}")

    async def cancel_call(self, call: OpenCall, *, cause: str) -> None:
        """A reader cancels."""
        self.asked.append(f"cancel {cause}")


def opened(*, n: int = 1, stop: tuple[str, ...] = (), logprobs: int | None = None) -> OpenCall:
    """A call of one session, without a service."""
    record = RequestRecord(id="r", model="toy", n=n)
    if logprobs is not None:
        record.sampling.logprobs = logprobs
    session = Session(
        record,
        choice_text=lambda: TEXT.choice(stop=stop, stop_token_ids=(END,)),
        prompt_tokens=3,
        now=0.0,
        hidden=frozenset({END}),
    )
    return OpenCall(
        call_id="r",
        model="toy",
        kind="completion",
        key_id="k",
        tenant="t",
        n=n,
        sessions=[session],
        names=TEXT,
        fingerprint="fp",
        created_ms=1_800_000_000_123,
        arrived=0.0,
        deadline=None,
    )


def reader(call: OpenCall, *, after: int = 0, owner: Owner | None = None) -> Running:
    """A reader from a position on."""
    return Running(call, owner or Owner(), after=lambda _index: after, keepalive_s=60)


def say(call: OpenCall, text: str | list[int], finish: FinishReason | None = None) -> None:
    """The engine's next tokens of choice 0."""
    [session] = call.sessions
    tokens = toy_ids(text) if isinstance(text, str) else text
    first = len(session.choices[0].tokens)
    session.take_row(0, attempt=1, first=first, tokens=tokens, logged=0, now=1.0)
    if finish is not None:
        session.take_finish(0, finish, None, "")
    session.close(1.0)


async def deltas(running: Running) -> list[Delta]:
    """All deltas to the end."""
    return [event for event in await read(running) if isinstance(event, Delta)]


async def test_a_character_of_several_tokens_comes_whole() -> None:
    call = opened()
    running = reader(call)
    first, *rest = toy_ids("\u00e9!")
    say(call, [first])
    say(call, rest, LENGTH)
    assert [delta.text for delta in await deltas(running)] == ["\u00e9!"]


async def test_logprobs_come_with_the_text_of_their_tokens() -> None:
    call = opened(stop=("END",), logprobs=0)
    running = reader(call)
    say(call, "okE")
    first = await anext(running)
    assert isinstance(first, Delta)
    assert first.text == "ok"
    assert [info.text for info in first.tokens] == ["o", "k"]
    assert (first.cursor, list(first.token_ids)) == (3, toy_ids("okE"))
    say(call, "a", LENGTH)
    [rest] = await deltas(running)
    assert rest.text == "Ea"
    assert [info.text for info in rest.tokens] == ["E", "a"]


async def test_neither_a_stop_string_nor_a_stop_token_has_logprobs() -> None:
    call = opened(stop=("END",), logprobs=0)
    say(call, "okEND")
    [delta] = await deltas(reader(call))
    assert (delta.text, delta.finish) == ("ok", STOP)
    assert [info.text for info in delta.tokens] == ["o", "k"]

    call = opened(logprobs=0)
    say(call, [*toy_ids("ok"), END], STOP)
    [delta] = await deltas(reader(call))
    assert [info.text for info in delta.tokens] == ["o", "k"]
    assert delta.cursor == 3


async def test_a_reader_from_the_middle_gets_the_rest_and_nothing_twice() -> None:
    call = opened(logprobs=0)
    say(call, "abcdef", LENGTH)
    for after in range(7):
        events = await read(reader(call, after=after))
        assert texts(events) == {0: "abcdef"[after:]}
        [delta] = [event for event in events if isinstance(event, Delta)]
        assert [info.text for info in delta.tokens] == list("abcdef"[after:])


async def test_deltas_joined_are_the_same_however_fast_one_reads() -> None:
    call = opened(stop=("END",))
    slow, quick = reader(call), reader(call)
    got: list[Delta] = []

    async def follow() -> None:
        got.extend(await deltas(quick))

    async with asyncio.TaskGroup() as group:
        group.create_task(follow())
        for char in "aE\u00e9ENxENDzz":
            say(call, char)
            await asyncio.sleep(0)
    assert "".join(delta.text for delta in got) == "aE\u00e9ENx"
    assert texts(await read(slow)) == {0: "aE\u00e9ENx"}


async def test_a_failure_comes_after_what_was_said_before_it() -> None:
    call = opened()
    running = reader(call)
    say(call, "ab")
    call.sessions[0].fail(Internal("broken"), 2.0)
    event = await anext(running)
    assert isinstance(event, Delta)
    assert event.text == "ab"
    with pytest.raises(Internal):
        await anext(running)
    with pytest.raises(StopAsyncIteration):
        await anext(running)


async def test_cursor_and_usage_cover_every_choice() -> None:
    call = opened(n=2)
    running = reader(call)
    [session] = call.sessions
    session.take_row(1, attempt=1, first=0, tokens=toy_ids("xyz"), logged=0, now=1.0)
    session.wake()
    await anext(running)
    assert running.cursor == "0,3"
    for choice in range(2):
        session.take_finish(choice, LENGTH, None, "")
    session.wake()
    events = await read(running)
    assert isinstance(events[-1], Done)
    assert events[-1].usage.completion_tokens == 3
    assert events[-1].usage.prompt_tokens == 3


async def test_silence_is_a_keep_alive_and_leaving_ends_the_iteration() -> None:
    call, owner = opened(), Owner()
    running = Running(call, owner, after=lambda _: 0, keepalive_s=0.01)
    assert await anext(running) == KeepAlive()
    await running.cancel()
    await running.aclose()
    await running.aclose()
    assert owner.asked == ["cancel request", "left 0"]
    with pytest.raises(StopAsyncIteration):
        await anext(running)
    assert not call.sessions[0].listeners


async def test_silence_counts_from_the_last_event() -> None:
    call = opened()
    running = Running(call, Owner(), after=lambda _: 0, keepalive_s=0.05)
    first = asyncio.ensure_future(anext(running))
    await asyncio.sleep(0.03)
    began = asyncio.get_running_loop().time()
    say(call, "a")
    event = await first
    while event == KeepAlive():  # the machine was slow
        event = await anext(running)
    assert isinstance(event, Delta)
    assert await anext(running) == KeepAlive()
    assert asyncio.get_running_loop().time() - began >= 0.045
    assert await anext(running) == KeepAlive()
    say(call, "b", LENGTH)
    assert [event.text for event in await deltas(running)] == ["b"]
    await running.aclose()


async def waits(running: Running) -> asyncio.Future[Event]:
    """The consumer's wait for the next event, begun."""
    waiting = asyncio.ensure_future(anext(running))
    await asyncio.sleep(0)
    return waiting


async def test_deltas_are_pushed_while_the_consumer_waits_and_the_end_is_its_own() -> None:
    call, pushed = opened(), list[tuple[str, str]]()
    running = reader(call)

    def push(delta: Delta) -> bool:
        pushed.append((delta.text, running.cursor))
        return True

    running.follow(push)
    say(call, "a")  # nobody waits yet
    first = await anext(running)
    assert isinstance(first, Delta)
    waiting = await waits(running)
    say(call, "b")
    say(call, toy_ids("\u00e9")[:1])  # held back: half a character
    say(call, toy_ids("\u00e9")[1:])
    assert (first.text, pushed) == ("a", [("b", "2"), ("\u00e9", "4")])
    await asyncio.sleep(0)
    assert not waiting.done()
    say(call, "c", LENGTH)
    last = await waiting
    assert isinstance(last, Delta)
    assert (last.text, last.finish, len(pushed)) == ("c", LENGTH, 2)
    assert isinstance(await anext(running), Done)


async def test_a_delta_that_cannot_be_pushed_now_is_the_consumers_and_so_is_what_follows() -> None:
    call = opened()
    running = reader(call)
    taken = False

    def push(_: Delta) -> bool:
        assert not taken, "the consumer has work"
        return taken

    running.follow(push)
    waiting = await waits(running)
    say(call, "a")
    taken = True
    say(call, "b")
    first, second = await waiting, await anext(running)
    assert isinstance(first, Delta)
    assert isinstance(second, Delta)
    assert (first.text, second.text) == ("a", "b")


async def test_a_failure_and_silence_still_wake_the_consumer() -> None:
    call = opened()
    running = Running(call, Owner(), after=lambda _: 0, keepalive_s=0.01)
    running.follow(lambda _: True)
    assert await anext(running) == KeepAlive()
    waiting = await waits(running)
    say(call, "a")
    call.sessions[0].fail(Internal("broken"), 2.0)

    async def fails() -> None:
        assert await waiting == KeepAlive()  # where the machine was slow, and no other event
        await anext(running)

    with pytest.raises(Internal):
        await fails()


async def test_choices_of_one_call_come_together() -> None:
    call = opened(n=2)
    running = reader(call)
    running.follow(lambda _: pytest.fail("two choices are not pushed"))
    waiting = await waits(running)
    say(call, "a")
    delta = await waiting
    assert isinstance(delta, Delta)
    assert (delta.index, delta.text) == (0, "a")


async def test_what_a_reader_knows_of_its_call() -> None:
    running = reader(opened())
    assert (running.id, running.model, running.n, running.prompt_tokens) == ("r", "toy", 1, 3)
    assert (running.created_s, running.system_fingerprint) == (1_800_000_000, "fp")
