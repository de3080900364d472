"""Builds the HTTP application: layers from the outside in, then one router a family."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from headrace_kit.clock import Clock
from headrace_kit.traces import Tracing
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace_gateway.errors import GatewayError, RateLimitExceeded
from headrace_gateway.http.body import place_name
from headrace_gateway.http.chat import chat_routes
from headrace_gateway.http.completions import completion_routes
from headrace_gateway.http.context import ContextLayer, context_of
from headrace_gateway.http.cors import Cors
from headrace_gateway.http.errors import HttpError, bad_request, error_response, http_error
from headrace_gateway.http.exposition import metrics_routes
from headrace_gateway.http.guard import OPEN_PATHS, Guard
from headrace_gateway.http.health import health_routes
from headrace_gateway.http.keys import key_routes
from headrace_gateway.http.models import model_routes
from headrace_gateway.http.openapi import document_with_bodies
from headrace_gateway.http.ports import Authenticates, HttpSettings, Inference, KeyAdmin, Reports
from headrace_gateway.http.rates import rate_headers
from headrace_gateway.http.requests import request_routes
from headrace_gateway.http.schema.chat import ChatFields
from headrace_gateway.http.schema.completions import CompletionFields
from headrace_gateway.http.schema.keys import KeyFields
from headrace_gateway.http.tracing import TraceLayer
from headrace_gateway.metrics import GatewayMetrics


def build_api(
    *,
    service: Inference,
    auth: Authenticates,
    keys: KeyAdmin,
    settings: HttpSettings,
    metrics: GatewayMetrics,
    readiness: Reports,
    clock: Clock,
    tracing: Tracing,
) -> FastAPI:
    """The whole application. Nothing is started; no route but the guard's list is open."""
    open_paths = OPEN_PATHS if settings.metrics_need_key else OPEN_PATHS | {"/metrics"}
    app = FastAPI(
        title="Headrace",
        version=version("headrace-gateway"),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(Cors, origins=settings.cors_origins),
            Middleware(
                ContextLayer,
                clock=clock,
                metrics=metrics,
                readiness=readiness,
            ),
            Middleware(Guard, auth=auth, open_paths=open_paths),
            Middleware(TraceLayer, tracing=tracing),
        ],
        exception_handlers={
            HttpError: _answer_error,
            GatewayError: _answer_error,
            HTTPException: _answer_error,
            RequestValidationError: _answer_query_error,
        },
    )
    app.include_router(health_routes(readiness))
    app.include_router(metrics_routes(metrics.registry))
    app.include_router(model_routes(service, auth))
    app.include_router(chat_routes(service, auth, settings))
    app.include_router(completion_routes(service, auth, settings))
    app.include_router(request_routes(service, auth))
    app.include_router(key_routes(keys, auth, settings, clock))

    @app.get("/openapi.json", include_in_schema=False)
    async def describe() -> Response:  # pyright: ignore[reportUnusedFunction]
        return JSONResponse(document_with_bodies(app, ChatFields, CompletionFields, KeyFields))

    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError | GatewayError | HTTPException)
    allow = error.headers if isinstance(error, HTTPException) else None
    told = http_error(error)
    context_of(request.scope).code = told.code.wire_name
    rates = error.rates if isinstance(error, RateLimitExceeded) else None
    return error_response(told, headers={**dict(allow or {}), **rate_headers(rates)})


async def _answer_query_error(_request: Request, error: Exception) -> Response:
    """Bad query parameters; bodies are never judged by the framework."""
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    param = place_name(fault["loc"][1:])
    return error_response(bad_request(f"{param}: {fault['msg']}.", param))
