"""``/health/live``, ``/health/ready`` and ``/version``."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from headrace_gateway.http.ports import Reports


def health_routes(readiness: Reports) -> APIRouter:
    """The routes of this family. What they say is fit for anybody."""
    router = APIRouter(tags=["health"])

    @router.head("/health/live", include_in_schema=False)
    @router.get("/health/live")
    async def live() -> Response:  # pyright: ignore[reportUnusedFunction]
        """Answers as long as the process can answer at all."""
        return JSONResponse({"status": "ok"})

    @router.head("/health/ready", include_in_schema=False)
    @router.get("/health/ready")
    async def ready() -> Response:  # pyright: ignore[reportUnusedFunction]
        """Tells whether new requests are welcome here (200) or not (503, with the reasons)."""
        report = await readiness.report()
        return JSONResponse(
            {"status": "ok" if report.ready else "unready", "reasons": list(report.reasons)},
            status_code=200 if report.ready else 503,
        )

    @router.get("/version")
    async def tell_version() -> Response:  # pyright: ignore[reportUnusedFunction]
        """Tells which release this is."""
        return JSONResponse({"name": "headrace", "version": version("headrace-gateway")})

    return router
