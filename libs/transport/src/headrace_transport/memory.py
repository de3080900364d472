"""The wire in memory: one ``MemoryBroker`` that any number of wires of one event loop share.

Same semantics as over Redis, time by an injected clock. For tests: its steps cost O(requests).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import inf

from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.queue_pb2 import (
    Attach,
    CancelMark,
    CancelNudge,
    Control,
    Drain,
    Fence,
    Frame,
    LogEntry,
    ModelCard,
    RequestRecord,
    Usage,
)
from headrace_kit.clock import Clock, SystemClock

from headrace_transport.cards import digests_of
from headrace_transport.claims import Claims, Taken
from headrace_transport.damaged import Damaged
from headrace_transport.endings import ending_of, terminal_frame, total_usage
from headrace_transport.errors import RecordRejected, TransportUnavailable
from headrace_transport.foreign import Foreign
from headrace_transport.interface import (
    Allowance,
    ApiKey,
    Claimed,
    EngineInfo,
    FrameId,
    Lease,
    Logged,
    OutEntry,
    Queued,
    Rates,
    Renewed,
    RequestState,
    Settled,
    Standing,
)
from headrace_transport.logs import append_all
from headrace_transport.memory_streams import Stream
from headrace_transport.memory_work import ModelWork, Work, append_log, marks_of
from headrace_transport.names import check_model, check_name, check_process, name_of
from headrace_transport.options import WireOptions
from headrace_transport.rates import Buckets
from headrace_transport.records import check_log, encode, lengths_of

_DEFAULTS = WireOptions()
_SYSTEM = SystemClock()


class MemoryBroker:
    """What Redis is to the other transport. ``up`` False: every call is ``TransportUnavailable``."""

    def __init__(self, *, clock: Clock = _SYSTEM, options: WireOptions = _DEFAULTS) -> None:
        self.clock = clock
        self.options = options
        self.up = True
        self.failed_ms = 0
        """When a call last found it down, unix ms."""
        self.requests: dict[str, Work] = {}
        self.models: dict[str, ModelWork] = {}
        self.outs: dict[str, Stream[Frame | Fence]] = {}
        self.controls: dict[str, Stream[Control]] = {}
        self.gateways: dict[str, int] = {}
        """Expiry by process, unix ms."""
        self.engines: dict[str, tuple[EngineInfo, int]] = {}
        self.cards: dict[str, ModelCard] = {}
        self.blobs: dict[str, tuple[bytes, float]] = {}
        """Files and their expiry, unix ms; infinite while a card names them."""
        self.keys: dict[str, ApiKey] = {}
        self.forgotten_keys: set[str] = set()
        self.rates: dict[tuple[str, str], Buckets] = {}
        self.once: dict[tuple[str, str, str], tuple[str, int]] = {}
        """Value and expiry of idempotency keys."""
        self.sweeper: tuple[str, int] = ("", 0)
        """Who reaps for all, and until when, unix ms."""

    def flush(self) -> None:
        """Loses everything, as FLUSHALL does."""
        self.requests.clear()
        self.models.clear()
        self.outs.clear()
        self.controls.clear()
        self.gateways.clear()
        self.engines.clear()
        self.cards.clear()
        self.blobs.clear()
        self.keys.clear()
        self.forgotten_keys.clear()
        self.rates.clear()
        self.once.clear()
        self.sweeper = ("", 0)

    def blob(self, digest: str) -> bytes | None:
        """A file that has not ended."""
        data, expiry = self.blobs.get(digest, (None, inf))
        return data if expiry > self.now_ms() else None

    def keep_blobs(self, digests: Iterable[str], *, ttl_ms: float = inf) -> None:
        """Sets when files end."""
        for digest in digests:
            if (data := self.blob(digest)) is not None:
                self.blobs[digest] = (data, self.now_ms() + ttl_ms)

    async def enter(self) -> None:
        """Where every call comes in: others get their turn, as they do over a network."""
        await asyncio.sleep(0)
        if not self.up:
            self.failed_ms = self.now_ms()
            raise TransportUnavailable("the broker is down")
        now = self.now_ms()
        gone = [
            request
            for request, work in self.requests.items()
            if work.status == "finished" and work.finished_ms + self.options.state_ttl_ms <= now
        ]
        for request in gone:
            del self.requests[request]

    def now_ms(self) -> int:
        """Unix time."""
        return self.clock.wall_ms()

    def work(self, model: str) -> ModelWork:
        """The model's queues."""
        if model not in self.models:
            self.models[model] = ModelWork(check_model(model), self.now_ms, self.requests)
        return self.models[model]

    def out(self, gateway: str) -> Stream[Frame | Fence]:
        """The gateway's out stream."""
        return self.outs.setdefault(gateway, Stream(self.now_ms))

    def control(self, engine: str) -> Stream[Control]:
        """The engine's control stream."""
        return self.controls.setdefault(engine, Stream(self.now_ms))

    def log(self, request: str) -> Stream[LogEntry] | None:
        """The request's resume log, while it is kept."""
        work = self.requests.get(request)
        if work is None:
            return None
        over = work.status == "finished"
        if over and work.finished_ms + self.options.log_ttl_ms <= self.now_ms():
            return None
        return work.log

    def sign_of_life(self, gateway: str) -> None:
        """A submit or an attach: as good as a beat."""
        expiry = self.now_ms() + self.options.sign_of_life_ms
        self.gateways[gateway] = max(self.gateways.get(gateway, 0), expiry)

    def post(self, gateway: str, item: Frame | Fence) -> FrameId | None:
        """Appends to the out stream of a gateway that is alive."""
        if gateway not in self.gateways:
            return None
        # a copy: the caller may fill the same message again
        copy = type(item).FromString(item.SerializeToString())
        return FrameId(self.out(gateway).append(copy))

    def cancel(self, model: str, request: str, mark: CancelMark) -> bool:
        """Marks and nudges, or ends what is queued."""
        answer = self.work(model).mark(request, mark)
        if answer == "unknown":
            return False
        work = self.requests[request]
        if answer == "ended":
            self._end_queued(model, work, mark)
        elif work.owner is not None:
            nudge = Control(version=WIRE_VERSION, cancel=CancelNudge(id=request))
            self.control(work.owner).append(nudge)
        return True

    def _end_queued(self, model: str, work: Work, mark: CancelMark) -> None:
        prompt = len(work.record.prompt)
        ending = ending_of(mark)
        frame = terminal_frame(
            slot=work.slot,
            attempt=work.attempt + 1,
            lengths=work.lengths,
            ending=ending,
            prompt_tokens=prompt,
        )
        self.post(work.gateway, frame)
        usage = total_usage(list(frame.finishes), prompt_tokens=prompt)
        self.work(model).end(work, ending.reason, usage)


class _MemoryWire:
    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.damaged = Damaged(broker.clock.monotonic)
        self.foreign = Foreign(self.damaged, broker.clock.monotonic)

    async def ping(self) -> None:
        """Raises ``TransportUnavailable`` while the broker is down."""
        await self._broker.enter()

    async def close(self) -> None:
        """Leaves the broker as it is: others share it."""

    async def card(self, model: str) -> ModelCard | None:
        """The card of a model, or None."""
        await self._broker.enter()
        return self._known_card(self._broker.cards.get(check_model(model)))

    def _known_card(self, card: ModelCard | None) -> ModelCard | None:
        known = card is not None and self.foreign.is_ours("card", card.version)
        return card if known else None

    async def cancels(
        self, model: str, requests: Sequence[str]
    ) -> Mapping[str, Sequence[CancelMark]]:
        """See ``GatewayWire.cancels``."""
        await self._broker.enter()
        known = {request: self._broker.requests.get(request) for request in requests}
        return {
            request: marks_of(work)
            for request, work in known.items()
            if work is not None and work.marks
        }

    async def reap(self, model: str) -> None:
        """See ``EngineWire.reap``."""
        await self._broker.enter()
        broker, now = self._broker, self._broker.now_ms()
        if now - broker.failed_ms < broker.options.reap_after_outage_s * 1000:
            return
        grace = broker.options.resume_grace_ms
        dead = {name for name, expiry in broker.gateways.items() if expiry + grace <= now}
        work = broker.work(model)
        work.sweep()
        stranded = work.stranded(lambda name: name in dead or name not in broker.gateways)
        expired, marked = work.expired(), work.marked()
        for name in dead:
            del broker.gateways[name]
            broker.outs.pop(name, None)
        for name, (_, expiry) in list(broker.engines.items()):
            if expiry <= now:
                del broker.engines[name]
                broker.controls.pop(name, None)
        for request in stranded:
            mark = CancelMark(reason=codes_pb2.FINISH_REASON_CANCELLED)
            broker.cancel(model, request, mark)
        for request in expired:
            broker.cancel(model, request, CancelMark(reason=codes_pb2.FINISH_REASON_DEADLINE))
        card = self._known_card(broker.cards.get(model))
        if card is not None:
            broker.keep_blobs(digests_of(card))
        for request, mark in marked.items():
            broker.cancel(model, request, mark)

    def _known(self, item: Frame | Fence) -> Frame | Fence | None:
        kind = "frame" if isinstance(item, Frame) else "fence"
        return item if self.foreign.is_ours(kind, item.version) else None


class MemoryGatewayWire(_MemoryWire):
    """Implements ``GatewayWire``."""

    async def submit(
        self,
        record: RequestRecord,
        *,
        max_queued: int,
        max_concurrency: int | None = None,
        resume: LogEntry | None = None,
        over: Sequence[str] = (),
    ) -> Queued:
        """See ``GatewayWire.submit``."""
        await self._broker.enter()
        data = encode(record)
        for request in over:
            if (ended := self._broker.requests.get(request)) is not None:
                ended.counts = False
        queued = self._broker.work(record.model).submit(
            RequestRecord.FromString(data),
            data,
            max_queued=max_queued,
            max_concurrency=max_concurrency,
            resume=resume,
            lengths=lengths_of(record.n, resume) if resume is not None else [],
        )
        self._broker.sign_of_life(record.gateway)
        return queued

    async def cancel(self, model: str, request: str, mark: CancelMark) -> bool:
        """See ``GatewayWire.cancel``."""
        await self._broker.enter()
        return self._broker.cancel(model, check_name("a request id", request), mark)

    async def attach(
        self, request: str, gateway: str, slot: int, first: int, *, keeping: bool = False
    ) -> Lease | None:
        """See ``GatewayWire.attach``."""
        check_process("a gateway", gateway)
        await self._broker.enter()
        work = self._broker.requests.get(check_name("a request id", request))
        if work is None or work.status == "finished":
            return None
        if keeping and work.gateway not in ("", gateway):
            return None
        if (work.gateway, work.slot) != (gateway, slot):
            work.past.append((work.gateway, work.slot))
            work.gateway, work.slot = gateway, slot
        self._broker.sign_of_life(gateway)
        if work.owner is None:
            return None
        attach = Attach(id=request, gateway=gateway, slot=slot, first=first)
        self._broker.control(work.owner).append(Control(version=WIRE_VERSION, attach=attach))
        return Lease(
            owner=work.owner,
            attempt=work.attempt,
            overdue_ms=self._broker.now_ms() - work.expires_ms,
            gateway=gateway,
            slot=slot,
        )

    async def request_state(self, request: str) -> RequestState | None:
        """See ``GatewayWire.request_state``."""
        await self._broker.enter()
        work = self._broker.requests.get(check_name("a request id", request))
        if work is None:
            return None
        return RequestState(
            status=work.status,
            model=work.record.model,
            tenant=work.record.tenant,
            key_id=work.record.key_id,
            n=work.record.n,
            attempt=work.attempt,
            created_ms=work.created_ms,
            finish=work.finish,
            usage=work.usage,
            prompt_tokens=len(work.record.prompt),
            gateway=work.gateway,
            edge=work.record.edge,
            tokens=sum(work.lengths),
        )

    async def live_requests(self, tenant: str, key_id: str, *, limit: int) -> Sequence[str]:
        """See ``GatewayWire.live_requests``."""
        await self._broker.enter()
        check_name("a tenant", tenant)
        live = [
            request
            for request, work in self._broker.requests.items()
            if work.status != "finished"
            and (work.record.tenant, work.record.key_id) == (tenant, key_id)
        ]
        return live[:limit]

    async def standing(self, model: str, request: str) -> Standing:
        """See ``GatewayWire.standing``."""
        await self._broker.enter()
        work = self._broker.requests.get(check_name("a request id", request))
        queues = self._broker.work(model)
        owner = None if work is None else work.owner
        said, expiry = self._broker.engines.get(owner or "", (None, 0))
        fresh = said is not None and expiry > self._broker.now_ms()
        return Standing(
            owner=owner,
            wait=said.waits.get(request) if said is not None and fresh else None,
            resumes=queues.resumes(request),
            ahead=queues.ahead(request),
            depth=queues.depth(),
        )

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
        """See ``GatewayWire.take_rate``."""
        await self._broker.enter()
        buckets = self._broker.rates.setdefault((check_name("a tenant", tenant), key_id), Buckets())
        return buckets.take(
            rates, requests=requests, tokens=tokens, must=must, now_ms=self._broker.now_ms()
        )

    async def read_log(self, request: str, after: str = "0-0") -> Sequence[tuple[str, LogEntry]]:
        """See ``GatewayWire.read_log``."""
        await self._broker.enter()
        log = self._broker.log(check_name("a request id", request))
        entries = log.after(after) if log is not None else []
        check_log(request, entries, self.foreign)
        return entries

    async def bind_once(
        self, tenant: str, key_id: str, digest: str, value: str, *, ttl_ms: int, instead: str = ""
    ) -> str:
        """See ``GatewayWire.bind_once``."""
        await self._broker.enter()
        name, now = (check_name("a tenant", tenant), key_id, digest), self._broker.now_ms()
        held, expiry = self._broker.once.get(name, ("", 0))
        if held and expiry > now and held not in (value, instead):
            return held
        self._broker.once[name] = (value, now + ttl_ms)
        return value if ttl_ms else ""

    async def queue_depth(self, model: str) -> int:
        """See ``GatewayWire.queue_depth``."""
        await self._broker.enter()
        return self._broker.work(model).depth()

    async def read_out(self, gateway: str, after: FrameId, *, block_ms: int) -> Sequence[OutEntry]:
        """See ``GatewayWire.read_out``."""
        await self._broker.enter()
        entries = await self._broker.out(gateway).read(after, block_ms=block_ms)
        return [OutEntry(id=FrameId(name), item=self._known(item)) for name, item in entries]

    async def trim_out(self, gateway: str, below: FrameId) -> None:
        """See ``GatewayWire.trim_out``."""
        await self._broker.enter()
        self._broker.out(gateway).trim(below)

    async def cards(self) -> Sequence[ModelCard]:
        """See ``GatewayWire.cards``."""
        await self._broker.enter()
        cards = (self._known_card(self._broker.cards[name]) for name in sorted(self._broker.cards))
        return [card for card in cards if card is not None]

    async def blob(self, digest: str) -> bytes | None:
        """See ``GatewayWire.blob``."""
        await self._broker.enter()
        return self._broker.blob(digest)

    async def engines(self, model: str) -> Sequence[EngineInfo]:
        """See ``GatewayWire.engines``."""
        await self._broker.enter()
        now = self._broker.now_ms()
        return [
            info
            for info, expiry in self._broker.engines.values()
            if info.model == model and expiry > now
        ]

    async def drain_engine(self, engine: str, *, grace_ms: int) -> bool:
        """See ``GatewayWire.drain_engine``."""
        await self._broker.enter()
        check_process("an engine", engine)
        known = self._broker.engines.get(engine)
        if known is None or known[1] <= self._broker.now_ms():
            return False
        entry = Control(version=WIRE_VERSION, drain=Drain(grace_ms=grace_ms))
        self._broker.control(engine).append(entry)
        return True

    async def take_sweep(self, gateway: str, *, ttl_ms: int) -> bool:
        """See ``GatewayWire.take_sweep``."""
        await self._broker.enter()
        check_process("a gateway", gateway)
        now, (owner, expiry) = self._broker.now_ms(), self._broker.sweeper
        if owner != gateway and expiry > now:
            return False
        self._broker.sweeper = (gateway, now + ttl_ms)
        return True

    async def beat_gateway(self, gateway: str, *, ttl_ms: int) -> None:
        """See ``GatewayWire.beat_gateway``."""
        await self._broker.enter()
        self._broker.gateways[check_process("a gateway", gateway)] = self._broker.now_ms() + ttl_ms

    async def leave_gateway(self, gateway: str, *, keep_ms: int = 0) -> None:
        """See ``GatewayWire.leave_gateway``."""
        if keep_ms:
            await self.beat_gateway(gateway, ttl_ms=keep_ms)
            return
        await self._broker.enter()
        self._broker.gateways.pop(gateway, None)
        self._broker.outs.pop(gateway, None)

    async def api_key(self, public_id: str) -> ApiKey | None:
        """See ``GatewayWire.api_key``."""
        await self._broker.enter()
        return self._broker.keys.get(public_id)

    async def api_keys(self) -> Sequence[ApiKey]:
        """See ``GatewayWire.api_keys``."""
        await self._broker.enter()
        return [self._broker.keys[name] for name in sorted(self._broker.keys)]

    async def put_api_key(self, key: ApiKey) -> None:
        """See ``GatewayWire.put_api_key``."""
        await self._broker.enter()
        self._put_api_key(key)

    def _put_api_key(self, key: ApiKey) -> None:
        check_name("a tenant", key.tenant)
        for model in key.models:
            check_model(model)
        self._broker.keys[check_name("a key id", key.public_id)] = key

    async def restore_api_key(self, key: ApiKey) -> bool:
        """See ``GatewayWire.restore_api_key``."""
        await self._broker.enter()
        if key.public_id in self._broker.forgotten_keys:
            return False
        known = self._broker.keys.get(key.public_id, key)
        ends = [each.revoked_ms for each in (key, known) if each.revoked_ms is not None]
        self._put_api_key(replace(key, revoked_ms=min(ends, default=None)))
        return True

    async def revoke_api_key(self, public_id: str, *, at_ms: int) -> bool:
        """See ``GatewayWire.revoke_api_key``."""
        await self._broker.enter()
        key = self._broker.keys.get(public_id)
        if key is None:
            return False
        known = at_ms if key.revoked_ms is None else key.revoked_ms
        self._broker.keys[public_id] = replace(key, revoked_ms=min(at_ms, known))
        return True

    async def forget_api_key(self, public_id: str, *, over_ms: int | None = None) -> bool:
        """See ``GatewayWire.forget_api_key``."""
        await self._broker.enter()
        key = self._broker.keys.get(check_name("a key id", public_id))
        if key is None:
            return False
        ends = [at for at in (key.revoked_ms, key.expires_ms) if at is not None]
        if over_ms is not None and not any(at < over_ms for at in ends):
            return False
        del self._broker.keys[public_id]
        self._broker.forgotten_keys.add(public_id)
        return True

    async def api_key_is_forgotten(self, public_id: str) -> bool:
        """See ``GatewayWire.api_key_is_forgotten``."""
        await self._broker.enter()
        return public_id in self._broker.forgotten_keys


class MemoryEngineWire(_MemoryWire):
    """Implements ``EngineWire`` and ``ClaimSteps``."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._claims = Claims(self, self.foreign)

    async def wait_bell(self, model: str, *, timeout_ms: int) -> bool:
        """See ``EngineWire.wait_bell``."""
        await self._broker.enter()
        return await self._broker.work(model).bell.wait(timeout_ms=timeout_ms)

    async def claim(
        self, model: str, engine: str, *, credit: int, lease_ms: int
    ) -> Sequence[Claimed]:
        """See ``EngineWire.claim``."""
        check_process("an engine", engine)
        return await self._claims.claim(model, engine, credit=credit, lease_ms=lease_ms)

    async def renew(
        self, model: str, engine: str, attempts: Mapping[str, int], *, lease_ms: int
    ) -> Renewed:
        """See ``EngineWire.renew``."""
        await self._broker.enter()
        lost, cancelled = self._broker.work(model).renew(engine, attempts, lease_ms=lease_ms)
        return Renewed(lost=lost, cancelled=cancelled)

    async def release(self, model: str, engine: str, attempts: Mapping[str, int]) -> None:
        """See ``EngineWire.release``."""
        await self._broker.enter()
        self._broker.work(model).release(engine, attempts)

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
        """See ``EngineWire.finish``."""
        await self._broker.enter()
        ours = self._broker.work(model).finish(
            engine, request, attempt, entry=entry, reason=reason, usage=usage
        )
        return Settled(ours=ours)

    async def publish(self, frames: Mapping[str, Frame]) -> Mapping[str, FrameId]:
        """See ``EngineWire.publish``."""
        posted = await self.post(list(frames.items()))
        return {
            gateway: frame
            for gateway, frame in zip(frames, posted, strict=True)
            if frame is not None
        }

    async def append_log(self, engine: str, request: str, attempt: int, entry: LogEntry) -> Logged:
        """See ``EngineWire.append_log``."""
        return (await self.append_logs(engine, [(request, attempt, entry)]))[0]

    async def append_logs(
        self, engine: str, entries: Sequence[tuple[str, int, LogEntry]]
    ) -> Sequence[Logged]:
        """See ``EngineWire.append_logs``."""
        return await append_all(self._append, engine, entries)

    async def _append(
        self, engine: str, entries: Sequence[tuple[str, int, LogEntry]]
    ) -> Sequence[Logged]:
        await self._broker.enter()
        return [
            append_log(self._broker.requests.get(request), engine, attempt, entry)
            for request, attempt, entry in entries
        ]

    async def read_control(
        self, engine: str, after: str, *, block_ms: int
    ) -> Sequence[tuple[str, Control | None]]:
        """See ``EngineWire.read_control``."""
        await self._broker.enter()
        stream = self._broker.control(check_process("an engine", engine))
        return [
            (name, control if self.foreign.is_ours("control", control.version) else None)
            for name, control in await stream.read(after, block_ms=block_ms)
        ]

    async def card(self, model: str) -> ModelCard | None:
        """See ``EngineWire.card``."""
        card = await super().card(model)
        lost = card is not None and any(
            self._broker.blob(each) is None for each in digests_of(card)
        )
        return None if lost else card

    async def put_card(self, card: ModelCard) -> None:
        """See ``EngineWire.put_card``."""
        await self._broker.enter()
        broker, name = self._broker, check_model(card.model)
        before = self._known_card(broker.cards.get(name))
        broker.cards[name] = ModelCard.FromString(card.SerializeToString())
        broker.keep_blobs(digests_of(card))
        if before is not None:
            named = {digest for each in broker.cards.values() for digest in digests_of(each)}
            broker.keep_blobs(digests_of(before) - named, ttl_ms=broker.options.blob_ttl_ms)

    async def put_weights(self, model: str, weights: Mapping[str, float]) -> None:
        """See ``EngineWire.put_weights``."""
        await self._broker.enter()
        self._broker.work(check_model(model)).weights = dict(weights)

    async def put_blob(self, data: bytes) -> str:
        """See ``EngineWire.put_blob``."""
        await self._broker.enter()
        digest = sha256(data).hexdigest()
        broker = self._broker
        _, expiry = broker.blobs.get(digest, (data, 0.0))
        if expiry != inf:
            broker.blobs[digest] = (data, broker.now_ms() + broker.options.blob_ttl_ms)
        return digest

    async def beat_engine(self, info: EngineInfo, *, ttl_ms: int) -> None:
        """See ``EngineWire.beat_engine``."""
        await self._broker.enter()
        name = check_process("an engine", info.process)
        self._broker.engines[name] = (info, self._broker.now_ms() + ttl_ms)

    async def leave_engine(self, info: EngineInfo) -> None:
        """See ``EngineWire.leave_engine``."""
        await self._broker.enter()
        self._broker.engines.pop(info.process, None)
        self._broker.controls.pop(info.process, None)

    async def supersede(self, model: str, engine: str) -> int:
        """See ``EngineWire.supersede``."""
        await self._broker.enter()
        name = name_of(engine)
        predecessors = {
            other
            for other, (info, _) in self._broker.engines.items()
            if other != engine and info.model == model and _is_named(other, name)
        }
        for other in predecessors:
            del self._broker.engines[other]
            self._broker.controls.pop(other, None)
        return self._broker.work(model).expire_leases(predecessors)

    # steps of a claim
    async def take(self, model: str, engine: str, *, credit: int, lease_ms: int) -> Sequence[Taken]:
        """See ``ClaimSteps.take``."""
        await self._broker.enter()
        calm = self._broker.now_ms() - self._broker.failed_ms >= lease_ms / 2
        return self._broker.work(model).take(engine, credit=credit, lease_ms=lease_ms, sweep=calm)

    async def post(self, entries: Sequence[tuple[str, Frame | Fence]]) -> Sequence[FrameId | None]:
        """See ``ClaimSteps.post``."""
        await self._broker.enter()
        return [self._broker.post(gateway, item) for gateway, item in entries]

    async def log_of(self, request: str) -> Sequence[LogEntry]:
        """See ``ClaimSteps.log_of``."""
        await self._broker.enter()
        log = self._broker.log(request)
        return [entry for _, entry in log.after("0-0")] if log is not None else []

    async def frames_of(
        self, gateway: str, after: FrameId, before: FrameId | None
    ) -> Sequence[OutEntry]:
        """See ``ClaimSteps.frames_of``."""
        await self._broker.enter()
        stream = self._broker.outs.get(gateway)
        entries = stream.after(after, before) if stream is not None else []
        return [OutEntry(id=FrameId(name), item=self._known(item)) for name, item in entries]

    async def bury(
        self, model: str, engine: str, request: str, attempt: int, *, why: str, usage: Usage
    ) -> Settled:
        """See ``ClaimSteps.bury``."""
        await self._broker.enter()
        ours = self._broker.work(model).bury(engine, request, attempt, why=why, usage=usage)
        return Settled(ours=ours)


def _is_named(process: str, name: str) -> bool:
    try:
        return name_of(process) == name
    except RecordRejected:
        return False
