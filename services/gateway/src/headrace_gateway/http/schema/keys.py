"""The body of ``POST /admin/keys``. Ranges are judged where keys are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from headrace_contracts.keys import DEFAULT_BAND
from pydantic import BaseModel, ConfigDict, Field


class KeyFields(BaseModel):
    """A key to be made. An unknown field is refused: a limit that is misspelt would be none."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=200)]
    tenant: str = "default"
    scopes: Sequence[str] = ("inference",)
    models: Sequence[str] = ()
    """Empty: all."""
    band: int = DEFAULT_BAND
    expires_in_s: Annotated[int, Field(ge=1, le=10**9)] | None = None
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
