"""The result stream: rows find their session, and the stream is trimmed only behind the log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import Fence, Frame, RequestRecord, RowFinish
from headrace_gateway.errors import Internal
from headrace_gateway.inference.inbox import Inbox, frame_id, position
from headrace_gateway.inference.session import Outcome, Session
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.text.pipeline import TextDelta, TextPipeline
from headrace_kit.metrics import Registry
from headrace_transport.interface import FIRST_FRAME, FrameId, OutEntry
from headrace_transport.memory import MemoryEngineWire, MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.waiting import eventually
from support.wire import toy_card, toy_files, toy_ids

TEXT = TextPipeline.from_card(toy_card(), toy_files())


class BrokenText:
    """Text handling with a defect."""

    def push(self, token_ids: Sequence[int], *, final: bool = False) -> TextDelta:
        """Fails."""
        raise LookupError("on purpose")


class Box:
    """An inbox with what it has heard."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker(clock=self.clock)
        self.wire = MemoryGatewayWire(self.broker)
        self.engine = MemoryEngineWire(self.broker)
        self.metrics = GatewayMetrics(Registry("gateway"))
        self.heard: list[tuple[str, int, Outcome]] = []
        self.reconnected = 0
        self.inbox = Inbox(
            self.wire,
            "g1",
            self.clock,
            self.metrics,
            heard=lambda session, outcome, i: self.heard.append((session.id, i, outcome)),
            reconnected=self.count,
        )

    def count(self) -> None:
        """The server is back."""
        self.reconnected += 1

    def open(self, request: str, n: int = 1, *, broken: bool = False) -> Session:
        """A session with slots."""
        record = RequestRecord(id=request, model="toy", n=n)
        make = BrokenText if broken else TEXT.choice
        session = Session(record, choice_text=make, prompt_tokens=1, now=0.0)
        self.inbox.open(session)
        return session

    async def read_for_a_while(self, holds: Any) -> None:
        """Reads until something holds."""
        reading = asyncio.create_task(self.inbox.read())
        await eventually(holds)
        reading.cancel()
        await asyncio.wait([reading])


def frame(slots: list[int], texts: list[str], *, first: int = 0, logged: int = 0) -> Frame:
    """A frame with one row a slot."""
    ids = [toy_ids(text) for text in texts]
    return Frame(
        version=WIRE_VERSION,
        slots=slots,
        attempts=[1] * len(slots),
        firsts=[first] * len(slots),
        counts=[len(each) for each in ids],
        tokens=[token for each in ids for token in each],
        logged=[logged] * len(slots),
    )


def text(session: Session, choice: int = 0) -> str:
    """What a choice says so far."""
    return "".join(session.choices[choice].pieces)


def test_slots_are_contiguous_for_choices_and_never_used_twice() -> None:
    box = Box()
    first, second = box.open("a", n=3), box.open("b")
    assert first.record.slot + 3 == second.record.slot
    assert first.record.gateway == "g1"
    box.inbox.close(first)
    assert box.open("c").record.slot > second.record.slot


def test_each_row_of_a_frame_reaches_its_session_and_choice() -> None:
    box = Box()
    a, b = box.open("a", n=2), box.open("b")
    slot = a.record.slot
    box.inbox.take_frame(frame([slot + 1, slot + 2, slot], ["x", "yy", "zzz"]), (1, 0))
    assert (text(a, 0), text(a, 1), text(b)) == ("zzz", "x", "yy")
    assert [name for name, _, _ in box.heard] == ["a", "b"]  # the first signs of life


def test_rows_of_sessions_that_are_closed_are_dropped_and_counted() -> None:
    box = Box()
    a, b = box.open("a"), box.open("b")
    box.inbox.close(a)
    box.inbox.take_frame(frame([a.record.slot, b.record.slot], ["x", "y"]), (1, 0))
    assert (text(a), text(b)) == ("", "y")
    assert b'stale_rows_total{kind="ended"} 1.0' in box.metrics.registry.exposition()


def test_an_end_without_tokens_ends_its_session() -> None:
    box = Box()
    a = box.open("a")
    made = frame([a.record.slot], [""])
    made.finishes.append(RowFinish(row=0, reason=FinishReason.DEADLINE.value))
    box.inbox.take_frame(made, (1, 0))
    assert a.ended
    assert a.choices[0].finish is FinishReason.DEADLINE


def test_a_fence_counts_only_for_the_request_that_has_its_slot() -> None:
    box = Box()
    a = box.open("a")
    box.inbox.take_fence(Fence(id="other", slot=a.record.slot, n=1, attempt=9))
    assert a.attempt == 0
    box.inbox.take_fence(Fence(id="a", slot=a.record.slot, n=1, attempt=2))
    box.inbox.take_frame(frame([a.record.slot], ["x"]), (1, 0))
    assert text(a) == ""


async def test_a_frame_of_another_version_is_read_once_and_what_follows_counts() -> None:
    box = Box()
    a = box.open("a")
    await box.wire.beat_gateway("g1", ttl_ms=60_000)
    made = frame([a.record.slot], ["x"])
    made.version = 99
    await box.engine.publish({"g1": made})

    async def refused() -> bool:
        return box.wire.foreign.counts["frame"] > 0

    await box.read_for_a_while(refused)
    await box.engine.publish({"g1": frame([a.record.slot], ["y"])})

    async def heard() -> bool:
        return text(a) == "y"

    await box.read_for_a_while(heard)
    assert box.wire.foreign.counts["frame"] == 1


def test_a_fault_in_one_requests_text_ends_that_request_only() -> None:
    box = Box()
    a, b = box.open("a", broken=True), box.open("b")
    box.inbox.take_frame(frame([a.record.slot, b.record.slot], ["x", "y"]), (1, 0))
    assert isinstance(a.failure, Internal)
    assert text(b) == "y"
    assert not b.ended


async def test_what_is_not_logged_is_not_trimmed() -> None:
    box = Box()
    a = box.open("a")
    await box.wire.beat_gateway("g1", ttl_ms=60_000)
    slot = a.record.slot
    for i, logged in ((0, 0), (1, 0), (2, 2)):
        await box.engine.publish({"g1": frame([slot], ["x"], first=i, logged=logged)})
        box.clock.advance(0.001)

    async def all_read() -> bool:
        return len(a.choices[0].tokens) == 3

    await box.read_for_a_while(all_read)
    box.clock.advance(31)
    await box.inbox.trim(age_s=30)
    left = await box.wire.read_out("g1", FIRST_FRAME, block_ms=0)
    assert [entry.item.firsts[0] for entry in left if isinstance(entry.item, Frame)] == [2]


async def test_what_is_young_is_not_trimmed_even_when_it_is_logged() -> None:
    box = Box()
    a = box.open("a")
    await box.wire.beat_gateway("g1", ttl_ms=60_000)
    await box.engine.publish({"g1": frame([a.record.slot], ["x"], logged=1)})

    async def all_read() -> bool:
        return len(a.choices[0].tokens) == 1

    await box.read_for_a_while(all_read)
    box.clock.advance(29)
    await box.inbox.trim(age_s=30)
    assert len(await box.wire.read_out("g1", FIRST_FRAME, block_ms=0)) == 1


async def test_what_was_not_read_is_not_trimmed_however_old_it_is() -> None:
    box = Box()
    a = box.open("a")
    await box.wire.beat_gateway("g1", ttl_ms=600_000)
    await box.engine.publish({"g1": frame([a.record.slot], ["x"], logged=1)})
    box.clock.advance(60)
    await box.inbox.trim(age_s=30)
    assert len(await box.wire.read_out("g1", FIRST_FRAME, block_ms=0)) == 1


async def test_an_outage_is_waited_out_and_told_once() -> None:
    box = Box()
    a = box.open("a")
    await box.wire.beat_gateway("g1", ttl_ms=60_000)
    box.broker.up = False
    reading = asyncio.create_task(box.inbox.read())
    await asyncio.sleep(0.15)  # more than one try
    assert b"backend_up 0.0" in box.metrics.registry.exposition()
    box.broker.up = True
    await box.engine.publish({"g1": frame([a.record.slot], ["x"])})

    async def arrived() -> bool:
        return text(a) == "x"

    await eventually(arrived)
    assert box.reconnected == 1
    assert b"backend_up 1.0" in box.metrics.registry.exposition()
    reading.cancel()
    await asyncio.wait([reading])


def test_frame_ids_compare_as_numbers() -> None:
    assert position(FrameId("9-10")) > position(FrameId("9-9"))
    assert position(FrameId("10-0")) > position(FrameId("9-99"))
    assert frame_id(position(FrameId("1800000000000-7"))) == "1800000000000-7"


class NotingWire(MemoryGatewayWire):
    """Notes when frames are asked for."""

    def __init__(self, broker: MemoryBroker, notes: list[str]) -> None:
        super().__init__(broker)
        self._notes = notes

    async def read_out(self, gateway: str, after: FrameId, *, block_ms: int) -> Sequence[OutEntry]:
        """As ever."""
        self._notes.append("asked")
        return await super().read_out(gateway, after, block_ms=block_ms)


async def test_readers_have_their_turn_before_more_is_asked_for() -> None:
    box, notes = Box(), list[str]()
    wire = NotingWire(box.broker, notes)
    inbox = Inbox(
        wire,
        "g1",
        box.clock,
        box.metrics,
        heard=lambda session, outcome, i: None,
        reconnected=box.count,
    )
    session = Session(
        RequestRecord(id="a", model="toy", n=1), choice_text=TEXT.choice, prompt_tokens=1, now=0.0
    )
    inbox.open(session)
    news = asyncio.Event()
    session.listeners.add(news.set)

    async def read() -> None:
        await news.wait()
        notes.append("sent")

    async def asked_once() -> bool:
        return notes == ["asked"]

    async def asked_again() -> bool:
        return notes.count("asked") == 2

    reading, reader = asyncio.create_task(inbox.read()), asyncio.create_task(read())
    await wire.beat_gateway("g1", ttl_ms=60_000)
    await eventually(asked_once)
    await box.engine.publish({"g1": frame([session.record.slot], ["x"])})
    await eventually(asked_again)
    assert notes == ["asked", "sent", "asked"]
    await reader
    reading.cancel()
    await asyncio.wait([reading])
