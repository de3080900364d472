"""Reading a ``tokenizer.json``, which may hold anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, cast

from headrace_gateway.text.errors import TokenizerRejected

TOKENIZER_FILE: Final = "tokenizer.json"
"""Name of the file in a model card."""


def parse(data: bytes) -> dict[str, object]:
    """The file. Raises TokenizerRejected."""
    try:
        value: object = json.loads(data)
    except ValueError as error:
        raise TokenizerRejected(f"{TOKENIZER_FILE} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerRejected(f"{TOKENIZER_FILE} is not a JSON object")
    return cast("dict[str, object]", value)


def parts(component: object) -> list[dict[str, object]]:
    """A component of the file, or what it is made of where it is a sequence; none for null."""
    fields = as_map(component)
    for name in ("decoders", "normalizers", "pretokenizers"):
        if name in fields:
            return [part for inner in as_list(fields[name]) for part in parts(inner)]
    return [fields] if fields else []


def kinds(component: object) -> set[str]:
    """Types of a component of the file, or of what it is made of."""
    return {str(part.get("type")) for part in parts(component)}


def id_of(token: Mapping[str, object]) -> int:
    """Id of an added token."""
    value = token.get("id")
    return value if isinstance(value, int) else -1  # the library refuses a file without ids


def as_map(value: object) -> dict[str, object]:
    """An object of the file; empty for anything else."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """An array of the file; empty for anything else."""
    return cast("list[object]", value) if isinstance(value, list) else []
