"""What an engine's end does alike over every transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from headrace_contracts.pb.queue_pb2 import Fence, Frame, LogEntry

from headrace_transport.interface import FrameId, Logged
from headrace_transport.logs import append_all


class EngineEnd(ABC):
    """Frames and appends, by the steps of one transport."""

    @abstractmethod
    async def post(self, entries: Sequence[tuple[str, Frame | Fence]]) -> Sequence[FrameId | None]:
        """See ``ClaimSteps.post``."""

    @abstractmethod
    async def _append(
        self, engine: str, entries: Sequence[tuple[str, int, LogEntry]]
    ) -> Sequence[Logged]: ...

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
