"""Result frames and fences in out streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_contracts import keys
from headrace_contracts.pb.queue_pb2 import Fence, Frame

from headrace_transport.engine_end import EngineEnd
from headrace_transport.foreign import Foreign
from headrace_transport.interface import FrameId, OutEntry
from headrace_transport.names import check_process
from headrace_transport.part import Part
from headrace_transport.replies import Argument, Reply, as_entries, as_list, as_text, decoded

_READ = 256
"""Entries of one read."""


class FrameReads(Part):
    """The gateway's end of its out stream."""

    async def read_out(self, gateway: str, after: FrameId, *, block_ms: int) -> Sequence[OutEntry]:
        """See ``GatewayWire.read_out``."""
        stream = keys.out(check_process("a gateway", gateway))
        reply = await self._server.blocking(
            stream,
            *("XREAD", "COUNT", _READ, "BLOCK", max(1, block_ms), "STREAMS", stream, after),
            block_ms=block_ms,
        )
        streams = as_list(reply)
        return out_entries(as_list(streams[0])[1], self.foreign) if streams else []

    async def trim_out(self, gateway: str, below: FrameId) -> None:
        """See ``GatewayWire.trim_out``."""
        stream = keys.out(check_process("a gateway", gateway))
        await self._server.command("XTRIM", stream, "MINID", below)


class FrameWrites(Part, EngineEnd):
    """The engine's end of all out streams."""

    async def post(self, entries: Sequence[tuple[str, Frame | Fence]]) -> Sequence[FrameId | None]:
        """Appends in one round trip; None for a gateway that was reaped."""
        if not entries:
            return []
        names = [keys.GATEWAYS, *(keys.out(gateway) for gateway, _ in entries)]
        arguments: list[Argument] = []
        for gateway, item in entries:
            field = "frame" if isinstance(item, Frame) else "fence"
            arguments += [gateway, field, item.SerializeToString()]
        reply = as_list(await self._server.run("post", names, arguments))
        return [FrameId(as_text(name)) if name else None for name in reply]

    async def frames_of(
        self, gateway: str, after: FrameId, before: FrameId | None
    ) -> Sequence[OutEntry]:
        """See ``ClaimSteps.frames_of``."""
        end = "+" if before is None else f"({before}"
        found: list[OutEntry] = []
        while True:
            stream = keys.out(gateway)
            reply = await self._server.command("XRANGE", stream, f"({after}", end, "COUNT", _READ)
            found += out_entries(reply, self.foreign)
            if len(as_list(reply)) < _READ:
                return found
            after = found[-1].id


def out_entries(reply: Reply, foreign: Foreign) -> list[OutEntry]:
    """Every entry of a reply, so that a reader moves past all of them."""
    return [
        OutEntry(id=FrameId(name), item=_item_of(fields, foreign))
        for name, fields in as_entries(reply)
    ]


def _item_of(fields: Mapping[str, bytes], foreign: Foreign) -> Frame | Fence | None:
    if "frame" in fields:
        frame = decoded(Frame, fields["frame"])
        return frame if foreign.is_ours("frame", frame.version) else None
    if "fence" in fields:
        fence = decoded(Fence, fields["fence"])
        return fence if foreign.is_ours("fence", fence.version) else None
    return None
