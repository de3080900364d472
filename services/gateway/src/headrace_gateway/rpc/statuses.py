"""Errors as gRPC statuses, from the table in contracts."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from headrace_contracts.codes import STATUS
from headrace_kit.log import get_logger

from headrace_gateway.errors import GatewayError, HandedOver

log = get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

STATUS_CODES = {code.name: code for code in grpc.StatusCode}


def status_of(error: GatewayError) -> grpc.StatusCode:
    """The status that an error becomes."""
    return STATUS_CODES[STATUS[error.code].grpc]


async def refuse(context: Context, error: GatewayError) -> NoReturn:
    """Ends a call with an error; the code's name, the parameter and the advice travel beside it."""
    trailers: list[tuple[str, str | bytes]] = [("headrace-code", error.code.wire_name)]
    if error.param is not None:
        trailers.append(("headrace-param", error.param))
    if error.retry_after_s is not None:
        trailers.append(("retry-after", str(error.retry_after_s)))
    if isinstance(error, HandedOver) and error.place is not None:
        request_id, cursor = error.place
        trailers += [("headrace-resume-id", request_id), ("headrace-resume-after", cursor)]
    await context.abort(status_of(error), error.message, tuple(trailers))
    raise AssertionError("abort always raises")
