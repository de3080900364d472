"""Every way in which a call ends, and what its engine is told."""

from __future__ import annotations

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import RequestRecord
from headrace_gateway.errors import Draining, HandedOver, Internal
from headrace_gateway.inference.book import CLOSING_S, MAX_RATES, REMARK_S, Book
from headrace_gateway.inference.cancels import Cancels
from headrace_gateway.inference.inbox import Inbox
from headrace_gateway.inference.receipt import Receipts
from headrace_gateway.inference.running import OpenCall
from headrace_gateway.inference.session import Outcome, Session
from headrace_gateway.inference.tasks import Tasks
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.text.pipeline import TextPipeline
from headrace_kit.metrics import Registry
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.wire import toy_card, toy_files, toy_ids
from support.wires import record

TEXT = TextPipeline.from_card(toy_card(), toy_files())
CANCELLED, STOP, LENGTH = FinishReason.CANCELLED, FinishReason.STOP, FinishReason.LENGTH


class NotedCancels(Cancels):
    """Notes what it is asked for instead of sending it."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        super().__init__(MemoryGatewayWire(MemoryBroker()), Tasks(), metrics)
        self.asked: list[tuple[str, FinishReason, str, int | None]] = []

    def ask(
        self,
        model: str,
        request: str,
        reason: FinishReason,
        *,
        cause: str,
        choice: int | None = None,
    ) -> None:
        """Notes it."""
        self.asked.append((request, reason, cause, choice))


class Desk:
    """A book with its neighbours."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker(clock=self.clock)
        self.wire = wire = MemoryGatewayWire(self.broker)
        self.metrics = GatewayMetrics(Registry("gateway"))
        self.cancels = NotedCancels(self.metrics)
        self.mended: list[str] = []
        self.book = Book(
            wire,
            "g1",
            self.clock,
            cancels=self.cancels,
            receipts=Receipts(self.metrics, self.clock),
            mend=lambda session: self.mended.append(session.id),
        )
        self.inbox = Inbox(
            wire,
            "g1",
            self.clock,
            self.metrics,
            heard=self.book.heard,
            reconnected=lambda: None,
        )

    def open(self, *, prompts: int = 1, deadline_s: float | None = None) -> OpenCall:
        """A call with its slots."""
        sessions = [
            Session(
                RequestRecord(id=f"r.{i}", model="toy", n=1),
                choice_text=lambda: TEXT.choice(stop=("END",)),
                prompt_tokens=1,
                now=self.clock.monotonic(),
            )
            for i in range(prompts)
        ]
        for session in sessions:
            self.inbox.open(session)
        now = self.clock.monotonic()
        call = OpenCall(
            call_id="r",
            model="toy",
            kind="completion",
            key_id="k",
            tenant="t",
            n=1,
            sessions=sessions,
            names=TEXT,
            fingerprint="fp",
            created_ms=0,
            arrived=now,
            deadline=None if deadline_s is None else now + deadline_s,
        )
        self.book.enter(call)
        return call

    def say(self, session: Session, text: str) -> Outcome:
        """A row for it."""
        outcome = session.take_row(
            0,
            attempt=1,
            first=len(session.choices[0].tokens),
            tokens=toy_ids(text),
            logged=0,
            now=self.clock.monotonic(),
        )
        self.book.heard(session, outcome, 0)
        return outcome

    def look(self, *, grace_s: float = 0.0) -> list[OpenCall]:
        """One tick."""
        return list(self.book.look(grace_s=grace_s, inbox=self.inbox))


def test_ending_a_call_tells_every_engine_once() -> None:
    desk = Desk()
    call = desk.open(prompts=2)
    desk.book.end(call, CANCELLED, "request")
    desk.book.end(call, CANCELLED, "disconnect")
    assert desk.cancels.asked == [
        ("r.0", CANCELLED, "request", None),
        ("r.1", CANCELLED, "request", None),
    ]
    assert call.cause == "request"
    assert desk.book.unsettled == 0


def test_a_stop_string_is_told_and_told_again_when_the_engine_goes_on() -> None:
    desk = Desk()
    call = desk.open()
    [session] = call.sessions
    desk.say(session, "aENDx")
    assert desk.cancels.asked == [("r.0", STOP, "stop_string", 0)]
    desk.say(session, "yz")
    assert len(desk.cancels.asked) == 1
    desk.clock.advance(REMARK_S + 0.1)
    desk.say(session, "yz")
    assert len(desk.cancels.asked) == 2
    assert desk.book.unsettled == 0


def test_one_prompts_failure_ends_the_whole_call() -> None:
    desk = Desk()
    call = desk.open(prompts=2)
    call.sessions[0].fail(Internal("broken"), desk.clock.monotonic())
    desk.book.changed(call.sessions[0])
    assert call.ended
    assert [asked[:2] for asked in desk.cancels.asked] == [("r.1", CANCELLED)]


def test_a_deadline_ends_a_call_exactly_when_it_is_due() -> None:
    desk = Desk()
    call = desk.open(deadline_s=5)
    desk.clock.advance(4.9)
    desk.look()
    assert not call.ended
    desk.clock.advance(0.1)
    desk.look()
    assert call.sessions[0].choices[0].finish is FinishReason.DEADLINE
    assert desk.cancels.asked == [("r.0", FinishReason.DEADLINE, "deadline", None)]


def test_a_call_without_readers_is_given_once_when_its_grace_is_over() -> None:
    desk = Desk()
    call = desk.open()
    assert desk.look() == []
    call.left_at = desk.clock.monotonic()
    assert desk.look(grace_s=3) == []
    desk.clock.advance(3)
    assert desk.look(grace_s=3) == [call]
    assert desk.look(grace_s=3) == []


async def test_grace_that_is_over_cancels_what_the_server_does_not_know_better() -> None:
    desk = Desk()
    call = desk.open()
    await desk.book.grace_over(call)
    assert call.ended
    assert desk.cancels.asked == [("r.0", CANCELLED, "disconnect", None)]


@pytest.mark.parametrize("elsewhere", ["r.0", "r.1"])
async def test_grace_that_is_over_cancels_no_prompt_of_a_call_that_goes_elsewhere(
    elsewhere: str,
) -> None:
    desk = Desk()
    call = desk.open(prompts=2)
    for session in call.sessions:
        await desk.wire.submit(record(session.id, gateway="g1"), max_queued=9)
    await desk.wire.attach(elsewhere, "g2", 7, 0)  # and will come to the other one
    await desk.book.grace_over(call)
    assert call.moved
    assert call.ended
    assert desk.cancels.asked == []
    assert desk.book.unsettled == 0


async def test_grace_that_is_over_while_the_server_is_away_begins_anew() -> None:
    desk = Desk()
    call = desk.open()
    [session] = call.sessions
    await desk.wire.submit(record(session.id, gateway="g1"), max_queued=9)
    await desk.wire.attach(session.id, "g2", 7, 0)  # before it went away
    desk.broker.up = False
    await desk.book.grace_over(call)
    assert not call.ended
    assert desk.look(grace_s=3) == []
    desk.broker.up = True
    desk.clock.advance(3)
    assert desk.look(grace_s=3) == [call]
    await desk.book.grace_over(call)
    assert call.moved
    assert desk.cancels.asked == []


async def test_a_call_to_which_a_reader_comes_is_not_over() -> None:
    desk = Desk()
    call = desk.open()
    call.left_at = desk.clock.monotonic()
    call.coming = 1
    desk.clock.advance(9)
    assert desk.look(grace_s=3) == []
    call.coming = 0
    assert desk.look(grace_s=3) == [call]
    call.coming = 1  # while the server is asked
    await desk.book.grace_over(call)
    assert not call.ended
    call.coming = 0  # and did not arrive
    assert desk.look(grace_s=3) == []
    desk.clock.advance(3)
    assert desk.look(grace_s=3) == [call]


async def test_a_call_with_a_new_grace_is_not_ended_by_the_old_one() -> None:
    desk = Desk()
    call = desk.open()
    call.left_at = desk.clock.monotonic()  # a reader came and went while the server was asked
    await desk.book.grace_over(call)
    assert not call.ended


def test_a_call_that_was_taken_up_anew_stays_when_the_old_one_is_forgotten() -> None:
    desk = Desk()
    old = desk.open()
    new = desk.open()
    desk.book.drop(old, desk.inbox)
    assert desk.book.find("r") is new
    new.sessions[0].take_finish(0, LENGTH, None, "")
    desk.book.changed(new.sessions[0])
    assert new.reported


def test_so_many_models_have_a_rate_and_the_one_that_is_asked_for_stays() -> None:
    desk = Desk()
    first, second = desk.book.rate("m0"), desk.book.rate("m1")
    for i in range(2, MAX_RATES + 1):
        assert desk.book.rate("m0") is first
        desk.book.rate(f"m{i}")
    assert desk.book.rate("m0") is first
    assert desk.book.rate("m1") is not second


def test_an_ended_call_keeps_its_slots_until_the_engine_is_done_or_time_is_up() -> None:
    desk = Desk()
    call = desk.open()
    desk.book.end(call, CANCELLED, "request")
    desk.look()
    assert desk.book.find("r") is call
    desk.clock.advance(CLOSING_S)
    desk.look()
    assert desk.book.find("r") is None
    assert desk.inbox.sessions == []

    call = desk.open()
    call.sessions[0].take_finish(0, LENGTH, None, "")
    desk.book.changed(call.sessions[0])
    desk.look()
    assert desk.book.find("r") is None


@pytest.mark.parametrize(
    ("resumable", "keep_s", "kept"), [(True, 9, 1), (True, 0, 0), (False, 9, 0)]
)
def test_a_drain_ends_what_is_open_and_keeps_what_can_be_taken_up(
    resumable: bool, keep_s: float, kept: int
) -> None:
    desk = Desk()
    call = desk.open()
    call.resumable = resumable
    assert desk.book.let_go(keep_s=keep_s) == kept
    failure = call.sessions[0].failure
    assert isinstance(failure, Draining)
    assert isinstance(failure, HandedOver) == bool(kept)
    assert failure.retry_after_s == 1
    assert len(desk.cancels.asked) == 1 - kept
    assert desk.book.unsettled == 0


def test_a_drain_leaves_alone_what_has_ended() -> None:
    desk = Desk()
    call = desk.open()
    call.resumable = True
    call.sessions[0].take_finish(0, LENGTH, None, "")
    assert desk.book.let_go(keep_s=9) == 0
    assert call.sessions[0].failure is None
    assert desk.cancels.asked == []


def test_rows_that_came_before_the_call_was_entered_are_not_lost() -> None:
    desk = Desk()
    call = desk.open()
    [session] = call.sessions
    desk.book = Book(
        MemoryGatewayWire(MemoryBroker()),
        "g1",
        desk.clock,
        cancels=desk.cancels,
        receipts=Receipts(desk.metrics, desk.clock),
        mend=lambda _session: None,
    )
    session.take_finish(0, LENGTH, None, "")
    desk.book.heard(session, Outcome.NEWS, 0)  # nobody knows it yet
    desk.book.enter(call)
    assert call.reported
    assert desk.book.unsettled == 0


def test_rows_that_are_early_are_mended_and_beginnings_are_counted() -> None:
    desk = Desk()
    [session] = desk.open().sessions
    outcome = session.take_row(
        0, attempt=1, first=3, tokens=[1], logged=0, now=desk.clock.monotonic()
    )
    desk.book.heard(session, outcome, 0)
    assert desk.mended == ["r.0"]
    desk.clock.advance(7)
    assert desk.book.rate("toy").advise(desk.clock.monotonic()) == 7
