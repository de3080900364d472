"""An inference service for the edges' tests: it says what a test wrote down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headrace_contracts.codes import FinishReason
from headrace_gateway.errors import (
    GatewayError,
    InvalidApiKey,
    ModelNotFound,
    PermissionDenied,
    RequestNotFound,
)
from headrace_gateway.inference.calls import (
    Call,
    Caller,
    Delta,
    Done,
    Event,
    RateState,
    TokenInfo,
    UsageTotal,
)
from headrace_kit.traces import NO_SPAN, Span

KEY = "hr-test-key-0123456789"
MODEL = "small/model"

Step = Event | GatewayError | Exception | float | asyncio.Event
"""An event, an error to raise, seconds to sleep, or something to wait for."""


def words(*texts: str, index: int = 0, finish: FinishReason = FinishReason.STOP) -> list[Step]:
    """One delta a text, the last with the reason."""
    return [
        Delta(
            index=index,
            text=text,
            token_ids=(position,),
            tokens=(),
            cursor=position + 1,
            finish=finish if position == len(texts) - 1 else None,
        )
        for position, text in enumerate(texts)
    ]


def token(text: str | bytes, logprob: float = -0.5) -> TokenInfo:
    """A token whose only candidate is itself."""
    raw = text.encode() if isinstance(text, str) else text
    return TokenInfo(id=7, text=raw.decode(errors="replace"), raw=raw, logprob=logprob, top=())


@dataclass
class FakeRunning:
    """A running call that plays its steps."""

    id: str
    model: str
    steps: list[Step]
    created_s: int = 1_800_000_000
    system_fingerprint: str = "fp_fake"
    rates: RateState | None = None
    cursor: str = ""
    closed: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by ``aclose``."""
    ended: bool = False
    push: Callable[[Delta], bool] | None = None
    refused: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when ``push`` took a delta not."""

    def __aiter__(self) -> FakeRunning:
        return self

    def follow(self, push: Callable[[Delta], bool]) -> None:
        """Whether the consumer waits or not: every delta goes to ``push`` if it is taken there."""
        self.push = push

    async def __anext__(self) -> Event:
        while self.steps:
            step = self.steps.pop(0)
            match step:
                case Exception():
                    raise step
                case float() | int():
                    await asyncio.sleep(step)
                case asyncio.Event():
                    await step.wait()
                case _:
                    if isinstance(step, Delta):
                        self.cursor = str(step.cursor)
                        if step.finish is None and self.push is not None:
                            await asyncio.sleep(0)
                            if self.push(step):
                                continue
                            self.refused.set()
                    self.ended = isinstance(step, Done)
                    return step
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed += 1
        self.gone.set()


@dataclass(frozen=True)
class FakeModel:
    id: str = MODEL
    created: int = 1_700_000_000
    context_tokens: int = 8192
    ready: bool = True


@dataclass(frozen=True)
class FakeRequestInfo:
    id: str
    model: str = MODEL
    status: str = "finished"
    created_ms: int = 1_800_000_000_123
    attempt: int = 1
    finish: FinishReason | None = FinishReason.STOP
    usage: UsageTotal | None = field(default_factory=lambda: UsageTotal(3, 2, 0))
    tokens: int = 2


@dataclass(frozen=True)
class FakeListed:
    info: FakeRequestInfo
    reason: str = "queue"


@dataclass(frozen=True)
class FakeWhy:
    id: str
    status: str = "queued"
    reason: str = "queue"
    explanation: str = "It waits."
    waited_s: float = 1.5
    tokens: int = 0
    ahead: int | None = 2
    depth: int | None = 3
    engines: int | None = 1
    engine: str | None = None


def hello(_call: Call) -> list[Step]:
    """What every call answers unless a test says otherwise."""
    return [*words("Hel", "lo"), Done(UsageTotal(3, 2, 1))]


@dataclass
class FakeInference:
    """Implements ``headrace_gateway.http.ports.Inference``."""

    script: Callable[[Call], Sequence[Step]] = hello
    refusal: Exception | None = None
    calls: list[Call] = field(default_factory=list[Call])
    started: list[FakeRunning] = field(default_factory=list[FakeRunning])
    resumed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    infos: dict[str, FakeRequestInfo] = field(default_factory=dict[str, FakeRequestInfo])
    began: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first ``start``."""
    ids: int = 0
    rates: RateState | None = None
    replays: str | None = None
    """Id of the call that every other is a repetition of."""

    async def start(self, call: Call) -> FakeRunning:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(call)
        return self._run(self.replays or call.request_id, self.script(call))

    async def resume(
        self, request_id: str, after: str, caller: Caller, *, span: Span = NO_SPAN
    ) -> FakeRunning:
        await self.request(request_id, caller)
        self.resumed.append((request_id, after))
        return self._run(request_id, [*words("rest"), Done(UsageTotal(3, 2, 1))])

    async def cancel(self, request_id: str, caller: Caller) -> bool:
        return (await self.request(request_id, caller)).status != "finished"

    async def request(self, request_id: str, caller: Caller) -> FakeRequestInfo:
        if request_id not in self.infos:
            raise RequestNotFound(request_id)
        return self.infos[request_id]

    async def requests(self, caller: Caller, *, limit: int) -> tuple[list[FakeListed], bool]:
        live = [info for info in self.infos.values() if info.status != "finished"]
        return [FakeListed(info) for info in live[:limit]], len(live) > limit

    async def why(self, request_id: str, caller: Caller) -> FakeWhy:
        return FakeWhy((await self.request(request_id, caller)).id)

    async def models(self, caller: Caller) -> Sequence[FakeModel]:
        return [FakeModel()]

    async def model(self, name: str, caller: Caller) -> FakeModel:
        if name != MODEL:
            raise ModelNotFound(name, known=1)
        return FakeModel()

    def new_id(self, kind: Literal["chat", "completion"]) -> str:
        self.ids += 1
        return f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{self.ids}"

    def _run(self, request_id: str, steps: Sequence[Step]) -> FakeRunning:
        running = FakeRunning(id=request_id, model=MODEL, steps=list(steps), rates=self.rates)
        self.started.append(running)
        self.began.set()
        return running


@dataclass
class FakeAuth:
    """Implements ``headrace_gateway.http.ports.Authenticates``: one key, whatever its scopes."""

    scopes: frozenset[str] = frozenset({"inference"})
    seen: list[bytes] = field(default_factory=list[bytes])

    async def bearer(self, header: bytes | str | None) -> Caller:
        raw = header.encode() if isinstance(header, str) else header or b""
        kind, _, token = raw.partition(b" ")
        if kind.lower() != b"bearer":
            raise InvalidApiKey("An API key is needed.")
        return await self.token(token)

    async def token(self, token: bytes) -> Caller:
        self.seen.append(token)
        if token != KEY.encode():
            raise InvalidApiKey("This API key is not valid.")
        return Caller("k1", "default", 1, self.scopes, frozenset(), None)

    def require(self, caller: Caller, scope: Literal["inference", "admin"]) -> None:
        if scope not in caller.scopes:
            raise PermissionDenied(f"This key lacks the scope {scope}.")


@dataclass(frozen=True)
class FakeReport:
    ready: bool = True
    reasons: Sequence[str] = ()


@dataclass
class FakeReadiness:
    """Implements ``headrace_gateway.http.ports.Reports``."""

    says: FakeReport = FakeReport()
    draining: bool = False

    async def report(self) -> FakeReport:
        return self.says


@dataclass(frozen=True)
class FakeHttpSettings:
    """Implements ``headrace_gateway.http.ports.HttpSettings``."""

    max_body_bytes: int = 64 * 1024
    body_timeout_s: float = 5.0
    cors_origins: Sequence[str] = ("https://ui.example",)
    metrics_need_key: bool = False
    strict_fields: bool = False


def headers(**more: str) -> Mapping[str, str]:
    """A valid key, and further headers."""
    return {"authorization": f"Bearer {KEY}", **more}
