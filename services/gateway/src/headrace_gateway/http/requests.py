"""``/v1/requests``: look at own requests, ask why one waits, cancel it, read on in its stream."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace_gateway.http.answers.chat import ChatChunks
from headrace_gateway.http.answers.completions import CompletionChunks
from headrace_gateway.http.answers.parts import usage_body
from headrace_gateway.http.context import context_of
from headrace_gateway.http.errors import bad_request
from headrace_gateway.http.guard import permitted
from headrace_gateway.http.ports import Authenticates, Explanation, Inference, RequestInfo
from headrace_gateway.http.sse import MAX_CURSOR, EventStream
from headrace_gateway.inference.standing import MAX_LISTED

_CURSOR: Final = re.compile(r"[0-9]{1,10}(?:,[0-9]{1,10})*")


def request_routes(service: Inference, auth: Authenticates) -> APIRouter:
    """The routes of this family."""
    router = APIRouter(tags=["requests"])

    @router.get("/v1/requests")
    async def list_requests(  # pyright: ignore[reportUnusedFunction]
        request: Request, limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20
    ) -> Response:
        """Lists the key's own requests that have not ended, the newest first."""
        caller = permitted(request, auth, "inference")
        listed, more = await service.requests(caller, limit=limit)
        data = [{**_body(each.info), "reason": each.reason} for each in listed]
        return JSONResponse({"object": "list", "data": data, "has_more": more})

    @router.get("/v1/requests/{request_id}/why")
    async def explain_request(  # pyright: ignore[reportUnusedFunction]
        request: Request, request_id: str
    ) -> Response:
        """Says why one of the caller's own requests waits, or that it does not."""
        caller = permitted(request, auth, "inference")
        return JSONResponse(_explanation(await service.why(request_id, caller)))

    @router.get("/v1/requests/{request_id}")
    async def get_request(  # pyright: ignore[reportUnusedFunction]
        request: Request, request_id: str
    ) -> Response:
        """Tells where one of the caller's own requests stands."""
        caller = permitted(request, auth, "inference")
        return JSONResponse(_body(await service.request(request_id, caller)))

    @router.delete("/v1/requests/{request_id}")
    async def cancel_request(  # pyright: ignore[reportUnusedFunction]
        request: Request, request_id: str
    ) -> Response:
        """Cancels one of the caller's own requests, queued or running."""
        caller = permitted(request, auth, "inference")
        cancelled = await service.cancel(request_id, caller)
        return JSONResponse({"id": request_id, "object": "request", "cancelled": cancelled})

    @router.get("/v1/requests/{request_id}/events")
    async def read_events(  # pyright: ignore[reportUnusedFunction]
        request: Request,
        request_id: str,
        after: str = "",
        include_usage: Annotated[bool, Query()] = False,
        logprobs: Annotated[bool, Query()] = False,
    ) -> Response:
        """Streams what comes after a cursor (an ``id:`` line of the stream), from any gateway."""
        caller = permitted(request, auth, "inference")
        cursor = after or request.headers.get("last-event-id", "")
        if cursor and not (len(cursor) <= MAX_CURSOR and _CURSOR.fullmatch(cursor)):
            raise bad_request("after must be a cursor, as the stream's id lines give it.", "after")
        context = context_of(request.scope)
        running = await service.resume(request_id, cursor, caller, span=context.span)
        context.id = running.id
        kind = ChatChunks if running.id.startswith("chatcmpl-") else CompletionChunks
        chunks = kind(running, include_usage=include_usage, logprobs=logprobs)
        return EventStream(running, chunks)

    return router


def _body(info: RequestInfo) -> dict[str, object]:
    return {
        "id": info.id,
        "object": "request",
        "model": info.model,
        "status": info.status,
        "created": info.created_ms // 1000,
        "attempt": info.attempt,
        "tokens": info.tokens,
        "finish_reason": None if info.finish is None else info.finish.name.lower(),
        "usage": None if info.usage is None else usage_body(info.usage),
    }


def _explanation(why: Explanation) -> dict[str, object]:
    return {
        "id": why.id,
        "object": "request.why",
        "status": why.status,
        "reason": why.reason,
        "explanation": why.explanation,
        "waited_seconds": round(why.waited_s, 3),
        "tokens": why.tokens,
        "ahead": why.ahead,
        "queued": why.depth,
        "engines": why.engines,
        "engine": why.engine,
    }
