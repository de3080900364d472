"""Requests in memory, from the gateway's side."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import Attach, CancelMark, Control, LogEntry, RequestRecord

from headrace_transport.interface import (
    MAX_PAST,
    Allowance,
    Lease,
    Queued,
    Rates,
    RequestState,
    Standing,
)
from headrace_transport.memory_broker import MemoryPart
from headrace_transport.names import check_name, check_process
from headrace_transport.rates import Buckets
from headrace_transport.records import check_log, encode, lengths_of


class MemoryRequests(MemoryPart):
    """The gateway's requests."""

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
                ended.reserved_ms = 0
        queued = self._broker.work(record.model).submit(
            RequestRecord.FromString(data),
            data,
            max_queued=max_queued,
            max_concurrency=max_concurrency,
            resume=resume,
            lengths=lengths_of(record.n, resume) if resume is not None else [],
            reserved_ms=self._broker.reserved_ms(record.deadline_ms),
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
            work.past = [*work.past, (work.gateway, work.slot)][-MAX_PAST:]
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
