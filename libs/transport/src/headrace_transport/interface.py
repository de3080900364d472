"""The wire as its users see it: two protocols, one for each end.

``headrace_transport.connection`` implements both over Redis, ``headrace_transport.memory`` in
memory, and one suite in ``tests/shared`` runs against each.

All methods are coroutines of one event loop. Each raises ``TransportUnavailable`` when the
server cannot be reached within the configured time; nothing is retried silently except
what is idempotent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol

from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import (
    CancelMark,
    Control,
    Fence,
    Frame,
    LogEntry,
    ModelCard,
    RequestRecord,
    Usage,
)

from headrace_transport.damaged import Damaged
from headrace_transport.foreign import Foreign

FrameId = NewType("FrameId", str)
"""Id of an entry of an out stream, ``<ms>-<n>``; ``FIRST_FRAME`` is before all of them."""

FIRST_FRAME = FrameId("0-0")

MAX_AHEAD = 128
"""Requests before another that are counted."""
MAX_PAST = 64
"""Attaches of a request whose former places are known: its frames there may be in no log yet."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A record that was accepted into its queue."""

    depth: int
    """Queued requests of the model, this one included."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who runs a request, and until when."""

    owner: str
    """Engine process."""
    attempt: int
    overdue_ms: int
    """Since it lapsed, by the server's clock: nobody else's is compared with it. Below 0: it is live."""
    gateway: str
    slot: int


@dataclass(frozen=True, slots=True)
class RequestState:
    """Copy of a request's state, for reading."""

    status: Literal["queued", "running", "finished"]
    model: str
    tenant: str
    key_id: str
    n: int
    attempt: int
    created_ms: int
    finish: FinishReason | None
    usage: Usage | None
    prompt_tokens: int
    gateway: str = ""
    """Gateway process that reads the rows now."""
    edge: bytes = b""
    """What another gateway needs to resume it; opaque to the wire."""
    tokens: int = 0
    """Generated tokens that the resume log holds, of all choices."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a request waits inside an engine. Words and numbers are the engine's."""

    reason: str
    detail: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a live request stands."""

    owner: str | None
    """Engine process that has its lease."""
    wait: Wait | None
    """As of that engine's last beat; None: it runs there, or nobody has it."""
    resumes: bool
    """It lost its engine, and waits for a successor before all that has not begun."""
    ahead: int | None
    """Queued requests of its tenant and band before it, counted up to ``MAX_AHEAD``; None: it is
    not in a queue."""
    depth: int
    """Queued requests of its model."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine process says of itself."""

    process: str
    """Name and boot nonce."""
    model: str
    state: Literal["loading", "ready", "draining"]
    running: int
    waiting: int
    free_blocks: int
    total_blocks: int
    waits: Mapping[str, Wait] = field(default_factory=dict[str, Wait])
    """Of requests that wait inside it, by id; of many, some."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A request this engine now runs. ``record`` names the gateway and slot of now, after attaches.

    ``delivered`` holds, per choice, what earlier attempts delivered: log and frames before the
    fence; the log holds all of it. It is empty for a first attempt. ``ended`` holds the terminal
    rows found there, of choices that must not run again; one of the choices at least has none.
    """

    record: RequestRecord
    attempt: int
    crashes: int
    """Leases of this request that expired."""
    delivered: Sequence[Sequence[int]]
    ended: Mapping[int, LogEntry]
    cancels: Sequence[CancelMark]
    """Marks of single choices that were set before the claim."""
    alone: bool = False
    """Its engines keep dying: nothing else is given to this engine until it has finished."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """What a renewal found."""

    lost: Sequence[str]
    """Ids whose lease is no longer ours at that attempt: drop them at once, silently."""
    cancelled: Mapping[str, Sequence[CancelMark]]
    """Marks by id, at every renewal until the request has finished."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What ``finish`` did."""

    ours: bool
    """False: the lease was lost before; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Logged:
    """What ``append_log`` did."""

    ours: bool
    lengths: Sequence[int]
    """Generated tokens per choice that the log now holds."""


@dataclass(frozen=True, slots=True)
class OutEntry:
    """One entry of an out stream."""

    id: FrameId
    item: Frame | Fence | None
    """None: it is of another wire version, and was counted."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored API key; its secret is kept as an HMAC only."""

    public_id: str
    digest: bytes
    """HMAC-SHA256 of the secret under the deployment's pepper."""
    name: str
    tenant: str
    scopes: frozenset[str]
    models: frozenset[str]
    """Empty: every model."""
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None
    band: int
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class Rates:
    """What a key may ask for in a minute. None: no limit."""

    requests: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of a key's minute. Numbers of a bucket without a limit are 0."""

    granted: bool
    requests_left: int
    tokens_left: int
    """Below 0 when a request turned out to need more than was taken for it."""
    wait_ms: int
    """Until the same would be granted; 0 when it was."""
    requests_full_ms: int
    """Until all of it is back, if nothing more is taken."""
    tokens_full_ms: int


class GatewayWire(Protocol):
    """The gateway's end."""

    @property
    def foreign(self) -> Foreign:
        """What was read of other wire versions."""
        ...

    @property
    def damaged(self) -> Damaged:
        """What could not be read. Lists leave it out; what reads one record raises
        ``CommandFailed``."""
        ...

    # requests
    async def submit(
        self,
        record: RequestRecord,
        *,
        max_queued: int,
        max_concurrency: int | None = None,
        resume: LogEntry | None = None,
        over: Sequence[str] = (),
    ) -> Queued:
        """Queues a record, once: the same id again is a no-op while it is queued or leased.

        ``max_concurrency`` bounds the live requests of ``record.key_id``; those of ``over`` are
        known to have ended, and count no more, although no engine has settled them. ``resume`` holds what was
        delivered before the server lost the request: it becomes the resume log, so that no
        delivered token is decided again.

        Raises ``QueueFull`` (with depth, limit), ``ConcurrencyExceeded`` (with running, limit),
        ``RequestConflict`` for an id that already finished, ``RecordRejected`` for one that may not
        enter a key.
        """
        ...

    async def cancel(self, model: str, request: str, mark: CancelMark) -> bool:
        """Marks, then nudges the owner. False: the request is unknown or has ended.

        A queued request that is cancelled whole ends at once: it leaves the queue's depth, its
        state says finished, and its gateway's out stream gets a terminal frame.
        """
        ...

    async def cancels(
        self, model: str, requests: Sequence[str]
    ) -> Mapping[str, Sequence[CancelMark]]:
        """Marks of those of the requests that have any and have not ended."""
        ...

    async def attach(
        self, request: str, gateway: str, slot: int, first: int, *, keeping: bool = False
    ) -> Lease | None:
        """Sends the rest of a request to another gateway. None: nobody runs it. If it is queued,
        whoever claims it sends its rows there. ``keeping``: only while no other gateway has it, so
        that one that looks after a request takes it from nobody who has taken it up meanwhile.
        """
        ...

    async def request_state(self, request: str) -> RequestState | None: ...

    async def live_requests(self, tenant: str, key_id: str, *, limit: int) -> Sequence[str]:
        """Ids of a key's requests that have not ended, at most ``limit``; some may have just now."""
        ...

    async def standing(self, model: str, request: str) -> Standing:
        """Who has a live request, and why it waits. For people: it costs more than its state."""
        ...

    async def read_log(self, request: str, after: str = "0-0") -> Sequence[tuple[str, LogEntry]]:
        """Entries of the resume log after an entry id.

        Raises ``ForeignVersion`` when one of them is of another wire version.
        """
        ...

    async def queue_depth(self, model: str) -> int: ...

    async def bind_once(
        self, tenant: str, key_id: str, digest: str, value: str, *, ttl_ms: int, instead: str = ""
    ) -> str:
        """Binds a caller's Idempotency-Key, by its hash, to a value, for ``ttl_ms`` from now; 0 lets
        go of it. One that is bound keeps its value, unless that is ``instead`` or the same.

        Gives what it is bound to then.
        """
        ...

    async def take_rate(
        self,
        tenant: str,
        key_id: str,
        rates: Rates,
        *,
        requests: int,
        tokens: int,
        must: bool,
    ) -> Allowance:
        """Takes from what a key's minute allows; numbers below 0 give back.

        ``must``: nothing is taken unless both are there, of which never more than a whole minute's
        is asked. Otherwise it is taken in any case: that is how a reservation is corrected. Not
        idempotent; what is taken twice comes back within a minute by itself.
        """
        ...

    # results
    async def read_out(self, gateway: str, after: FrameId, *, block_ms: int) -> Sequence[OutEntry]:
        """Entries after an explicit id, on a connection of its own; empty after ``block_ms``."""
        ...

    async def trim_out(self, gateway: str, below: FrameId) -> None: ...

    # models
    async def cards(self) -> Sequence[ModelCard]: ...

    async def card(self, model: str) -> ModelCard | None: ...

    async def blob(self, digest: str) -> bytes | None: ...

    async def engines(self, model: str) -> Sequence[EngineInfo]: ...

    async def drain_engine(self, engine: str, *, grace_ms: int) -> bool:
        """Asks an engine process to stop claiming, let what runs end within ``grace_ms`` (0: its
        own setting), hand the rest back, and exit. False: there is no such process.
        """
        ...

    # processes
    async def reap(self, model: str) -> None:
        """As ``EngineWire.reap``: for models that no engine serves, somebody else has to."""
        ...

    async def take_sweep(self, gateway: str, *, ttl_ms: int) -> bool:
        """Takes, or keeps, the lease under which one gateway reaps for all. False: another has it."""
        ...

    async def beat_gateway(self, gateway: str, *, ttl_ms: int) -> None: ...

    async def leave_gateway(self, gateway: str, *, keep_ms: int = 0) -> None:
        """Says that this gateway ends. What it still has running becomes the reaper's at once, or
        after ``keep_ms``, in which others may attach to it.
        """
        ...

    # keys
    async def api_key(self, public_id: str) -> ApiKey | None: ...

    async def api_keys(self) -> Sequence[ApiKey]: ...

    async def put_api_key(self, key: ApiKey) -> None: ...

    async def restore_api_key(self, key: ApiKey) -> bool:
        """Puts a key back as it was kept, with the earlier of its end and that which is known here;
        it is revoked now where the one that is there is damaged so that nobody can tell. False: it
        was deleted, and stays away.
        """
        ...

    async def revoke_api_key(self, public_id: str, *, at_ms: int) -> bool:
        """Marks a key as revoked from ``at_ms`` on, unless it is from an earlier time on. False:
        there is no such key.
        """
        ...

    async def forget_api_key(self, public_id: str, *, over_ms: int | None = None) -> bool:
        """Deletes a key for good; its id is remembered, so that no copy of it comes back.

        ``over_ms``: only if it was revoked, or expired, before then. False: nothing was deleted.
        """
        ...

    async def api_key_is_forgotten(self, public_id: str) -> bool:
        """Whether a key of that id was deleted. It is remembered for longer, then."""
        ...

    # server
    async def ping(self) -> None: ...

    async def close(self) -> None: ...


class EngineWire(Protocol):
    """The engine's end. ``engine`` is the process id: name and boot nonce."""

    @property
    def foreign(self) -> Foreign:
        """What was read of other wire versions."""
        ...

    @property
    def damaged(self) -> Damaged:
        """What could not be read."""
        ...

    # work
    async def wait_bell(self, model: str, *, timeout_ms: int) -> bool:
        """Waits for work on a connection of its own. Spurious wake-ups are allowed."""
        ...

    async def claim(
        self, model: str, engine: str, *, credit: int, lease_ms: int
    ) -> Sequence[Claimed]:
        """Takes at most ``credit`` requests: expired leases first, then bands in order, then
        the tenants with the least counter. Cancelled and expired entries are finished on the way,
        dead letters too. A request whose engines keep dying is given alone. For half a lease after
        the server was unavailable to this process, no expired lease is taken.

        Call it after every ``wait_bell``: leases expire without a ring.
        """
        ...

    async def renew(
        self, model: str, engine: str, attempts: Mapping[str, int], *, lease_ms: int
    ) -> Renewed: ...

    async def release(self, model: str, engine: str, attempts: Mapping[str, int]) -> None:
        """Hands requests back to the head of their queue (drain); a successor continues them."""
        ...

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
        """Appends the last log entry, acknowledges, deletes, drops lease and mark, charges the tenant."""
        ...

    async def cancels(
        self, model: str, requests: Sequence[str]
    ) -> Mapping[str, Sequence[CancelMark]]:
        """Marks of those of the requests that have any: what a nudge points at."""
        ...

    # results
    async def publish(self, frames: Mapping[str, Frame]) -> Mapping[str, FrameId]:
        """One frame per gateway, in one round trip. A frame for a dead gateway is dropped."""
        ...

    async def append_log(self, engine: str, request: str, attempt: int, entry: LogEntry) -> Logged:
        """Appends if the attempt is still ours and all ``firsts`` continue the log.

        What the log holds already is left out, so that a repeated append does no harm; a gap
        appends nothing. ``lengths`` always tells what the log holds.
        """
        ...

    async def append_logs(
        self, engine: str, entries: Sequence[tuple[str, int, LogEntry]]
    ) -> Sequence[Logged]:
        """``append_log`` for many, as (request, attempt, entry), in one round trip."""
        ...

    # control
    async def read_control(
        self, engine: str, after: str, *, block_ms: int
    ) -> Sequence[tuple[str, Control | None]]:
        """Entries after an explicit id; None is one of another wire version, which was counted."""
        ...

    # models
    async def put_card(self, card: ModelCard) -> None:
        """Stores a card; it stays when the engine goes, and so do the files that it names. Files
        that only the card before it named end after ``WireOptions.blob_ttl_ms``.
        """
        ...

    async def put_weights(self, model: str, weights: Mapping[str, float]) -> None:
        """Replaces the shares of a model's tenants in its queue; who is not named has 1."""
        ...

    async def card(self, model: str) -> ModelCard | None:
        """A model's card; None also for one that cannot be read, or whose files are not all there,
        which an engine puts again.
        """
        ...

    async def put_blob(self, data: bytes) -> str:
        """Stores a file; returns its SHA-256 in hex. It ends after ``WireOptions.blob_ttl_ms``
        unless a card names it by then.
        """
        ...

    # processes
    async def beat_engine(self, info: EngineInfo, *, ttl_ms: int) -> None: ...

    async def leave_engine(self, info: EngineInfo) -> None: ...

    async def supersede(self, model: str, engine: str) -> int:
        """Ends the leases of processes of the same name with another nonce, and forgets them: an
        engine whose name nobody else can have calls it before its first claim. How many leases.

        The requests count a crash each, as when a lease expires. A predecessor that does live
        loses its work, and changes nothing any more.
        """
        ...

    async def reap(self, model: str) -> None:
        """Clears what dead processes left: requests of dead gateways are marked cancelled,
        expired process leases removed, out and control streams of the dead deleted. Requests whose
        lease expired go back to the queue; those of them that are cancelled end, like all in the
        queue whose deadline has passed. The files of the model's card live on.
        Safe to run by everybody at once; does nothing for a while after an outage, in which
        nobody could beat.
        """
        ...

    # server
    async def ping(self) -> None: ...

    async def close(self) -> None: ...
