"""A gateway over the wire in memory, with an engine that a test scripts by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.queue_pb2 import (
    Attach,
    CancelMark,
    Frame,
    LogEntry,
    ModelCard,
    RequestRecord,
    RowFinish,
    RowLogprobs,
    RowStart,
    Usage,
)
from headrace_gateway.inference.calls import (
    Call,
    Caller,
    Delta,
    Done,
    Event,
    Prompt,
    SamplingCall,
    TextPrompt,
)
from headrace_gateway.inference.catalog import Catalog
from headrace_gateway.inference.readiness import Readiness
from headrace_gateway.inference.running import Running
from headrace_gateway.inference.service import InferenceService
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.settings import GatewaySettings
from headrace_gateway.text.pipeline import TextPipeline
from headrace_kit.clock import Clock, SystemClock
from headrace_kit.metrics import Registry
from headrace_transport.interface import Claimed, EngineInfo, EngineWire, GatewayWire, Lease
from headrace_transport.memory import MemoryEngineWire, MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.toy_tokenizers import byte_level
from support.waiting import PATIENCE_S, eventually

MODEL = "toy"
END = 256
"""Id of the toy model's end token; every other one is a byte."""
CONTEXT = 128

CALLER = Caller(
    key_id="key1",
    tenant="acme",
    band=1,
    scopes=frozenset({"inference"}),
    models=frozenset(),
    max_concurrency=None,
)


def toy_files() -> dict[str, bytes]:
    """Files of the toy model: one token a byte."""
    return {"tokenizer.json": byte_level([("<end>", True), ("<begin>", True)])}


def toy_card(model: str = MODEL, **fields: Any) -> ModelCard:
    """The toy model's card."""
    card = ModelCard(
        version=WIRE_VERSION,
        model=model,
        created=1_800_000_000,
        context_tokens=CONTEXT,
        block_tokens=16,
        vocabulary=258,
        weights_version="w1",
        chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
        end_token_ids=[END],
        architecture="toy",
        dtype="float32",
        special_tokens={"eos_token": "<end>"},
    )
    for name, data in toy_files().items():
        card.files[name] = f"sha256:{sha256(data).hexdigest()}"
    for name, value in fields.items():
        setattr(card, name, value)
    return card


def toy_ids(text: str) -> list[int]:
    """Token ids of a text, in the toy model."""
    return TextPipeline.from_card(toy_card(), toy_files()).encode_text(text)


def call(
    *prompts: Prompt | str,
    request_id: str = "cmpl-1",
    caller: Caller = CALLER,
    model: str = MODEL,
    sampling: SamplingCall | None = None,
    **fields: Any,
) -> Call:
    """A completions call."""
    return Call(
        kind="completion",
        model=model,
        prompts=[TextPrompt(p) if isinstance(p, str) else p for p in prompts],
        sampling=sampling or SamplingCall(max_tokens=16),
        caller=caller,
        request_id=request_id,
        **fields,
    )


class ScriptedEngine:
    """Claims records and says what a test wants it to say, as one engine process would."""

    def __init__(self, wire: EngineWire, name: str = "engine-a", model: str = MODEL) -> None:
        self.wire = wire
        self.name = name
        self.model = model
        self._pass = 0
        self._control = "0-0"
        self._unobeyed: list[Attach] = []
        self.said: dict[tuple[str, int], list[int]] = {}
        self.routes: dict[str, tuple[str, int]] = {}

    async def appear(self, *, ttl_ms: int = 600_000) -> None:
        """Beats, and puts the toy model's card and files."""
        for data in toy_files().values():
            await self.wire.put_blob(data)
        await self.wire.put_card(toy_card(self.model))
        await self.wire.beat_engine(self._info("ready"), ttl_ms=ttl_ms)

    async def leave(self) -> None:
        """Ends its own lease, as one that stops."""
        await self.wire.leave_engine(self._info("ready"))

    def _info(self, state: Any) -> EngineInfo:
        return EngineInfo(
            process=self.name,
            model=self.model,
            state=state,
            running=0,
            waiting=0,
            free_blocks=10,
            total_blocks=10,
        )

    async def claim(self, count: int = 1, *, lease_ms: int = 60_000) -> list[Claimed]:
        """Claims exactly ``count`` requests, waiting for them."""
        claimed: list[Claimed] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(claimed) < count:
                found = await self.wire.claim(
                    self.model, self.name, credit=count - len(claimed), lease_ms=lease_ms
                )
                claimed.extend(found)
                if not found:
                    await self.wire.wait_bell(self.model, timeout_ms=20)
        for each in claimed:
            self.routes[each.record.id] = (each.record.gateway, each.record.slot)
            for choice, tokens in enumerate(each.delivered):
                self.said[(each.record.id, choice)] = list(tokens)
        return claimed

    async def say(
        self,
        claimed: Claimed,
        tokens: Sequence[int] | str = (),
        *,
        choice: int = 0,
        first: int | None = None,
        attempt: int | None = None,
        finish: FinishReason | None = None,
        code: Code | None = None,
        message: str = "",
        logprobs: RowLogprobs | None = None,
        cached: int | None = None,
        publish: bool = True,
        log: bool = True,
    ) -> None:
        """One row: its frame, its log entry, and ``finish`` when it is the last choice's end.

        ``publish`` False: the frame got lost. ``log`` False: the log lags behind.
        """
        ids = toy_ids(tokens) if isinstance(tokens, str) else list(tokens)
        record = claimed.record
        said = self.said.setdefault((record.id, choice), [])
        start = len(said) if first is None else first
        del said[start:]
        said.extend(ids)
        if publish:
            frame = self._frame(record, choice, start, ids, attempt or claimed.attempt, log=log)
            if logprobs is not None:
                logprobs.row = 0
                frame.logprobs.append(logprobs)
            if cached is not None:
                frame.starts.append(RowStart(row=0, cached_tokens=cached, engine_queue_us=1500))
            if finish is not None:
                frame.finishes.append(self._finish(finish, code, message, record, len(said)))
            await self.publish(record.id, frame)
        if log and finish is None:
            await self.wire.append_log(
                self.name, record.id, claimed.attempt, self._entry(claimed, choice, start, ids)
            )

    async def end(
        self, claimed: Claimed, finishes: Mapping[int, FinishReason], *, since: Sequence[int] = ()
    ) -> bool:
        """Settles a request: the last log entry holds what each choice said from ``since`` on."""
        record = claimed.record
        entry = LogEntry(version=WIRE_VERSION, attempt=claimed.attempt)
        total = Usage(prompt_tokens=len(record.prompt))
        for row, (choice, reason) in enumerate(sorted(finishes.items())):
            said = self.said.get((record.id, choice), [])
            begin = since[choice] if since else len(said)
            entry.choices.append(choice)
            entry.firsts.append(begin)
            entry.counts.append(len(said) - begin)
            entry.tokens.extend(said[begin:])
            finish = self._finish(reason, None, "", record, len(said))
            finish.row = row
            entry.finishes.append(finish)
            total.completion_tokens += len(said)
        settled = await self.wire.finish(
            self.model,
            self.name,
            record.id,
            claimed.attempt,
            entry=entry,
            reason=next(iter(finishes.values())),
            usage=total,
        )
        return settled.ours

    async def publish(self, request: str, frame: Frame) -> None:
        """Sends a frame to whoever reads the request now."""
        gateway, _ = self.routes[request]
        await self.wire.publish({gateway: frame})

    async def obey_attach(self, claimed: Claimed, *, by: str = "") -> Attach:
        """Waits for an attach of a request, and obeys every one up to the newest: the request's
        rows go there from then on.

        ``by``: the gateway whose attach is waited for; without it, any but the one that submitted
        the request. A gateway that hears nothing for a while attaches anew, so there may be more
        of them than resumes.
        """
        first = claimed.record.gateway
        async with asyncio.timeout(PATIENCE_S):
            while True:
                wanted: Attach | None = None
                for attach in await self._attaches(claimed.record.id):
                    await self._obey(claimed, attach)
                    if attach.gateway == by or (not by and attach.gateway != first):
                        wanted = attach
                if wanted is not None:
                    return wanted
                await asyncio.sleep(0.01)

    async def _attaches(self, request: str) -> list[Attach]:
        """Those of a request that came since the last look; others' stay for theirs."""
        entries = await self.wire.read_control(self.name, self._control, block_ms=0)
        for name, control in entries:
            self._control = name
            if control is not None and control.HasField("attach"):
                self._unobeyed.append(control.attach)
        found = [attach for attach in self._unobeyed if attach.id == request]
        self._unobeyed = [attach for attach in self._unobeyed if attach.id != request]
        return found

    async def _obey(self, claimed: Claimed, attach: Attach) -> None:
        self.routes[attach.id] = (attach.gateway, attach.slot)
        for choice in range(claimed.record.n):
            rest = self.said.get((attach.id, choice), [])[attach.first :]
            if rest:
                frame = self._frame(
                    claimed.record, choice, attach.first, rest, claimed.attempt, log=False
                )
                await self.publish(attach.id, frame)

    async def marks(self, claimed: Claimed) -> list[CancelMark]:
        """Cancel marks of a request."""
        found = await self.wire.cancels(self.model, [claimed.record.id])
        return list(found.get(claimed.record.id, ()))

    async def await_mark(self, claimed: Claimed) -> CancelMark:
        """The first mark, once it is there."""
        await eventually(lambda: self.marks(claimed))
        return (await self.marks(claimed))[0]

    def _frame(
        self,
        record: RequestRecord,
        choice: int,
        first: int,
        ids: Sequence[int],
        attempt: int,
        *,
        log: bool,
    ) -> Frame:
        self._pass += 1
        _, slot = self.routes[record.id]
        return Frame(
            version=WIRE_VERSION,
            engine=self.name,
            pass_id=self._pass,
            slots=[slot + choice],
            attempts=[attempt],
            firsts=[first],
            counts=[len(ids)],
            tokens=ids,
            logged=[first if log else 0],
        )

    def _entry(self, claimed: Claimed, choice: int, first: int, ids: Sequence[int]) -> LogEntry:
        return LogEntry(
            version=WIRE_VERSION,
            attempt=claimed.attempt,
            choices=[choice],
            firsts=[first],
            counts=[len(ids)],
            tokens=ids,
        )

    def _finish(
        self,
        reason: FinishReason,
        code: Code | None,
        message: str,
        record: RequestRecord,
        completion: int,
    ) -> RowFinish:
        return RowFinish(
            row=0,
            reason=reason.value,
            code=codes_pb2.CODE_UNSPECIFIED if code is None else code.value,
            message=message,
            usage=Usage(prompt_tokens=len(record.prompt), completion_tokens=completion),
        )


class Gateway:
    """One gateway process's service, for as long as a test wants it."""

    def __init__(
        self,
        wire: GatewayWire,
        *,
        name: str = "gateway-a",
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or SystemClock()
        quick = {"silence_check_s": 0.2, "card_cache_s": 0.0, "keepalive_s": 60.0}
        self.settings = GatewaySettings.model_validate(quick | settings)
        self.metrics = GatewayMetrics(Registry("gateway"))
        self.threads = ThreadPoolExecutor(1)
        catalog = Catalog(
            wire,
            self.clock,
            make_text=TextPipeline.from_card,
            threads=self.threads,
            cache_s=self.settings.card_cache_s,
        )
        self.readiness = Readiness(wire, cold=catalog.cold)
        self.service = InferenceService(
            wire,
            catalog,
            self.settings,
            self.metrics,
            self.readiness,
            self.clock,
            threads=self.threads,
            process=name,
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[InferenceService]:
        """The service, with everything that runs beside it."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.service.run(stop))
            try:
                yield self.service
            finally:
                stop.set()
        self.threads.shutdown()

    def value(self, name: str, **labels: str) -> float:
        """The present value of a metric, 0 when it has none."""
        for family in self.metrics.registry.families():
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0


class LateAttach(MemoryGatewayWire):
    """An attach stays on its way until it is let through; somebody else may come first."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.on_its_way = asyncio.Event()
        self.through = asyncio.Event()

    async def attach(
        self, request: str, gateway: str, slot: int, first: int, *, keeping: bool = False
    ) -> Lease | None:
        self.on_its_way.set()
        await self.through.wait()
        return await super().attach(request, gateway, slot, first, keeping=keeping)


class LateCancel(MemoryGatewayWire):
    """A cancel stays on its way until it is let through."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.on_its_way = asyncio.Event()
        self.through = asyncio.Event()

    async def cancel(self, model: str, request: str, mark: CancelMark) -> bool:
        self.on_its_way.set()
        await self.through.wait()
        return await super().cancel(model, request, mark)


class Stack:
    """A broker, one engine and as many gateways as a test makes."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.broker = MemoryBroker(clock=self.clock)
        self.engine = self.another_engine("engine-a")

    async def queue_is_empty(self) -> bool:
        """Whether no request of the toy model waits."""
        return await MemoryGatewayWire(self.broker).queue_depth(MODEL) == 0

    def another_engine(self, name: str) -> ScriptedEngine:
        """A further engine process."""
        return ScriptedEngine(MemoryEngineWire(self.broker), name)

    @asynccontextmanager
    async def claimed(
        self, gateway: Gateway, made: Call | None = None
    ) -> AsyncGenerator[tuple[InferenceService, Running, Claimed]]:
        """A gateway that runs, and a call of it whose only request the engine has claimed."""
        async with gateway.running() as service:
            await self.engine.appear()
            running = await service.start(made or call("x"))
            [claimed] = await self.engine.claim()
            yield service, running, claimed

    def gateway(self, name: str = "gateway-a", **settings: Any) -> Gateway:
        """A gateway process."""
        wire = MemoryGatewayWire(self.broker)
        return Gateway(wire, name=name, clock=self.clock, **settings)


async def read(running: Running, *, until: int | None = None) -> list[Event]:
    """Events of a call to its end, or the first ``until``."""
    events: list[Event] = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in running:
            events.append(event)
            if until is not None and len(events) >= until:
                break
    return events


def texts(events: Sequence[Event]) -> dict[int, str]:
    """Text of each choice."""
    joined: dict[int, str] = {}
    for event in events:
        if isinstance(event, Delta):
            joined[event.index] = joined.get(event.index, "") + event.text
    return joined


def finishes(events: Sequence[Event]) -> dict[int, FinishReason]:
    """End of each choice. Asserts that none ends twice, or goes on after its end."""
    ended: dict[int, FinishReason] = {}
    for event in events:
        if isinstance(event, Delta):
            assert event.index not in ended, "a delta after the end"
            if event.finish is not None:
                ended[event.index] = event.finish
    return ended


def done(events: Sequence[Event]) -> Done:
    """The last event, which must be the only ``Done``."""
    assert isinstance(events[-1], Done)
    assert sum(isinstance(event, Done) for event in events) == 1
    return events[-1]
