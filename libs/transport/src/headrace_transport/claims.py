"""What follows a claim, alike over every server: fences, take-over, and ends on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.limits import SUSPECT_CRASHES, WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import (
    CancelMark,
    Fence,
    Frame,
    LogEntry,
    RequestRecord,
    Usage,
)

from headrace_transport.endings import (
    EXPIRED,
    Ending,
    ending_of,
    terminal_entry,
    terminal_frame,
    total_usage,
    worst,
)
from headrace_transport.foreign import Foreign
from headrace_transport.interface import (
    FIRST_FRAME,
    Claimed,
    FrameId,
    Logged,
    OutEntry,
    Renewed,
    Settled,
)
from headrace_transport.replies import decoded
from headrace_transport.takeover import (
    Delivered,
    add_frames,
    ended_entries,
    frame_order,
    frames_from,
    from_log,
    missing_entry,
)

_ROUNDS = 4
"""Claims in one call, when those before it found only requests that were over."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A request whose lease was taken, before anybody looked at it."""

    id: str
    attempt: int
    crashes: int
    verdict: Literal["run", "poison", "expired", "lost"]
    gateway: str
    slot: int
    n: int
    prompt_tokens: int
    begun: bool
    """Whether an earlier attempt may have delivered something."""
    past: Sequence[tuple[str, int]]
    """Gateways and slots that read it before an attach."""
    record: bytes
    marks: Sequence[CancelMark]


class ClaimSteps(Protocol):
    """What a claim needs of the server, step by step."""

    async def take(
        self, model: str, engine: str, *, credit: int, lease_ms: int
    ) -> Sequence[Taken]: ...

    async def renew(
        self, model: str, engine: str, attempts: Mapping[str, int], *, lease_ms: int
    ) -> Renewed: ...

    async def post(
        self, entries: Sequence[tuple[str, Frame | Fence]]
    ) -> Sequence[FrameId | None]: ...

    async def log_of(self, request: str) -> Sequence[LogEntry]: ...

    async def frames_of(
        self, gateway: str, after: FrameId, before: FrameId | None
    ) -> Sequence[OutEntry]:
        """Entries between two ids, both excluded; all after ``after`` when ``before`` is None."""
        ...

    async def append_log(
        self, engine: str, request: str, attempt: int, entry: LogEntry
    ) -> Logged: ...

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
    ) -> Settled: ...

    async def bury(
        self, model: str, engine: str, request: str, attempt: int, *, why: str, usage: Usage
    ) -> Settled: ...


class Claims:
    """Claims of one engine process.

    What was taken and not yet looked through survives an error in between: the next call goes
    on with what of it is still ours, so that a short outage is not counted as a crash of innocent
    requests, and a server that came back empty is not told about leases of its former life.
    """

    def __init__(self, steps: ClaimSteps, foreign: Foreign) -> None:
        self._steps = steps
        self._foreign = foreign
        self._taken: list[Taken] = []

    async def claim(self, model: str, engine: str, *, credit: int, lease_ms: int) -> list[Claimed]:
        """See ``EngineWire.claim``."""
        claimed: list[Claimed] = []
        if self._taken:
            await self._keep_ours(model, engine, lease_ms)
        for _ in range(_ROUNDS):
            wanted = credit - len(claimed) - len(self._taken)
            if wanted > 0:
                self._taken += await self._steps.take(
                    model, engine, credit=wanted, lease_ms=lease_ms
                )
            if not self._taken:
                break
            ended = await self._look_through(model, engine, claimed)
            if not ended:
                break
        return claimed

    async def _keep_ours(self, model: str, engine: str, lease_ms: int) -> None:
        attempts = {each.id: each.attempt for each in self._taken}
        renewed = await self._steps.renew(model, engine, attempts, lease_ms=lease_ms)
        self._taken = [each for each in self._taken if each.id not in renewed.lost]

    async def _look_through(self, model: str, engine: str, claimed: list[Claimed]) -> bool:
        """Moves what was taken to ``claimed``, or ends it; True when anything ended."""
        found = await self._take_over(engine, self._taken)
        ended = False
        ready: list[Claimed] = []
        for taken in self._taken:
            outcome = self._outcome(taken, found[taken.id])
            if isinstance(outcome, Claimed):
                ready.append(outcome)
            else:
                await self._end(model, engine, taken, found[taken.id], outcome)
                ended = True
        self._taken = []
        claimed += ready
        return ended

    # take-over
    async def _take_over(self, engine: str, taken: Sequence[Taken]) -> Mapping[str, Delivered]:
        """What each request delivered before; afterwards its log holds all of it."""
        found = {each.id: Delivered(tokens=[[] for _ in range(each.n)]) for each in taken}
        begun = [each for each in taken if each.begun]
        if not begun:
            return found
        # The order is the rule: first the fence, then the log, then the frames before the fence.
        fences = await self._steps.post([(each.gateway, _fence(each)) for each in begun])
        logs = {each.id: await self._steps.log_of(each.id) for each in begun}
        frames = await self._frames(begun, logs, fences)
        for each, fence in zip(begun, fences, strict=True):
            log = logs[each.id]
            delivered = found[each.id] = self._delivered(each, log)
            if delivered.foreign_version is not None:
                continue  # nothing is added to what cannot be read
            oldest = max((entry.attempt for entry in log), default=0)
            for gateway, slot in [*each.past, (each.gateway, each.slot)]:
                own = fence if gateway == each.gateway else None
                entries = [
                    entry
                    for entry in frames[gateway]
                    if own is None or frame_order(entry.id) < frame_order(own)
                ]
                add_frames(delivered, entries, slot=slot, attempt=oldest, before=each.attempt)
            missing = missing_entry(
                delivered, attempt=each.attempt, frame=fence or FrameId(FIRST_FRAME)
            )
            if missing is not None:
                await self._steps.append_log(engine, each.id, each.attempt, missing)
        return found

    def _delivered(self, taken: Taken, log: Sequence[LogEntry]) -> Delivered:
        """What the log holds; of one with an entry of another version, nothing but that."""
        for entry in log:
            if not self._foreign.is_ours("log", entry.version):
                none: list[list[int]] = [[] for _ in range(taken.n)]
                return Delivered(tokens=none, foreign_version=entry.version)
        return from_log(taken.n, log)

    async def _frames(
        self,
        begun: Sequence[Taken],
        logs: Mapping[str, Sequence[LogEntry]],
        fences: Sequence[FrameId | None],
    ) -> Mapping[str, Sequence[OutEntry]]:
        """The frames to look at, read once per gateway."""
        starts: dict[str, FrameId] = {}
        ends: dict[str, FrameId | None] = {}
        for each, fence in zip(begun, fences, strict=True):
            start = frames_from(each.n, logs[each.id])
            for gateway in {each.gateway, *(gateway for gateway, _ in each.past)}:
                starts[gateway] = min(starts.get(gateway, start), start, key=frame_order)
                ends.setdefault(gateway, None)
            if fence is not None:
                last = ends[each.gateway]
                ends[each.gateway] = fence if last is None else max(last, fence, key=frame_order)
        return {
            gateway: await self._steps.frames_of(gateway, starts[gateway], ends[gateway])
            for gateway in starts
        }

    def _outcome(self, taken: Taken, found: Delivered) -> Claimed | Ending | None:
        """A request to run, or why it ends; None: it had ended, and only finishing it was left."""
        if found.foreign_version is not None:
            return _unreadable(taken, _foreign("its resume log", found.foreign_version))
        if taken.begun and found.complete:
            return None
        if taken.verdict == "poison":
            return Ending(
                FinishReason.ERROR,
                Code.POISONED,
                f"request {taken.id} was given up: {taken.crashes} engines died while they ran it",
                dead_letter=f"{taken.crashes} engines died while they ran it",
            )
        if taken.verdict == "lost":
            return _unreadable(taken, "its record is gone or too large")
        whole = [mark for mark in taken.marks if taken.n == 1 or not mark.HasField("choice")]
        if whole:
            return ending_of(whole[0])
        if taken.verdict == "expired":
            return EXPIRED
        record = self._decoded(taken)
        if isinstance(record, Ending):
            return record
        return Claimed(
            record=record,
            attempt=taken.attempt,
            crashes=taken.crashes,
            delivered=found.tokens,
            ended=ended_entries(found, attempt=taken.attempt),
            cancels=taken.marks,
            alone=taken.crashes >= SUSPECT_CRASHES,
        )

    def _decoded(self, taken: Taken) -> RequestRecord | Ending:
        record = decoded(RequestRecord, taken.record)
        if not self._foreign.is_ours("record", record.version):
            return _unreadable(taken, _foreign("its record", record.version))
        if record.id != taken.id or record.n != taken.n:
            return _unreadable(taken, "its record is another request's")
        record.gateway = taken.gateway
        record.slot = taken.slot
        return record

    # ends
    async def _end(
        self, model: str, engine: str, taken: Taken, found: Delivered, ending: Ending | None
    ) -> None:
        """Ends a request: its gateway is told first, so that a crash in between repeats that."""
        lengths = [len(tokens) for tokens in found.tokens]
        if ending is None:
            finishes = [found.ends[choice] for choice in range(taken.n)]
            await self._steps.finish(
                model,
                engine,
                taken.id,
                taken.attempt,
                entry=LogEntry(),
                reason=worst(FinishReason(finish.reason) for finish in finishes),
                usage=total_usage(finishes, prompt_tokens=taken.prompt_tokens),
            )
            return
        frame = terminal_frame(
            slot=taken.slot,
            attempt=taken.attempt,
            lengths=lengths,
            ending=ending,
            prompt_tokens=taken.prompt_tokens,
        )
        usage = total_usage(list(frame.finishes), prompt_tokens=taken.prompt_tokens)
        await self._steps.post([(taken.gateway, frame)])
        if ending.dead_letter:
            await self._steps.bury(
                model, engine, taken.id, taken.attempt, why=ending.dead_letter, usage=usage
            )
            return
        await self._steps.finish(
            model,
            engine,
            taken.id,
            taken.attempt,
            entry=terminal_entry(frame, slot=taken.slot, attempt=taken.attempt),
            reason=ending.reason,
            usage=usage,
        )


def _fence(taken: Taken) -> Fence:
    return Fence(
        version=WIRE_VERSION, id=taken.id, slot=taken.slot, n=taken.n, attempt=taken.attempt
    )


def _foreign(what: str, version: int) -> str:
    return f"{what} has version {version}, not {WIRE_VERSION}" if version else f"{what} is damaged"


def _unreadable(taken: Taken, why: str) -> Ending:
    return Ending(
        FinishReason.ERROR,
        Code.INTERNAL,
        f"request {taken.id} cannot be run: {why}",
        dead_letter=why,
    )
