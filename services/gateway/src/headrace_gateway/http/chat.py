"""``POST /v1/chat/completions``."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from headrace_gateway.http.answers.chat import ChatChunks, chat_body
from headrace_gateway.http.body import json_object
from headrace_gateway.http.context import context_of
from headrace_gateway.http.generation import Manner, answer, deadline_of, once_of
from headrace_gateway.http.guard import permitted
from headrace_gateway.http.openapi import takes
from headrace_gateway.http.ports import Authenticates, HttpSettings, Inference
from headrace_gateway.http.schema.chat import ChatFields
from headrace_gateway.http.schema.fields import fields_of
from headrace_gateway.http.schema.messages import messages_of
from headrace_gateway.http.schema.offer import NEUTRAL_CHAT, check_offered, unknown_fields
from headrace_gateway.inference.calls import Call, ChatPrompt


def chat_routes(service: Inference, auth: Authenticates, settings: HttpSettings) -> APIRouter:
    """The routes of this family."""
    router = APIRouter(tags=["generation"])

    @router.post("/v1/chat/completions", openapi_extra=takes(ChatFields))
    async def create_chat(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """Answers a conversation with one or more choices, whole or as a stream of events."""
        caller = permitted(request, auth, "inference")
        body = await json_object(
            request, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        fields = fields_of(ChatFields, body)
        check_offered(body, NEUTRAL_CHAT)
        ignored = unknown_fields(
            body, ChatFields.model_fields, NEUTRAL_CHAT, strict=settings.strict_fields
        )
        call = Call(
            kind="chat",
            model=fields.model,
            prompts=(ChatPrompt(messages_of(fields.messages)),),
            sampling=fields.sampling(),
            caller=caller,
            request_id=service.new_id("chat"),
            cache_salt=(fields.cache_salt or "").encode(),
            deadline_s=deadline_of(request),
            once=once_of(request, body),
            span=context_of(request.scope).span,
            resumable=bool(fields.stream),
            fields=fields.chat_template_kwargs or {},
        )
        logprobs = bool(fields.logprobs)
        manner = Manner(
            stream=bool(fields.stream),
            body=partial(chat_body, logprobs=logprobs),
            chunks=partial(ChatChunks, include_usage=fields.include_usage, logprobs=logprobs),
            ignored=ignored,
        )
        return await answer(request, service, call, manner)

    return router
