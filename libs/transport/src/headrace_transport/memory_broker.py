"""What the wires in memory share: the broker, which is to them what a server is to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import inf

from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import (
    CancelMark,
    CancelNudge,
    Control,
    Fence,
    Frame,
    LogEntry,
    ModelCard,
)
from headrace_kit.clock import Clock, SystemClock

from headrace_transport.damaged import Damaged
from headrace_transport.endings import ending_of, terminal_frame, total_usage
from headrace_transport.errors import TransportUnavailable
from headrace_transport.foreign import Foreign
from headrace_transport.interface import ApiKey, EngineInfo, FrameId
from headrace_transport.memory_streams import Stream
from headrace_transport.memory_work import ModelWork, Work
from headrace_transport.names import check_model
from headrace_transport.options import WireOptions
from headrace_transport.rates import Buckets
from headrace_transport.replies import decoded

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

    def reserved_ms(self, deadline_ms: int) -> int:
        """Until when a request that is submitted now counts for its key, as ``submit.lua``."""
        now = self.now_ms()
        if not deadline_ms:
            return now + self.options.reservation_ms
        return max(deadline_ms, now) + self.options.state_ttl_ms

    def post(self, gateway: str, item: Frame | Fence) -> FrameId | None:
        """Appends to the out stream of a gateway that is alive."""
        if gateway not in self.gateways:
            return None
        # a copy: the caller may fill the same message again
        data = item.SerializeToString()
        copy = decoded(Frame, data) if isinstance(item, Frame) else decoded(Fence, data)
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


class MemoryPart:
    """Base of the parts that ``headrace_transport.memory`` composes into wires."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.damaged = Damaged(broker.clock.monotonic)
        self.foreign = Foreign(self.damaged, broker.clock.monotonic)

    async def ping(self) -> None:
        """Raises ``TransportUnavailable`` while the broker is down."""
        await self._broker.enter()

    async def close(self) -> None:
        """Leaves the broker as it is: others share it."""

    def _known(self, item: Frame | Fence) -> Frame | Fence | None:
        kind = "frame" if isinstance(item, Frame) else "fence"
        return item if self.foreign.is_ours(kind, item.version) else None
