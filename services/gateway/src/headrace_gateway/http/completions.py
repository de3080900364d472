"""``POST /v1/completions``."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace_gateway.http.answers.completions import CompletionChunks, completion_body
from headrace_gateway.http.body import json_object
from headrace_gateway.http.context import context_of
from headrace_gateway.http.generation import Manner, answer, deadline_of, once_of
from headrace_gateway.http.guard import permitted
from headrace_gateway.http.openapi import takes
from headrace_gateway.http.ports import Authenticates, HttpSettings, Inference
from headrace_gateway.http.schema.completions import CompletionFields
from headrace_gateway.http.schema.fields import fields_of
from headrace_gateway.http.schema.offer import NEUTRAL_COMPLETION, check_offered, unknown_fields
from headrace_gateway.http.schema.prompts import prompts_of
from headrace_gateway.inference.calls import Call


def completion_routes(service: Inference, auth: Authenticates, settings: HttpSettings) -> APIRouter:
    """The routes of this family."""
    router = APIRouter(tags=["generation"])

    @router.post("/v1/completions", openapi_extra=takes(CompletionFields))
    async def create_completion(  # pyright: ignore[reportUnusedFunction]
        request: Request,
    ) -> Response:
        """Continues one or more raw prompts, whole or as a stream of events."""
        caller = permitted(request, auth, "inference")
        body = await json_object(
            request, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        fields = fields_of(CompletionFields, body)
        check_offered(body, NEUTRAL_COMPLETION)
        ignored = unknown_fields(
            body, CompletionFields.model_fields, NEUTRAL_COMPLETION, strict=settings.strict_fields
        )
        call = Call(
            kind="completion",
            model=fields.model,
            prompts=prompts_of(fields.prompt),
            sampling=fields.sampling(),
            caller=caller,
            request_id=service.new_id("completion"),
            echo=bool(fields.echo),
            cache_salt=(fields.cache_salt or "").encode(),
            deadline_s=deadline_of(request),
            once=once_of(request, body),
            span=context_of(request.scope).span,
            resumable=bool(fields.stream),
        )
        logprobs = fields.logprobs is not None
        manner = Manner(
            stream=bool(fields.stream),
            body=partial(completion_body, logprobs=logprobs),
            chunks=partial(CompletionChunks, include_usage=fields.include_usage, logprobs=logprobs),
            ignored=ignored,
        )
        return await answer(request, service, call, manner)

    return router
