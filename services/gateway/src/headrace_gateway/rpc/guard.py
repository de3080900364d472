"""Nothing answers without a key but health: deny by default, before a message is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

from headrace_gateway.auth.keys import Authenticator
from headrace_gateway.errors import GatewayError
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.rpc.statuses import Context, refuse, status_of

OPEN_SERVICES: Final = ("/grpc.health.v1.Health/",)
NO_METHOD: Final = "unmatched"
"""Method of calls that were refused before anybody looked for it."""

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]  # a type only: the class takes no parameters
Metadata = Any


class Guard(grpc.aio.ServerInterceptor):
    """Asks for a key at every method that is not on the list, known or unknown."""

    def __init__(self, auth: Authenticator, metrics: GatewayMetrics) -> None:
        self._auth = auth
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The method's own handler for who may call it, else one that refuses."""
        if not handler_call_details.method.startswith(OPEN_SERVICES):
            header = metadata_value(handler_call_details.invocation_metadata, "authorization")
            try:
                await self._auth.bearer(header)
            except GatewayError as error:
                return self._refusing(error)
        return await continuation(handler_call_details)

    def _refusing(self, error: GatewayError) -> Handler:
        async def answer(_requests: object, context: Context) -> None:
            # the method is the caller's word, and may be any
            self._metrics.grpc_requests.labels(NO_METHOD, status_of(error).name).inc()
            await refuse(context, error)

        return grpc.stream_stream_rpc_method_handler(answer)  # pyright: ignore[reportArgumentType]


def metadata_value(metadata: Metadata, name: str) -> str | bytes | None:
    """The first value of a key in a call's metadata."""
    for key, value in metadata or ():
        if key == name:
            return value
    return None
