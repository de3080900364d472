"""The OpenAPI document: bodies are parsed by our own rules, so their schemas are put in here."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

_REF = "#/components/schemas/{model}"


def takes(kind: type[BaseModel]) -> dict[str, Any]:
    """Names the body of a route; ``add_bodies`` defines it."""
    schema = {"$ref": _REF.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def document_with_bodies(app: FastAPI, *kinds: type[BaseModel]) -> dict[str, Any]:
    """The app's document with the schemas that ``takes`` refers to."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for kind in kinds:
        schema = kind.model_json_schema(ref_template=_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[kind.__name__] = schema
    return document
