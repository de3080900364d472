"""What follows a claim: the order of the steps, and what an error in between leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb.queue_pb2 import CancelMark, Fence, Frame, LogEntry, Usage
from headrace_transport.claims import Claims, Taken
from headrace_transport.damaged import Damaged
from headrace_transport.endings import Ending, finish_row
from headrace_transport.errors import TransportUnavailable
from headrace_transport.foreign import Foreign
from headrace_transport.interface import FrameId, Logged, OutEntry, Renewed, Settled
from headrace_transport.records import encode
from support.wires import GATEWAY, MODEL, mark, record


def taken(name: str = "r1") -> Taken:
    """A first attempt with nothing special."""
    return Taken(
        id=name,
        attempt=1,
        crashes=0,
        verdict="run",
        gateway=GATEWAY,
        slot=10,
        n=1,
        prompt_tokens=3,
        begun=False,
        past=(),
        record=encode(record(name)),
        marks=(),
    )


class Steps:
    """Answers each step from a list, and writes down what was asked."""

    def __init__(self, *rounds: Sequence[Taken]) -> None:
        self.rounds = list(rounds)
        self.calls: list[str] = []
        self.posted: list[Frame | Fence] = []
        self.reasons: list[FinishReason] = []
        self.credits: list[int] = []
        self.fail_at: str | None = None
        self.lost: set[str] = set()
        self.log: list[LogEntry] = []

    def _call(self, name: str) -> None:
        if self.fail_at == name:
            self.fail_at = None
            raise TransportUnavailable("now")
        self.calls.append(name)

    async def take(self, model: str, engine: str, *, credit: int, lease_ms: int) -> Sequence[Taken]:
        self._call("take")
        self.credits.append(credit)
        return self.rounds.pop(0) if self.rounds else []

    async def renew(
        self, model: str, engine: str, attempts: Mapping[str, int], *, lease_ms: int
    ) -> Renewed:
        self._call("renew")
        return Renewed(lost=[name for name in attempts if name in self.lost], cancelled={})

    async def post(self, entries: Sequence[tuple[str, Frame | Fence]]) -> Sequence[FrameId | None]:
        self._call("post")
        self.posted += [item for _, item in entries]
        return [FrameId(f"{100 + i}-0") for i in range(len(entries))]

    async def log_of(self, request: str) -> Sequence[LogEntry]:
        self._call("log")
        return self.log

    async def frames_of(
        self, gateway: str, after: FrameId, before: FrameId | None
    ) -> Sequence[OutEntry]:
        self._call("frames")
        return []

    async def append_log(self, engine: str, request: str, attempt: int, entry: LogEntry) -> Logged:
        self._call("append")
        return Logged(ours=True, lengths=())

    async def finish(
        self,
        model: str,
        engine: str,
        request: str,
        attempt: int,
        *,
        entry: LogEntry,
        reason: FinishReason,
        usage: Usage,
    ) -> Settled:
        self._call("finish")
        self.reasons.append(reason)
        return Settled(ours=True)

    async def bury(
        self, model: str, engine: str, request: str, attempt: int, *, why: str, usage: Usage
    ) -> Settled:
        self._call("bury")
        return Settled(ours=True)


async def claimed(steps: Steps, claims: Claims | None = None, *, credit: int = 4) -> list[str]:
    got = await (claims or Claims(steps, Foreign(Damaged()))).claim(
        MODEL, "e-1", credit=credit, lease_ms=100
    )
    return [each.record.id for each in got]


async def test_fence_comes_before_the_log_and_the_log_before_the_frames() -> None:
    steps = Steps([replace(taken(), attempt=2, begun=True)])
    assert await claimed(steps) == ["r1"]
    assert steps.calls == ["take", "post", "log", "frames"]
    assert steps.posted == [Fence(version=1, id="r1", slot=10, n=1, attempt=2)]


async def test_first_attempt_costs_one_step() -> None:
    steps = Steps([taken("r1"), taken("r2")])
    assert await claimed(steps) == ["r1", "r2"]
    assert steps.calls == ["take"]


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        (replace(taken(), marks=(mark(),)), FinishReason.CANCELLED),
        (replace(taken(), marks=(mark(FinishReason.STOP, choice=0),)), FinishReason.STOP),
        (replace(taken(), verdict="expired"), FinishReason.DEADLINE),
    ],
)
async def test_gateway_is_told_before_the_request_is_finished(
    over: Taken, reason: FinishReason
) -> None:
    steps = Steps([over, taken("r2")])
    assert await claimed(steps) == ["r2"]
    assert steps.calls == ["take", "post", "finish", "take"]
    assert steps.reasons == [reason]


async def test_a_request_whose_choices_had_all_ended_ends_as_the_worst_of_them() -> None:
    steps = Steps([replace(taken(), n=2, begun=True, record=encode(record("r1", n=2)))])
    done = LogEntry(version=1, attempt=1, choices=[0, 1], firsts=[0, 0], counts=[0, 0])
    for row, reason in enumerate((FinishReason.STOP, FinishReason.ERROR)):
        done.finishes.append(finish_row(row, Ending(reason), Usage()))
    steps.log = [done]
    assert await claimed(steps) == []
    assert steps.reasons == [FinishReason.ERROR]


@pytest.mark.parametrize(
    "over",
    [
        replace(taken(), verdict="poison", crashes=3),
        replace(taken(), verdict="lost", record=b""),
        replace(taken(), record=b"\xff\xff"),
        replace(taken(), record=b"\x08\x07"),
        replace(taken(), record=encode(record("other"))),
    ],
)
async def test_dead_letter_is_told_and_then_buried(over: Taken) -> None:
    steps = Steps([over])
    assert await claimed(steps) == []
    assert steps.calls == ["take", "post", "bury", "take"]
    (frame,) = steps.posted
    assert isinstance(frame, Frame)
    assert frame.finishes[0].reason == FinishReason.ERROR
    assert frame.finishes[0].code in (Code.POISONED, Code.INTERNAL)


async def test_mark_of_one_choice_goes_with_the_request() -> None:
    stop = mark(FinishReason.STOP, choice=1)
    two = record("r1", n=2)
    steps = Steps([replace(taken(), n=2, marks=(stop,), record=encode(two))])
    (got,) = await Claims(steps, Foreign(Damaged())).claim(MODEL, "e-1", credit=1, lease_ms=100)
    assert list[CancelMark](got.cancels) == [stop]


async def test_credit_that_was_spent_on_ends_is_claimed_again() -> None:
    steps = Steps([replace(taken(), verdict="expired"), taken("r2")], [taken("r3")])
    assert await claimed(steps, credit=2) == ["r2", "r3"]
    assert steps.credits == [2, 1]


async def test_ends_do_not_make_a_claim_endless() -> None:
    steps = Steps(*([replace(taken(f"r{i}"), verdict="expired")] for i in range(50)))
    assert await claimed(steps, credit=1) == []
    assert steps.calls.count("take") <= 4


@pytest.mark.parametrize("step", ["post", "log", "frames", "finish"])
async def test_what_was_taken_before_an_error_is_given_by_the_next_call(step: str) -> None:
    steps = Steps(
        [replace(taken(), attempt=2, begun=True), replace(taken("r2"), verdict="expired")]
    )
    claims = Claims(steps, Foreign(Damaged()))
    steps.fail_at = step
    with pytest.raises(TransportUnavailable):
        await claimed(steps, claims)
    assert await claimed(steps, claims) == ["r1"]
    assert steps.reasons == [FinishReason.DEADLINE]


async def test_what_was_taken_before_an_error_and_lost_since_is_forgotten() -> None:
    steps = Steps([replace(taken("r1"), attempt=2, begun=True)])
    claims = Claims(steps, Foreign(Damaged()))
    steps.fail_at = "log"
    with pytest.raises(TransportUnavailable):
        await claimed(steps, claims)
    steps.lost, steps.posted = {"r1"}, []
    assert await claimed(steps, claims) == []
    assert steps.posted == []
