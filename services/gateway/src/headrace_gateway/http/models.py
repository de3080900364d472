"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace_gateway.http.guard import permitted
from headrace_gateway.http.ports import Authenticates, Inference, ModelInfo


def model_routes(service: Inference, auth: Authenticates) -> APIRouter:
    """The routes of this family."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models")
    async def list_models(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """Lists the models that this key may use, whether or not an engine serves them now."""
        caller = permitted(request, auth, "inference")
        models = await service.models(caller)
        return JSONResponse({"object": "list", "data": [_body(model) for model in models]})

    # The name of a model may hold slashes.
    @router.get("/v1/models/{name:path}")
    async def get_model(  # pyright: ignore[reportUnusedFunction]
        request: Request, name: str
    ) -> Response:
        """Describes one model."""
        caller = permitted(request, auth, "inference")
        return JSONResponse(_body(await service.model(name, caller)))

    return router


def _body(model: ModelInfo) -> dict[str, object]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "headrace",
        "max_model_len": model.context_tokens,
        "ready": model.ready,
    }
