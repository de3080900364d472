"""Control entries for one engine process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_contracts import keys
from headrace_contracts.pb.queue_pb2 import Control

from headrace_transport.names import check_process
from headrace_transport.part import Part
from headrace_transport.replies import as_entries, as_list, decoded

_READ = 256


class ControlReads(Part):
    """An engine's control stream."""

    async def read_control(
        self, engine: str, after: str, *, block_ms: int
    ) -> Sequence[tuple[str, Control | None]]:
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
            (name, self._control_of(fields)) for name, fields in as_entries(as_list(streams[0])[1])
        ]
        # safe: one reader per engine process, and these entries are nudges, not work
        await self._server.command("XTRIM", stream, "MINID", after)
        return entries

    def _control_of(self, fields: Mapping[str, bytes]) -> Control | None:
        if "control" not in fields:
            return None
        control = decoded(Control, fields["control"])
        return control if self.foreign.is_ours("control", control.version) else None
