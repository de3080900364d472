"""One model's work in memory: what ``scripts/*.lua`` do, as plain Python.

Every method is one atomic step, as one script is. Nothing here awaits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from headrace_contracts.codes import FinishReason
from headrace_contracts.keys import BANDS
from headrace_contracts.limits import GENERATED_WEIGHT, MAX_CRASHES, SUSPECT_CRASHES
from headrace_contracts.pb.queue_pb2 import CancelMark, LogEntry, RequestRecord, Usage

from headrace_transport.claims import Taken
from headrace_transport.errors import ConcurrencyExceeded, QueueFull, RequestConflict
from headrace_transport.interface import MAX_AHEAD, Logged, Queued
from headrace_transport.memory_streams import Bell, Stream
from headrace_transport.replies import decoded


@dataclass(slots=True)
class Work:
    """One request: its state, its lease and its log.

    Invariants
        owner is not None  iff  status == "running"
        finish is not None  iff  status == "finished"
    """

    record: RequestRecord
    data: bytes
    """The record as it was sent."""
    created_ms: int
    attempt: int
    gateway: str
    slot: int
    log: Stream[LogEntry]
    status: Literal["queued", "running", "finished"] = "queued"
    lengths: list[int] = field(default_factory=list[int])
    crashes: int = 0
    alone: bool = False
    begun: bool = False
    owner: str | None = None
    expires_ms: int = 0
    past: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    marks: dict[int | None, CancelMark] = field(default_factory=dict[int | None, CancelMark])
    """By choice; None is the request's own."""
    reserved_ms: float = inf
    """Until when it counts against its key's concurrency, unless it ends before, unix ms."""
    last_owner: str | None = None
    """Who finished it."""
    finish: FinishReason | None = None
    usage: Usage | None = None
    finished_ms: int = 0

    @property
    def deadline_ms(self) -> float:
        """Unix ms; infinite without one."""
        return self.record.deadline_ms or inf

    def is_of(self, engine: str, attempt: int) -> bool:
        """Whether that engine runs it at that attempt."""
        return self.owner == engine and self.attempt == attempt


@dataclass(slots=True)
class DeadLetter:
    """What is kept of a poison request."""

    id: str
    why: str


class ModelWork:
    """Queues, leases and counters of one model. ``requests`` holds those of all models, by id."""

    def __init__(
        self,
        model: str,
        now_ms: Callable[[], int],
        requests: dict[str, Work],
    ) -> None:
        self._model = model
        self._now_ms = now_ms
        self._requests = requests
        self.bell = Bell()
        self.dead_letters: list[DeadLetter] = []
        self.weights: dict[str, float] = {}
        self._queues: dict[tuple[int, str], deque[str]] = {}
        self._active: list[dict[str, float]] = [{} for _ in range(BANDS)]
        self._idle: list[dict[str, float]] = [{} for _ in range(BANDS)]
        self._floors = [0.0] * BANDS
        self._orphans: list[str] = []
        self._suspects: list[str] = []
        self._quarantine: tuple[str, int] | None = None

    # the gateway's side
    def submit(
        self,
        record: RequestRecord,
        data: bytes,
        *,
        max_queued: int,
        max_concurrency: int | None,
        resume: LogEntry | None,
        lengths: list[int],
        reserved_ms: float = inf,
    ) -> Queued:
        """As ``submit.lua``."""
        known = self._requests.get(record.id)
        if known is not None and known.status == "finished":
            raise RequestConflict(request=record.id)
        depth = self.depth()
        if known is not None:
            return Queued(depth=depth)
        if depth >= max_queued:
            raise QueueFull(depth=depth, limit=max_queued)
        self._check_concurrency(record, max_concurrency)
        work = Work(
            record=record,
            data=data,
            created_ms=self._now_ms(),
            attempt=record.attempt,
            gateway=record.gateway,
            slot=record.slot,
            log=Stream(self._now_ms),
            lengths=lengths or [0] * record.n,
            begun=resume is not None,
            reserved_ms=reserved_ms,
        )
        if resume is not None:
            work.log.append(resume)
        self._requests[record.id] = work
        self._queues.setdefault((record.band, record.tenant), deque()).append(record.id)
        self._activate(record.band, record.tenant)
        self.bell.ring()
        return Queued(depth=depth + 1)

    def depth(self) -> int:
        """Queued requests whose deadline has not passed."""
        now = self._now_ms()
        return sum(work.status == "queued" and work.deadline_ms > now for work in self._mine())

    def resumes(self, request: str) -> bool:
        """Whether it lost its engine and waits for another."""
        return request in self._orphans or request in self._suspects

    def ahead(self, request: str) -> int | None:
        """Queued requests before it in its queue, as ``standing.lua``."""
        work = self._requests.get(request)
        if work is None or work.status != "queued" or self.resumes(request):
            return None
        before = 0
        for other in self._queues.get((work.record.band, work.record.tenant), ()):
            if other == request:
                break
            before += other in self._requests and self._requests[other].status == "queued"
        return min(before, MAX_AHEAD)

    def mark(self, request: str, mark: CancelMark) -> Literal["unknown", "ended", "marked"]:
        """As ``cancel.lua``, without frame and nudge."""
        work = self._requests.get(request)
        if work is None or work.status == "finished":
            return "unknown"
        if work.status == "queued" and (work.record.n == 1 or not mark.HasField("choice")):
            return "ended"
        work.marks[mark.choice if mark.HasField("choice") else None] = mark
        return "marked"

    def expired(self) -> list[str]:
        """Queued requests whose deadline has passed."""
        now = self._now_ms()
        return [
            work.record.id
            for work in self._mine()
            if work.status == "queued" and work.deadline_ms <= now
        ]

    def marked(self) -> dict[str, CancelMark]:
        """Requests that were cancelled whole at an engine, and lost it. Of one choice, the choice's
        mark is the request's.
        """
        marks = {
            work.record.id: work.marks.get(None)
            or (work.marks.get(0) if work.record.n == 1 else None)
            for work in self._mine()
            if not work.owner
        }
        return {request: mark for request, mark in marks.items() if mark is not None}

    def stranded(self, gone: Callable[[str], bool]) -> list[str]:
        """Live requests of gateways that are gone."""
        return [
            work.record.id
            for work in self._mine()
            if work.status != "finished" and gone(work.gateway)
        ]

    def end(self, work: Work, reason: FinishReason, usage: Usage) -> None:
        """The one place where a request ends, as ``end_request`` in ``common.lua``."""
        request = work.record.id
        for waiting in (self._orphans, self._suspects):
            if request in waiting:
                waiting.remove(request)
        work.status = "finished"
        work.finish, work.usage, work.finished_ms = reason, usage, self._now_ms()
        work.owner = None
        work.marks.clear()

    # the engine's side
    def take(self, engine: str, *, credit: int, lease_ms: int, sweep: bool = True) -> list[Taken]:
        """As ``claim.lua``."""
        if sweep:
            self.sweep()
        rows: list[Taken] = []
        if credit <= 0 or self._secluded(engine, lease_ms, rows):
            return rows
        while len(rows) < credit and self._orphans:
            work = self._requests[self._orphans.pop(0)]
            rows.append(self._lease(work, engine, lease_ms, alone=False))
        for band in range(BANDS):
            self._walk(band, engine, credit, lease_ms, rows)
        if not self._orphans and not any(self._active):
            self.bell.hush()
        else:
            self.bell.ring(at_most=1)
        return rows

    def renew(
        self, engine: str, attempts: Mapping[str, int], *, lease_ms: int
    ) -> tuple[list[str], dict[str, Sequence[CancelMark]]]:
        """As ``renew.lua``: the lost ids, and marks by id."""
        lost: list[str] = []
        cancelled: dict[str, Sequence[CancelMark]] = {}
        for request, attempt in attempts.items():
            work = self._requests.get(request)
            if work is None or not work.is_of(engine, attempt):
                lost.append(request)
                continue
            work.expires_ms = self._now_ms() + lease_ms
            if work.marks:
                cancelled[request] = marks_of(work)
        return lost, cancelled

    def release(self, engine: str, attempts: Mapping[str, int]) -> None:
        """As ``release.lua``."""
        for request, attempt in attempts.items():
            work = self._requests.get(request)
            if work is not None and work.is_of(engine, attempt):
                self._orphan(work)
                self.bell.ring()

    def expire_leases(self, engines: Collection[str]) -> int:
        """Ends the leases of ``engines`` now, as ``supersede.lua``; how many there were."""
        leased = [work for work in self._mine() if work.owner in engines]
        for work in leased:
            work.expires_ms = self._now_ms()
            self.bell.ring()
        return len(leased)

    def finish(
        self,
        engine: str,
        request: str,
        attempt: int,
        *,
        entry: LogEntry,
        reason: FinishReason,
        usage: Usage,
    ) -> bool:
        """As ``finish.lua``."""
        work = self._requests.get(request)
        if work is None:
            return False
        if work.status == "finished":
            return work.last_owner == engine and work.attempt == attempt
        if not work.is_of(engine, attempt):
            return False
        if entry.choices:
            work.log.append(decoded(LogEntry, entry.SerializeToString()))
        self.end(work, reason, usage)
        generated = usage.completion_tokens * GENERATED_WEIGHT
        self._charge(work.record.band, work.record.tenant, generated)
        return True

    def bury(self, engine: str, request: str, attempt: int, *, why: str, usage: Usage) -> bool:
        """As ``bury.lua``."""
        work = self._requests.get(request)
        if work is None or not work.is_of(engine, attempt):
            return False
        self.dead_letters.append(DeadLetter(id=request, why=why))
        self.end(work, FinishReason.ERROR, usage)
        return True

    def _mine(self) -> list[Work]:
        return [work for work in self._requests.values() if work.record.model == self._model]

    def _check_concurrency(self, record: RequestRecord, limit: int | None) -> None:
        if not limit or not record.key_id:
            return
        key, now = (record.tenant, record.key_id), self._now_ms()
        running = sum(
            work.status != "finished"
            and work.reserved_ms > now
            and (work.record.tenant, work.record.key_id) == key
            for work in self._requests.values()
        )
        if running >= limit:
            raise ConcurrencyExceeded(running=running, limit=limit)

    # leases
    def sweep(self) -> bool:
        """As in ``common.lua``; whether any lease had expired."""
        now = self._now_ms()
        lapsed = [
            work for work in self._mine() if work.owner is not None and work.expires_ms <= now
        ]
        for work in sorted(lapsed, key=lambda each: each.expires_ms):
            work.crashes += 1
            self._orphan(work)
        return bool(lapsed)

    def _orphan(self, work: Work) -> None:
        work.status, work.owner, work.last_owner = "queued", None, None
        suspect = SUSPECT_CRASHES <= work.crashes < MAX_CRASHES
        (self._suspects if suspect else self._orphans).append(work.record.id)

    def _lease(self, work: Work, engine: str, lease_ms: int, *, alone: bool) -> Taken:
        now = self._now_ms()
        work.attempt += 1
        begun = work.begun or work.attempt > 1
        work.status, work.owner, work.last_owner = "running", engine, engine
        work.alone, work.begun, work.expires_ms = alone, True, now + lease_ms
        verdict: Literal["run", "poison", "expired"] = "run"
        if work.crashes >= MAX_CRASHES:
            verdict = "poison"
        elif work.deadline_ms <= now:
            verdict = "expired"
        return Taken(
            id=work.record.id,
            attempt=work.attempt,
            crashes=work.crashes,
            verdict=verdict,
            gateway=work.gateway,
            slot=work.slot,
            n=work.record.n,
            prompt_tokens=len(work.record.prompt),
            begun=begun,
            past=tuple(work.past),
            record=work.data,
            marks=marks_of(work),
        )

    def _secluded(self, engine: str, lease_ms: int, rows: list[Taken]) -> bool:
        held = [work for work in self._mine() if work.owner == engine]
        if len(held) == 1 and held[0].alone:
            return True
        if not self._suspects:
            return False
        if not held:
            suspect = self._requests[self._suspects.pop(0)]
            if self._quarantine is not None and self._quarantine[0] == engine:
                self._quarantine = None
            rows.append(self._lease(suspect, engine, lease_ms, alone=True))
            return True
        now = self._now_ms()
        chosen = self._quarantine
        if chosen is not None and chosen[0] != engine and chosen[1] > now:
            return False
        self._quarantine = (engine, now + lease_ms)
        return True

    # tenants
    def _walk(self, band: int, engine: str, credit: int, lease_ms: int, rows: list[Taken]) -> None:
        active = self._active[band]
        while len(rows) < credit and active:
            tenant = min(active, key=lambda name: (active[name], name))
            queue = self._queues.get((band, tenant))
            if not queue:
                self._retire_tenant(band, tenant)
                continue
            self._look(band, tenant, queue.popleft(), engine, lease_ms, rows)

    def _look(
        self, band: int, tenant: str, request: str, engine: str, lease_ms: int, rows: list[Taken]
    ) -> None:
        work = self._requests.get(request)
        # a tombstone: it ended while it was queued
        if work is None or work.status != "queued":
            return
        score = self._active[band][tenant]
        taken = self._lease(work, engine, lease_ms, alone=False)
        rows.append(taken)
        if taken.verdict == "run":
            self._charge(band, tenant, taken.prompt_tokens)
        if score > self._floors[band]:
            self._floors[band] = score
            idle = self._idle[band]
            self._idle[band] = {name: own for name, own in idle.items() if own > score}

    def _activate(self, band: int, tenant: str) -> None:
        active = self._active[band]
        if tenant in active:
            return
        least = min(active.values(), default=0.0)
        own = self._idle[band].pop(tenant, 0.0)
        active[tenant] = max(own, self._floors[band], least)

    def _retire_tenant(self, band: int, tenant: str) -> None:
        score = self._active[band].pop(tenant)
        if score > self._floors[band]:
            self._idle[band][tenant] = score
        self._queues.pop((band, tenant), None)

    def _charge(self, band: int, tenant: str, tokens: int) -> None:
        weight = self.weights.get(tenant, 1.0)
        amount = tokens / (weight if weight > 0 else 1.0)
        if tenant in self._active[band]:
            self._active[band][tenant] += amount
            return
        own = max(self._floors[band], self._idle[band].get(tenant, 0.0))
        self._idle[band][tenant] = own + amount


def marks_of(work: Work) -> list[CancelMark]:
    """Marks of a request: its own first, then those of its choices."""
    order = sorted(work.marks, key=lambda choice: -1 if choice is None else choice)
    return [work.marks[choice] for choice in order]


def append_log(work: Work | None, engine: str, attempt: int, entry: LogEntry) -> Logged:
    """As ``append_log.lua``."""
    if work is None or not work.is_of(engine, attempt):
        return Logged(ours=False, lengths=())
    grown = list(work.lengths)
    for choice, first, count in zip(entry.choices, entry.firsts, entry.counts, strict=True):
        if choice >= len(grown) or grown[choice] != first:
            return Logged(ours=True, lengths=work.lengths)
        grown[choice] = first + count
    work.log.append(decoded(LogEntry, entry.SerializeToString()))
    work.lengths = grown
    return Logged(ours=True, lengths=grown)
