"""Messages that cannot be decoded are the caller's fault, and are answered like any other.

gRPC itself answers UNKNOWN with the name of a Python class, and logs a traceback for each.
Next: headrace_gateway.rpc.servicer
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError

from headrace_gateway.errors import InvalidRequest

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]  # a type only: the class takes no parameters

Message = TypeVar("Message")


class Unreadable:
    """In place of a message that could not be decoded."""


def whole(message: Message | Unreadable) -> Message:
    """The message. Raises ``InvalidRequest`` where there is none."""
    if isinstance(message, Unreadable):
        raise InvalidRequest("The message cannot be decoded.")
    return message


class Decoding(grpc.aio.ServerInterceptor):
    """Gives the methods of one service ``Unreadable`` for what cannot be decoded."""

    def __init__(self, service: str) -> None:
        self._methods = f"/{service}/"

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The method's own handler, with another way of decoding."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._methods):
            return handler
        # every handler is a named tuple, which its type does not say
        fields = cast("Any", handler)
        decode: Callable[[bytes], object] = fields.request_deserializer

        def decoded(data: bytes) -> object:
            try:
                return decode(data)
            except DecodeError:
                return Unreadable()

        return cast("Handler", fields._replace(request_deserializer=decoded))
