"""Models as callers see them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_gateway.inference.catalog import Catalog


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as callers see it."""

    id: str
    created: int
    """Unix seconds."""
    context_tokens: int
    ready: bool
    """Whether an engine serves it now."""
    architecture: str
    dtype: str
    weights_version: str


async def info_of(catalog: Catalog, name: str) -> ModelInfo:
    """Raises ``ModelNotFound``."""
    card = await catalog.card(name)
    engines = await catalog.engines(name)
    return ModelInfo(
        id=card.model,
        created=card.created,
        context_tokens=card.context_tokens,
        ready=any(engine.state == "ready" for engine in engines),
        architecture=card.architecture,
        dtype=card.dtype,
        weights_version=card.weights_version,
    )
