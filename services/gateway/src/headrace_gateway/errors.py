"""What the gateway refuses or fails with. A branch says whose move is next.

GatewayError
├── CallRejected      the caller changes the request   InvalidRequest, ContextLengthExceeded, ...
├── CallerRefused     the caller changes the key       InvalidApiKey, PermissionDenied
├── ComeBackLater     the same call may succeed later  QueueFull, NoEngine, Draining, ...
├── CallOver          it was fine, and is over         Cancelled, DeadlineExceeded
└── HeadraceFailed    Headrace is at fault             EngineFailed, Internal

HTTP and gRPC statuses come from the table in ``headrace_contracts.codes``.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace_contracts.codes import Code
from headrace_transport import errors as transport

if TYPE_CHECKING:
    from headrace_gateway.inference.calls import RateState

DRAIN_RETRY_S = 1
"""Another gateway takes the call at once; one second is the least that can be said."""


class GatewayError(Exception):
    """Root of what an edge turns into an error answer or an error event."""

    code: Code = Code.INTERNAL

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        """Fit for the caller: no secret, no path, no trace."""
        self.param = param
        """Name of the field at fault."""
        self.retry_after_s = retry_after_s
        """Whole seconds after which the same call is worth another try."""


class CallRejected(GatewayError):
    """This call can never succeed as it is."""


class InvalidRequest(CallRejected):
    code = Code.INVALID_REQUEST


class ContextLengthExceeded(CallRejected):
    code = Code.CONTEXT_LENGTH_EXCEEDED

    def __init__(
        self, *, prompt_tokens: int, output_tokens: int, limit_tokens: int, param: str
    ) -> None:
        """``output_tokens`` were asked for; at least one is always needed."""
        super().__init__(
            f"This model's context length is {limit_tokens} tokens. The request needs "
            f"{prompt_tokens + output_tokens}: {prompt_tokens} in the prompt and "
            f"{output_tokens} for the output.",
            param=param,
        )
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


class PromptNeverFits(CallRejected):
    code = Code.PROMPT_NEVER_FITS

    def __init__(self, *, prompt_tokens: int, pool_tokens: int, param: str) -> None:
        super().__init__(
            f"The prompt has {prompt_tokens} tokens, and the cache of this deployment holds "
            f"{pool_tokens}, for the prompt and the first token after it.",
            param=param,
        )


class ModelNotFound(CallRejected):
    code = Code.MODEL_NOT_FOUND

    def __init__(self, model: str, *, known: int) -> None:
        """``model`` is quoted in the message, shortened; ``known`` counts the models there are."""
        shown = model if len(model) <= 100 else model[:100] + "..."
        super().__init__(
            f"The model {shown!r} does not exist here ({known} "
            f"model{'' if known == 1 else 's'} known; see GET /v1/models).",
            param="model",
        )


class RequestNotFound(CallRejected):
    code = Code.REQUEST_NOT_FOUND

    def __init__(self, request: str) -> None:
        shown = request if len(request) <= 100 else request[:100] + "..."
        super().__init__(f"There is no request {shown!r}, or it is forgotten.", param="id")


class Conflict(CallRejected):
    code = Code.CONFLICT


class CallerRefused(GatewayError):
    """The key, not the request, has to change."""


class InvalidApiKey(CallerRefused):
    code = Code.INVALID_API_KEY


class PermissionDenied(CallerRefused):
    code = Code.PERMISSION_DENIED


class ComeBackLater(GatewayError):
    """Nothing is wrong with the call; there is no room or nobody to run it now."""


class QueueFull(ComeBackLater):
    code = Code.QUEUE_FULL

    def __init__(self, *, depth: int, limit: int, retry_after_s: int) -> None:
        super().__init__(
            f"The queue is full: {depth} requests wait, the limit is {limit}.",
            retry_after_s=retry_after_s,
        )


class RateLimitExceeded(ComeBackLater):
    code = Code.RATE_LIMIT_EXCEEDED

    def __init__(self, message: str, *, retry_after_s: int, rates: RateState | None = None) -> None:
        """``rates``: what is left of the key's minute, where that was the limit."""
        super().__init__(message, retry_after_s=retry_after_s)
        self.rates = rates


class NoEngine(ComeBackLater):
    code = Code.NO_ENGINE


class Draining(ComeBackLater):
    code = Code.DRAINING


class HandedOver(Draining):
    """The stream ends here and its request goes on: another gateway can take it up."""

    def __init__(self, *, within_s: float, place: tuple[str, str] | None = None) -> None:
        """``within_s``: how long the request waits for a reader. ``place``: id and cursor at which
        the one who is told reads on.
        """
        self.within_s = within_s
        self.place = place
        super().__init__(
            f"This gateway is shutting down. The request goes on: within {within_s:g} s, read on "
            "after the last id that you have.",
            retry_after_s=DRAIN_RETRY_S,
        )


class BackendUnavailable(ComeBackLater):
    code = Code.BACKEND_UNAVAILABLE


class CallOver(GatewayError):
    """The call was fine and ended before its answer was complete."""


class Cancelled(CallOver):
    code = Code.CANCELLED


class DeadlineExceeded(CallOver):
    code = Code.DEADLINE_EXCEEDED


class HeadraceFailed(GatewayError):
    """Headrace is at fault."""


class Internal(HeadraceFailed):
    code = Code.INTERNAL


class EngineFailed(HeadraceFailed):
    code = Code.ENGINE_FAILED


BACKEND_RETRY_S = 5
"""Within this many seconds after Redis is back, requests succeed again; so it is what we advise."""


@contextmanager
def transport_errors() -> Generator[None]:
    """The one seam at which the transport's errors become ours.

    ``QueueFull`` and ``RequestConflict`` are the service's to handle: it knows the numbers.
    """
    try:
        yield
    except transport.TransportUnavailable as error:
        raise BackendUnavailable(
            "The request queue cannot be reached right now.", retry_after_s=BACKEND_RETRY_S
        ) from error
