"""Requests, from the gateway's side: submit, attach, state, log, depth."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_contracts import keys
from headrace_contracts.codes import FinishReason
from headrace_contracts.keys import HOLE
from headrace_contracts.limits import INLINE_RECORD_BYTES, WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import Attach, Control, LogEntry, RequestRecord, Usage

from headrace_transport.errors import (
    CommandFailed,
    ConcurrencyExceeded,
    QueueFull,
    RequestConflict,
)
from headrace_transport.interface import MAX_AHEAD, MAX_PAST, Lease, Queued, RequestState, Standing
from headrace_transport.names import check_model, check_name, check_process
from headrace_transport.part import Part
from headrace_transport.processes import waits_of
from headrace_transport.records import check_log, encode, lengths_of
from headrace_transport.replies import (
    as_bytes,
    as_entries,
    as_fields,
    as_int,
    as_list,
    as_text,
    choices_of,
    decoded,
    readable,
)

_RAW = ("usage", "edge")
"""Fields of a state that are not text."""


class Requests(Part):
    """The gateway's requests over Redis."""

    async def submit(
        self,
        record: RequestRecord,
        *,
        max_queued: int,
        max_concurrency: int | None = None,
        resume: LogEntry | None = None,
        over: Sequence[str] = (),
    ) -> Queued:
        """See ``GatewayWire.submit``. Safe to repeat after ``TransportUnavailable``."""
        data = encode(record)
        held = lengths_of(record.n, resume) if resume is not None else []
        others = [
            keys.queue(record.model, record.band, record.tenant),
            keys.running(record.tenant, record.key_id),
            keys.requests_of(record.model, record.gateway),
        ]
        reply = as_list(
            await self._server.run_model(
                "submit",
                record.model,
                [
                    record.id,
                    data,
                    int(len(data) > INLINE_RECORD_BYTES),
                    record.tenant,
                    record.band,
                    record.key_id,
                    record.n,
                    record.gateway,
                    record.slot,
                    record.deadline_ms,
                    record.attempt,
                    len(record.prompt),
                    max_queued,
                    max_concurrency or 0,
                    self._server.options.sign_of_life_ms,
                    record.model,
                    resume.SerializeToString() if resume is not None else b"",
                    ",".join(str(length) for length in held),
                    record.edge,
                    *over,
                ],
                others=others,
            )
        )
        match as_text(reply[0]):
            case "queued":
                return Queued(depth=as_int(reply[1]))
            case "full":
                raise QueueFull(depth=as_int(reply[1]), limit=max_queued)
            case "busy":
                raise ConcurrencyExceeded(running=as_int(reply[1]), limit=max_concurrency or 0)
            case "finished":
                raise RequestConflict(request=record.id)
            case answer:
                raise CommandFailed(f"submit answered {answer!r}")

    async def attach(
        self, request: str, gateway: str, slot: int, first: int, *, keeping: bool = False
    ) -> Lease | None:
        """See ``GatewayWire.attach``."""
        check_process("a gateway", gateway)
        state = await self.request_state(request)
        if state is None or state.status == "finished":
            return None
        control = Control(
            version=WIRE_VERSION,
            attach=Attach(id=request, gateway=gateway, slot=slot, first=first),
        )
        reply = as_list(
            await self._server.run_model(
                "attach",
                state.model,
                [
                    request,
                    gateway,
                    slot,
                    control.SerializeToString(),
                    self._server.options.sign_of_life_ms,
                    int(keeping),
                    MAX_PAST,
                ],
                others=[keys.requests_of(state.model, gateway)],
            )
        )
        if not reply:
            return None
        owner, attempt, overdue = reply
        return Lease(
            owner=as_text(owner),
            attempt=as_int(attempt),
            overdue_ms=as_int(overdue),
            gateway=gateway,
            slot=slot,
        )

    async def request_state(self, request: str) -> RequestState | None:
        """See ``GatewayWire.request_state``."""
        check_name("a request id", request)
        fields = as_fields(await self._server.command("HGETALL", keys.state(request)))
        if not fields:
            return None
        return state_of(fields)

    async def live_requests(self, tenant: str, key_id: str, *, limit: int) -> Sequence[str]:
        """See ``GatewayWire.live_requests``."""
        name = keys.running(check_name("a tenant", tenant), key_id)
        reply = await self._server.command("ZRANGE", name, 0, limit - 1)
        return [as_text(request) for request in as_list(reply)]

    async def standing(self, model: str, request: str) -> Standing:
        """See ``GatewayWire.standing``."""
        owner, waits, left, ahead, depth = as_list(
            await self._server.run_model(
                "standing",
                check_model(model),
                [check_name("a request id", request), keys.engine(HOLE), MAX_AHEAD],
            )
        )
        return Standing(
            owner=as_text(owner) or None,
            wait=waits_of(as_bytes(waits)).get(request),
            resumes=bool(as_int(left)),
            ahead=None if as_int(ahead) < 0 else as_int(ahead),
            depth=as_int(depth),
        )

    async def read_log(self, request: str, after: str = "0-0") -> Sequence[tuple[str, LogEntry]]:
        """See ``GatewayWire.read_log``."""
        check_name("a request id", request)
        reply = await self._server.command("XRANGE", keys.log(request), f"({after}", "+")
        entries = [
            (name, decoded(LogEntry, fields.get("entry", b"")))
            for name, fields in as_entries(reply)
        ]
        check_log(request, entries, self.foreign)
        return entries

    async def queue_depth(self, model: str) -> int:
        """See ``GatewayWire.queue_depth``. A request whose deadline passed counts no more."""
        name = keys.queued(check_model(model))
        return as_int(await self._server.run("depth", [name], []))

    async def bind_once(
        self, tenant: str, key_id: str, digest: str, value: str, *, ttl_ms: int, instead: str = ""
    ) -> str:
        """See ``GatewayWire.bind_once``."""
        name = keys.idempotency(
            check_name("a tenant", tenant),
            check_name("a key id", key_id),
            check_name("a digest", digest),
        )
        return as_text(await self._server.run("once", [name], [value, ttl_ms, instead]))


def state_of(fields: dict[str, bytes]) -> RequestState:
    """A request's state from its hash."""
    with readable("a request's state"):
        text = {name: value.decode() for name, value in fields.items() if name not in _RAW}
        status = text["status"]
        if status not in ("queued", "running", "finished"):
            raise CommandFailed(f"a request's status is {status!r}")
        return RequestState(
            status=status,
            model=text["model"],
            tenant=text["tenant"],
            key_id=text["key"],
            n=choices_of(text["n"]),
            attempt=int(text["attempt"]),
            created_ms=int(text["created"]),
            finish=FinishReason(int(text["finish"])) if "finish" in text else None,
            usage=Usage.FromString(as_bytes(fields["usage"])) if "usage" in fields else None,
            prompt_tokens=int(text["prompt"]),
            gateway=text["gateway"],
            edge=fields["edge"],
            tokens=sum(int(part) for part in text["lengths"].split(",") if part),
        )
