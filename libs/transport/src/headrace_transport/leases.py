"""Work and its leases, from the engine's side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_contracts import keys
from headrace_contracts.codes import FinishReason
from headrace_contracts.keys import BANDS, HOLE
from headrace_contracts.limits import GENERATED_WEIGHT, MAX_CRASHES, SUSPECT_CRASHES
from headrace_contracts.pb.queue_pb2 import LogEntry, Usage

from headrace_transport.cancels import marks_by_id, marks_of
from headrace_transport.claims import Claims, Taken
from headrace_transport.errors import CommandFailed
from headrace_transport.frames import FrameWrites
from headrace_transport.interface import Claimed, Logged, Renewed, Settled
from headrace_transport.names import check_model, check_process
from headrace_transport.replies import (
    Argument,
    Reply,
    as_bytes,
    as_entries,
    as_int,
    as_list,
    as_text,
    decoded,
)
from headrace_transport.server import Server

_LOOKS = 128
"""Requests, tenants and expired leases that one claim looks at besides what it gives."""


class Leases(FrameWrites):
    """The engine's requests over Redis. Implements ``ClaimSteps``."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._claims = Claims(self, self.foreign)

    async def wait_bell(self, model: str, *, timeout_ms: int) -> bool:
        """See ``EngineWire.wait_bell``."""
        bell = keys.bell(check_model(model))
        seconds = max(timeout_ms, 1) / 1000
        reply = await self._server.blocking(bell, "BLPOP", bell, seconds, block_ms=timeout_ms)
        return reply is not None

    async def claim(
        self, model: str, engine: str, *, credit: int, lease_ms: int
    ) -> Sequence[Claimed]:
        """See ``EngineWire.claim``."""
        check_process("an engine", engine)
        return await self._claims.claim(
            check_model(model), engine, credit=credit, lease_ms=lease_ms
        )

    async def renew(
        self, model: str, engine: str, attempts: Mapping[str, int], *, lease_ms: int
    ) -> Renewed:
        """See ``EngineWire.renew``."""
        if not attempts:
            return Renewed(lost=(), cancelled={})
        lost, cancelled = as_list(
            await self._server.run_model("renew", model, [engine, lease_ms, *_flat(attempts)])
        )
        return Renewed(
            lost=[as_text(name) for name in as_list(lost)], cancelled=marks_by_id(cancelled)
        )

    async def release(self, model: str, engine: str, attempts: Mapping[str, int]) -> None:
        """See ``EngineWire.release``."""
        if attempts:
            arguments = [engine, SUSPECT_CRASHES, MAX_CRASHES, *_flat(attempts)]
            await self._server.run_model("release", model, arguments)

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
        """See ``EngineWire.finish``. Safe to repeat: it answers alike the second time."""
        arguments: list[Argument] = [
            engine,
            request,
            attempt,
            entry.SerializeToString() if entry.choices else b"",
            int(reason),
            usage.SerializeToString(),
            usage.completion_tokens * GENERATED_WEIGHT,
        ]
        return Settled(ours=as_int(await self._server.run_model("finish", model, arguments)) == 1)

    async def _append(
        self, engine: str, entries: Sequence[tuple[str, int, LogEntry]]
    ) -> Sequence[Logged]:
        calls: list[tuple[list[str], list[Argument]]] = []
        for request, attempt, entry in entries:
            arguments: list[Argument] = [keys.leases(HOLE), request, engine, attempt]
            arguments.append(entry.SerializeToString())
            for row in zip(entry.choices, entry.firsts, entry.counts, strict=True):
                arguments += row
            calls.append(([keys.state(request), keys.log(request)], arguments))
        return [_logged(reply) for reply in await self._server.run_many("append_log", calls)]

    # steps of a claim
    async def take(self, model: str, engine: str, *, credit: int, lease_ms: int) -> Sequence[Taken]:
        """The claim itself, in one script."""
        arguments: list[Argument] = [
            engine,
            credit,
            lease_ms,
            SUSPECT_CRASHES,
            MAX_CRASHES,
            BANDS,
            credit + _LOOKS,
            # After an outage others could not renew either: they get the time to.
            int(self._server.calm_s * 1000 >= lease_ms / 2),
        ]
        others = [keys.holding(model, engine)]
        reply = await self._server.run_model("claim", model, arguments, others=others)
        return [_taken(as_list(row)) for row in as_list(reply)]

    async def log_of(self, request: str) -> Sequence[LogEntry]:
        """All of a request's resume log."""
        try:
            reply = await self._server.command("XRANGE", keys.log(request), "-", "+")
        except CommandFailed:  # it is of another type
            return [LogEntry()]
        return [decoded(LogEntry, fields.get("entry", b"")) for _, fields in as_entries(reply)]

    async def bury(
        self, model: str, engine: str, request: str, attempt: int, *, why: str, usage: Usage
    ) -> Settled:
        """Moves a request to the dead letters."""
        arguments: list[Argument] = [
            engine,
            request,
            attempt,
            why,
            int(FinishReason.ERROR),
            usage.SerializeToString(),
        ]
        return Settled(ours=as_int(await self._server.run_model("bury", model, arguments)) == 1)


def _logged(reply: Reply) -> Logged:
    ours, *lengths = as_list(reply)
    return Logged(ours=as_int(ours) == 1, lengths=[as_int(length) for length in lengths])


def _flat(attempts: Mapping[str, int]) -> list[Argument]:
    return [item for pair in attempts.items() for item in pair]


def _taken(row: list[Reply]) -> Taken:
    verdict = as_text(row[3])
    if verdict not in ("run", "poison", "expired", "lost"):
        raise CommandFailed(f"a claim's verdict is {verdict!r}")
    past = as_bytes(row[9]).decode(errors="replace").split()
    return Taken(
        id=as_text(row[0]),
        attempt=as_int(row[1]),
        crashes=as_int(row[2]),
        verdict=verdict,
        gateway=as_bytes(row[4]).decode(errors="replace"),
        slot=as_int(row[5]),
        n=as_int(row[6]),
        prompt_tokens=as_int(row[7]),
        begun=as_int(row[8]) == 1,
        # of a damaged state as much as can be told
        past=[
            (name, int(slot))
            for name, slot in zip(past[::2], past[1::2], strict=False)
            if slot.isdecimal()
        ],
        record=as_bytes(row[10]),
        marks=marks_of(row[11]),
    )
