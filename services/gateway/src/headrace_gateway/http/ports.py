"""What the HTTP edge asks of the rest of the gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, Self

from headrace_contracts.codes import FinishReason
from headrace_kit.traces import Span
from headrace_transport.interface import ApiKey

from headrace_gateway.inference.calls import Call, Caller, Delta, Event, RateState

Scope = Literal["inference", "admin"]


class ModelInfo(Protocol):
    """A model that a key may use."""

    @property
    def id(self) -> str: ...
    @property
    def created(self) -> int:
        """Unix seconds."""
        ...

    @property
    def context_tokens(self) -> int: ...
    @property
    def ready(self) -> bool:
        """Whether an engine serves it now."""
        ...


class UsageNumbers(Protocol):
    """What a request has used."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that an engine found in its cache."""
        ...


class RequestInfo(Protocol):
    """The state of one request, for reading."""

    @property
    def id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def finish(self) -> FinishReason | None: ...
    @property
    def usage(self) -> UsageNumbers | None: ...
    @property
    def tokens(self) -> int:
        """Generated so far."""
        ...


class ListedRequest(Protocol):
    """A live request in a list."""

    @property
    def info(self) -> RequestInfo: ...
    @property
    def reason(self) -> str: ...


class Explanation(Protocol):
    """Why a request stands where it stands."""

    @property
    def id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def explanation(self) -> str: ...
    @property
    def waited_s(self) -> float: ...
    @property
    def tokens(self) -> int: ...
    @property
    def ahead(self) -> int | None: ...
    @property
    def depth(self) -> int | None: ...
    @property
    def engines(self) -> int | None: ...
    @property
    def engine(self) -> str | None: ...


class RunningCall(Protocol):
    """A call whose requests are queued durably. Iterating gives its events."""

    @property
    def id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def created_s(self) -> int: ...
    @property
    def system_fingerprint(self) -> str: ...
    @property
    def rates(self) -> RateState | None: ...
    @property
    def cursor(self) -> str:
        """Where the event just yielded ends; ``resume`` takes it."""
        ...

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Event: ...

    def follow(self, push: Callable[[Delta], bool]) -> None:
        """While ``__anext__`` waits, deltas may go to ``push`` instead; False: not now."""
        ...

    async def aclose(self) -> None:
        """Idempotent. Before the end it means that the client has left."""
        ...


class Inference(Protocol):
    """The use case. All its methods raise ``GatewayError``."""

    async def start(self, call: Call) -> RunningCall: ...

    async def resume(
        self, request_id: str, after: str, caller: Caller, *, span: Span
    ) -> RunningCall: ...

    async def cancel(self, request_id: str, caller: Caller) -> bool: ...

    async def request(self, request_id: str, caller: Caller) -> RequestInfo: ...

    async def requests(
        self, caller: Caller, *, limit: int
    ) -> tuple[Sequence[ListedRequest], bool]: ...

    async def why(self, request_id: str, caller: Caller) -> Explanation: ...

    async def models(self, caller: Caller) -> Sequence[ModelInfo]: ...

    async def model(self, name: str, caller: Caller) -> ModelInfo: ...

    def new_id(self, kind: Literal["chat", "completion"]) -> str: ...


class Authenticates(Protocol):
    """Turns credentials into a caller, or raises ``GatewayError``."""

    async def bearer(self, header: bytes | str | None) -> Caller: ...

    async def token(self, token: bytes) -> Caller: ...

    def require(self, caller: Caller, scope: Scope) -> None: ...


class KeyAdmin(Protocol):
    """Keeps API keys. ``create`` raises ``ValueError`` for what makes no sense."""

    async def list(self) -> Sequence[ApiKey]: ...

    async def create(
        self,
        *,
        name: str,
        tenant: str,
        scopes: Sequence[str],
        models: Sequence[str],
        band: int,
        expires_ms: int | None,
        max_concurrency: int | None,
        requests_per_minute: int | None,
        tokens_per_minute: int | None,
    ) -> tuple[str, ApiKey]: ...

    async def revoke(self, public_id: str) -> bool: ...


class ReadyReport(Protocol):
    """Whether new requests are welcome, and if not, why."""

    @property
    def ready(self) -> bool: ...
    @property
    def reasons(self) -> Sequence[str]: ...


class Reports(Protocol):
    """Asks the parts of the gateway how they are."""

    @property
    def draining(self) -> bool:
        """Whether this process is about to stop."""
        ...

    async def report(self) -> ReadyReport: ...


class HttpSettings(Protocol):
    """The settings that the edge reads."""

    @property
    def max_body_bytes(self) -> int: ...

    @property
    def body_timeout_s(self) -> float:
        """The whole body must have arrived by then."""
        ...

    @property
    def cors_origins(self) -> Sequence[str]: ...
    @property
    def metrics_need_key(self) -> bool: ...
    @property
    def strict_fields(self) -> bool:
        """Refuse unknown body fields instead of naming them in a header."""
        ...
