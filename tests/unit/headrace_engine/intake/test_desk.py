"""The desk: holdings, book and door, changed together."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.queue_pb2 import CancelMark, RowFinish
from headrace_engine.errors import EngineDraining
from headrace_engine.intake.book import RowBook
from headrace_engine.intake.desk import Desk
from headrace_engine.intake.held import Held, Holdings
from headrace_engine.intake.spans import Spans
from headrace_engine.metrics import EngineMetrics
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.request import Request, Sampling
from headrace_kit.metrics import Registry
from headrace_kit.traces import Tracing
from support.clock import FakeClock
from support.fake_engine import FakeEngine
from support.held import make_held


class DeskBench:
    """A desk with a fake engine."""

    def __init__(self) -> None:
        self.fake = FakeEngine()
        self.desk = Desk(
            door=self.fake,
            holdings=Holdings(slots=4, max_waiting=0),
            book=RowBook(),
            metrics=EngineMetrics(Registry("engine")),
            spans=Spans(Tracing(), FakeClock()),
        )

    def take(self, held: Held) -> None:
        """Opens and pushes a request."""
        self.desk.open(held, [0] * held.choices)
        self.desk.push(held, request_of(held))


def request_of(held: Held) -> Request:
    """The engine's view of a held request."""
    return Request(
        id=held.id,
        handle=held.handle,
        prompt=np.array([1, 2], np.int32),
        sampling=Sampling(max_new_tokens=2),
        n=held.choices,
    )


def mark(choice: int | None = None) -> CancelMark:
    """A cancel mark."""
    return CancelMark(reason=codes_pb2.FINISH_REASON_STOP, choice=choice)


def test_what_was_pushed_uses_credit_until_it_has_ended() -> None:
    bench = DeskBench()
    held = make_held(n=3)
    bench.take(held)
    assert bench.desk.holdings.credit == 1

    for _ in range(2):
        bench.desk.seen(bench.fake.step())

    assert bench.desk.holdings.credit == 4
    assert bench.desk.room.is_set()
    assert held.started


def test_a_refused_push_uses_no_credit() -> None:
    bench = DeskBench()
    bench.fake.draining = True

    with pytest.raises(EngineDraining):
        bench.take(make_held())

    assert bench.desk.holdings.credit == 4


def test_letting_go_stops_the_engine_and_forgets_the_rows() -> None:
    bench = DeskBench()
    held = make_held()
    bench.take(held)

    bench.desk.let_go(held, "lost")
    bench.desk.let_go(held, "lost")

    assert bench.fake.cancels == [Cancel(held.handle, FinishReason.CANCELLED)]
    assert (len(bench.desk.holdings), len(bench.desk.book)) == (0, 0)
    assert bench.desk.holdings.credit == 3  # until the engine says that it is gone


def test_marks_name_a_choice_or_all_of_them() -> None:
    bench = DeskBench()
    held = make_held(n=2)
    bench.take(held)

    bench.desk.cancel_marked("r1", [mark(1), mark()])
    bench.desk.cancel_marked("unknown", [mark()])

    assert bench.fake.cancels == [
        Cancel(held.handle, FinishReason.STOP, 1),
        Cancel(held.handle, FinishReason.STOP, None),
    ]


def test_a_mark_for_a_choice_that_has_ended_changes_nothing() -> None:
    bench = DeskBench()
    held = make_held(n=2)
    bench.take(held)
    held.ends[1] = RowFinish()

    bench.desk.cancel_marked("r1", [mark(1)])

    assert bench.fake.cancels == []


@pytest.mark.parametrize("damaged", [b"", b"\x08\x4d"], ids=["empty", "unknown reason"])
def test_a_mark_whose_reason_is_not_known_here_is_a_cancel(damaged: bytes) -> None:
    bench = DeskBench()
    held = make_held()
    bench.take(held)

    bench.desk.cancel_marked("r1", [CancelMark.FromString(damaged)])

    assert bench.fake.cancels == [Cancel(held.handle, FinishReason.CANCELLED, None)]
