"""The methods of ``inference.proto``. Next: headrace_gateway.inference.service"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, cast

import grpc
from headrace_contracts.pb import inference_pb2
from headrace_contracts.pb.inference_pb2 import (
    CancelRequest,
    CancelResponse,
    GenerateEvent,
    GenerateRequest,
    ListModelsRequest,
    ListModelsResponse,
    Model,
    ResumeRequest,
)
from headrace_kit.log import get_logger
from headrace_kit.traces import Span, Tracing

from headrace_gateway.auth.keys import Authenticator
from headrace_gateway.errors import GatewayError, HandedOver, Internal, RequestNotFound
from headrace_gateway.inference.calls import Caller, Delta, Done
from headrace_gateway.inference.running import Running
from headrace_gateway.inference.service import InferenceService
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.rpc.convert import call_of, event_of, usage_of
from headrace_gateway.rpc.decoding import Unreadable, whole
from headrace_gateway.rpc.guard import metadata_value
from headrace_gateway.rpc.statuses import STATUS_CODES, Context, refuse, status_of

log = get_logger(__name__)

SERVICE: Final = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
MAX_CURSOR: Final = 1024
"""Characters of a cursor that a trailer carries."""
SERVER_FAULTS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""Statuses that a span shows as failed, by the conventions; the others are the caller's doing."""


class InferenceServicer:
    """One method a call; each authenticates, does, and answers with a status from the table.

    ``Generate`` writes by itself rather than yielding: a client that leaves then always meets a
    waiting coroutine of ours, whose ``finally`` cancels the request.
    """

    def __init__(
        self,
        service: InferenceService,
        auth: Authenticator,
        metrics: GatewayMetrics,
        *,
        max_deadline_s: float,
        tracing: Tracing,
    ) -> None:
        self._service = service
        self._auth = auth
        self._metrics = metrics
        self._max_deadline_s = max_deadline_s
        self._tracing = tracing

    async def Generate(self, request: GenerateRequest | Unreadable, context: Context) -> None:
        """Streams a call's events. The client's deadline travels to the engine as what is left."""
        async with self._answering("Generate", context) as span:
            await self._generate(whole(request), context, span)

    async def Resume(self, request: ResumeRequest | Unreadable, context: Context) -> None:
        """Streams what comes after a cursor in a request of the same key."""
        async with self._answering("Resume", context) as span:
            asked = whole(request)
            caller = await self._caller(context)
            running = await self._service.resume(asked.id, asked.after, caller, span=span)
            await _stream(running, context, token_ids=asked.return_token_ids)

    async def Cancel(self, request: CancelRequest | Unreadable, context: Context) -> CancelResponse:
        """Cancels a request of the same key, wherever it is."""
        async with self._answering("Cancel", context):
            caller = await self._caller(context)
            try:
                cancelled = await self._service.cancel(whole(request).id, caller)
            except RequestNotFound:
                cancelled = False
            return CancelResponse(cancelled=cancelled)

    async def ListModels(
        self, request: ListModelsRequest | Unreadable, context: Context
    ) -> ListModelsResponse:
        """The models that the key may use."""
        async with self._answering("ListModels", context):
            whole(request)
            models = await self._service.models(await self._caller(context))
            return ListModelsResponse(
                models=[
                    Model(
                        id=model.id,
                        created=model.created,
                        context_tokens=model.context_tokens,
                        ready=model.ready,
                    )
                    for model in models
                ]
            )

    @asynccontextmanager
    async def _answering(self, method: str, context: Context) -> AsyncGenerator[Span]:
        """Counts and traces a call, and ends it with the status of what it raises.

        Counted first: who has the status of a call finds it among the metrics.
        """
        span = self._tracing.begin(
            f"{SERVICE}/{method}",
            kind="server",
            parent=_text(metadata_value(context.invocation_metadata(), "traceparent")),
        )
        failed: GatewayError | None = None
        status = "CANCELLED"  # what it is when none of the lines below is reached
        try:
            yield span
            status = "OK"
        except GatewayError as error:
            failed = error
            span.set({"error.type": error.code.wire_name})
        except grpc.aio.AbortError:
            raise
        except Exception:
            # The boundary of one call.
            log.exception("grpc.failed", method=method, trace_id=span.trace_id)
            failed = Internal("The call failed.")
        finally:
            if failed is not None:
                status = status_of(failed).name
            self._metrics.grpc_requests.labels(method, status).inc()
            span.set({"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method})
            span.set({"rpc.grpc.status_code": STATUS_CODES[status].value[0]})
            if status in SERVER_FAULTS:
                span.fail(status if failed is None else failed.code.wire_name)
            span.end()
        if failed is not None:
            await refuse(context, failed)

    async def _generate(self, request: GenerateRequest, context: Context, span: Span) -> None:
        caller = await self._caller(context)
        call = call_of(
            request,
            caller,
            request_id=self._service.new_id(
                "chat" if request.WhichOneof("prompt") == "chat" else "completion"
            ),
            deadline_s=self._deadline_s(context),
            span=span,
        )
        span.set({"gen_ai.request.stream": True})
        running = await self._service.start(call)
        await _stream(running, context, token_ids=request.return_token_ids)

    async def _caller(self, context: Context) -> Caller:
        header = metadata_value(context.invocation_metadata(), "authorization")
        caller = await self._auth.bearer(header)
        self._auth.require(caller, "inference")
        return caller

    def _deadline_s(self, context: Context) -> float | None:
        """What is left of the client's deadline, within the operator's bound; None: it has none."""
        left_s = cast("float | None", context.time_remaining())  # the stub forgets None
        if left_s is None or left_s > self._max_deadline_s:
            return None
        return left_s


async def _stream(running: Running, context: Context, *, token_ids: bool) -> None:
    """Writes a call's events out until its end. The call is closed however that comes."""
    held: GenerateEvent | None = None
    try:
        await context.send_initial_metadata((("x-request-id", running.id),))
        async for event in running:
            if isinstance(event, Delta):
                if held is not None:
                    await context.write(held)
                # the last one waits for the usage, which travels with it
                held = event_of(running.id, event, running.cursor, token_ids=token_ids)
                if event.finish is None:
                    await context.write(held)
                    held = None
            elif isinstance(event, Done):
                last = held or GenerateEvent(id=running.id, cursor=running.cursor)
                last.usage.CopyFrom(usage_of(event.usage))
                await context.write(last)
    except HandedOver as error:
        if held is not None:
            await context.write(held)
        place = (running.id, running.cursor) if len(running.cursor) <= MAX_CURSOR else None
        raise HandedOver(within_s=error.within_s, place=place) from error
    finally:
        await running.aclose()


def _text(value: str | bytes | None) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii", "ignore")
    return value or ""
