"""Leases of the processes themselves, and the reaper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from headrace_contracts import keys
from headrace_contracts.keys import BANDS, HOLE
from headrace_contracts.limits import MAX_CRASHES, SUSPECT_CRASHES, WIRE_VERSION
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.queue_pb2 import CancelMark, Control, Drain

from headrace_transport.cancels import CancelMarks
from headrace_transport.cards import CardReads
from headrace_transport.errors import CommandFailed
from headrace_transport.interface import EngineInfo, Wait
from headrace_transport.names import check_model, check_process, name_of
from headrace_transport.replies import as_bytes, as_fields, as_int, as_list, as_text, readable

_WAITS = 256
"""Requests of which an engine tells why they wait."""
_REAP = 256
"""Requests and processes that one reaping looks at, of each kind."""


class Reaper(CardReads):
    """Clears what the dead left."""

    async def reap(self, model: str) -> None:
        """See ``GatewayWire.reap``."""
        if self._server.calm_s < self._server.options.reap_after_outage_s:
            return
        stranded, expired, marked = as_list(
            await self._server.run_model(
                "reap",
                check_model(model),
                [
                    self._server.options.resume_grace_ms,
                    keys.engines(model),
                    keys.engine(HOLE),
                    keys.gateway(HOLE),
                    _REAP,
                    SUSPECT_CRASHES,
                    MAX_CRASHES,
                    BANDS,
                ],
            )
        )
        marks = CancelMarks(self._server)
        for ids, reason in (
            (stranded, codes_pb2.FINISH_REASON_CANCELLED),
            (expired, codes_pb2.FINISH_REASON_DEADLINE),
        ):
            for request in as_list(ids):
                with self.damaged.skipped("request", repr(request)):
                    await marks.cancel(model, as_text(request), CancelMark(reason=reason))
        with self.damaged.skipped("card", model):
            await self.keep_blobs(model)
        flat = as_list(marked)
        for name, mark in zip(flat[::2], flat[1::2], strict=True):
            with self.damaged.skipped("request", repr(name)), readable("a cancel mark"):
                await marks.cancel(model, as_text(name), CancelMark.FromString(as_bytes(mark)))


class GatewayLeases(Reaper):
    """What a gateway says and asks about processes."""

    async def beat_gateway(self, gateway: str, *, ttl_ms: int) -> None:
        """See ``GatewayWire.beat_gateway``."""
        check_process("a gateway", gateway)
        names = [keys.gateway(gateway), keys.GATEWAYS]
        await self._server.run("beat", names, [gateway, ttl_ms])

    async def leave_gateway(self, gateway: str, *, keep_ms: int = 0) -> None:
        """See ``GatewayWire.leave_gateway``."""
        if keep_ms:
            # The last beat. The out stream stays too: what is in it may be in no log yet.
            await self.beat_gateway(gateway, ttl_ms=keep_ms)
            return
        await self._server.pipeline(
            [
                ("ZREM", keys.GATEWAYS, gateway),
                ("DEL", keys.gateway(gateway), keys.out(gateway)),
            ]
        )

    async def take_sweep(self, gateway: str, *, ttl_ms: int) -> bool:
        """See ``GatewayWire.take_sweep``."""
        check_process("a gateway", gateway)
        return bool(as_int(await self._server.run("hold", [keys.SWEEPER], [gateway, ttl_ms])))

    async def engines(self, model: str) -> Sequence[EngineInfo]:
        """See ``GatewayWire.engines``."""
        name = keys.engines(check_model(model))
        reply = as_list(await self._server.run("present", [name], [keys.engine(HOLE)]))
        found: list[EngineInfo] = []
        for name, hashed in zip(reply[::2], reply[1::2], strict=True):
            with self.damaged.skipped("engine", repr(name)):
                if fields := as_fields(hashed):
                    found.append(_info(as_text(name), fields))
        return found

    async def drain_engine(self, engine: str, *, grace_ms: int) -> bool:
        """See ``GatewayWire.drain_engine``."""
        check_process("an engine", engine)
        if not as_int(await self._server.command("EXISTS", keys.engine(engine))):
            return False
        entry = Control(version=WIRE_VERSION, drain=Drain(grace_ms=grace_ms))
        stream = keys.control(engine)
        await self._server.pipeline(
            [
                ("XADD", stream, "*", "control", entry.SerializeToString()),
                ("PEXPIRE", stream, self._server.options.log_ttl_ms),
            ]
        )
        return True


class EngineLeases(Reaper):
    """What an engine says about processes."""

    async def beat_engine(self, info: EngineInfo, *, ttl_ms: int) -> None:
        """See ``EngineWire.beat_engine``."""
        check_process("an engine", info.process)
        await self._server.run(
            "beat",
            [keys.engine(info.process), keys.engines(check_model(info.model))],
            [
                *(info.process, ttl_ms),
                *("model", info.model, "state", info.state),
                *("running", info.running, "waiting", info.waiting),
                *("free_blocks", info.free_blocks, "total_blocks", info.total_blocks),
                *("waits", _waits_text(info.waits)),
            ],
        )

    async def leave_engine(self, info: EngineInfo) -> None:
        """See ``EngineWire.leave_engine``."""
        await self._server.pipeline(
            [
                ("ZREM", keys.engines(info.model), info.process),
                ("DEL", keys.engine(info.process), keys.control(info.process)),
            ]
        )

    async def supersede(self, model: str, engine: str) -> int:
        """See ``EngineWire.supersede``."""
        check_process("an engine", engine)
        return as_int(
            await self._server.run_model(
                "supersede",
                check_model(model),
                [engine, f"{name_of(engine)}-", keys.engines(model), keys.engine(HOLE)],
            )
        )


def _info(process: str, fields: dict[str, bytes]) -> EngineInfo:
    with readable(f"the engine {process}"):
        state = fields["state"].decode()
        if state not in ("loading", "ready", "draining"):
            raise CommandFailed(f"an engine's state is {state!r}")
        return EngineInfo(
            process=process,
            model=fields["model"].decode(),
            state=state,
            running=int(fields["running"]),
            waiting=int(fields["waiting"]),
            free_blocks=int(fields["free_blocks"]),
            total_blocks=int(fields["total_blocks"]),
            waits=waits_of(fields.get("waits", b"")),
        )


def waits_of(text: bytes) -> dict[str, Wait]:
    """What an engine says of the requests that wait in it, from its hash."""
    found: dict[str, Wait] = {}
    with readable("why requests wait in an engine"):
        for line in text.decode().splitlines():
            request, reason, detail = line.split(" ")
            found[request] = Wait(reason, int(detail))
    return found


def _waits_text(waits: Mapping[str, Wait]) -> str:
    """One line each: ids and reasons hold no space."""
    some = islice(waits.items(), _WAITS)
    return "\n".join(f"{request} {wait.reason} {wait.detail}" for request, wait in some)
