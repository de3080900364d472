"""Control entries for one engine process."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_contracts import keys
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import Control

from headrace_transport.names import check_process
from headrace_transport.part import Part
from headrace_transport.replies import as_entries, as_list

_READ = 256


class ControlReads(Part):
    """An engine's control stream."""

    async def read_control(
        self, engine: str, after: str, *, block_ms: int
    ) -> Sequence[tuple[str, Control]]:
        """See ``EngineWire.read_control``. What was read before ``after`` is deleted."""
        stream = keys.control(check_process("an engine", engine))
        reply = await self._server.blocking(
            stream,
            *("XREAD", "COUNT", _READ, "BLOCK", max(1, block_ms), "STREAMS", stream, after),
            block_ms=block_ms,
        )
        streams = as_list(reply)
        if not streams:
            return []
        entries = [
            (name, Control.FromString(fields["control"]))
            for name, fields in as_entries(as_list(streams[0])[1])
            if "control" in fields
        ]
        # safe: one reader per engine process, and these entries are nudges, not work
        await self._server.command("XTRIM", stream, "MINID", after)
        return [(name, control) for name, control in entries if control.version == WIRE_VERSION]
