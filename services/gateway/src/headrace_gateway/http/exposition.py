"""``GET /metrics``, in Prometheus's text form."""

from __future__ import annotations

from fastapi import APIRouter
from headrace_kit.metrics import Registry
from starlette.responses import Response


def metrics_routes(registry: Registry) -> APIRouter:
    """The route of this family; whether it needs a key is the guard's list."""
    router = APIRouter(tags=["health"])

    @router.get("/metrics")
    async def expose() -> Response:  # pyright: ignore[reportUnusedFunction]
        """Gives every metric of this gateway as it is now."""
        # The type is written as a header, since starlette would add a second charset.
        return Response(registry.exposition(), headers={"content-type": registry.content_type})

    return router
