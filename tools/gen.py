"""Writes the references, schemas and examples that come from declarations in the code.

usage: gen.py [--check]

With ``--check`` nothing is written; a file that is not what would be written fails.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from pathlib import Path
from types import ModuleType

from chartgen import alerts, dashboards, images, readme, schema
from headrace_contracts import codes, keys
from headrace_engine.metrics import EngineMetrics
from headrace_engine.settings import EngineSecrets, EngineSettings
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.settings import GatewaySecrets, GatewaySettings
from headrace_kit.describe import (
    describe,
    env_example,
    json_schema,
    metrics_markdown,
    settings_markdown,
)
from headrace_kit.metrics import Registry
from headrace_kit.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto/headrace/v1/codes.proto"
MADE = "<!-- Written by `make gen`. Do not edit. -->\n\n"
SOURCES = (
    "A flag beats the environment, which beats the file that `HEADRACE_CONFIG_FILE` names (YAML,\n"
    "one section for each service), which beats the default. An empty value means the default. An\n"
    "unknown name is an error. Lists are JSON or separated by commas; true and false may also be\n"
    "written yes, no, on, off, 1, 0. Secrets come from their variable or from a mounted file, and\n"
    "are neither flags nor keys of the file. A change takes effect at the next start.\n\n"
)


def settings_page(title: str, cls: type[Settings], table: str) -> str:
    """Reference of one service's settings; a setting without a meaning is refused."""
    silent = [info.name for info in describe(cls) if not info.meaning]
    if silent:
        raise SystemExit(f"{cls.__name__}: no docstring below {', '.join(silent)}")
    return f"# {title}\n\n{MADE}{SOURCES}{table}"


def metrics_page() -> str:
    """Reference of all metrics."""
    gateway, engine = Registry(service="gateway"), Registry(service="engine")
    GatewayMetrics(gateway)
    EngineMetrics(engine)
    return (
        f"# Metrics\n\n{MADE}"
        "Each service serves these as Prometheus text at `/metrics`, and pushes the same values\n"
        "over OTLP when an endpoint is configured. A label with more than a thousand different\n"
        "values is counted under `other` from there on.\n\n"
        f"## Gateway\n\n{metrics_markdown(gateway.declared())}\n"
        f"## Engine\n\n{metrics_markdown(engine.declared())}"
    )


def errors_page() -> str:
    """Reference of error codes; who moves next comes from the comments of ``codes.proto``."""
    moves = code_comments(PROTO.read_text())
    lines = [
        "| Code | HTTP | gRPC | `error.type` (OpenAI) | Who moves |",
        "|---|---|---|---|---|",
    ]
    for code in codes.Code:
        status = codes.STATUS[code]
        lines.append(
            f"| `{code.wire_name}` | {status.http} | `{status.grpc}` | `{status.openai_type}` "
            f"| {moves[code.name]} |"
        )
    ends = [f"* `{reason.name.lower()}`" for reason in codes.FinishReason]
    return (
        f"# Errors\n\n{MADE}"
        "Every error has one of these codes (`error.code` over HTTP, the `headrace-code` trailer\n"
        "over gRPC). Numbers are never reused.\n\n"
        + "\n".join(lines)
        + "\n\n## How a choice can end\n\n"
        + "\n".join(ends)
        + "\n"
    )


def code_comments(proto: str) -> dict[str, str]:
    """The comment above each group of the ``Code`` enum, by code name without its prefix."""
    body = proto[proto.index("enum Code {") :]
    found: dict[str, str] = {}
    comment: list[str] = []
    fresh = True
    for line in body.splitlines():
        if words := re.fullmatch(r"\s*//\s?(.*)", line):
            comment = [words[1]] if fresh else [*comment, words[1]]
            fresh = False
        elif value := re.fullmatch(r"\s*CODE_(\w+) = \d+;.*", line):
            found[value[1]] = " ".join(comment)
            fresh = True
    return found


def keys_page() -> str:
    """Reference of Redis keys: calls each function of ``keys`` with names for arguments."""
    lines = ["| Key | Holds |", "|---|---|"]
    for name, meaning in documented_constants(keys).items():
        value: object = vars(keys)[name]
        if isinstance(value, str) and value.startswith("hr:"):
            lines.append(f"| `{value}` | {meaning} |")
    for name, function in vars(keys).items():
        if inspect.isfunction(function) and not name.startswith("_"):
            names = [f"<{parameter}>" for parameter in inspect.signature(function).parameters]
            meaning = " ".join((inspect.getdoc(function) or "").split())
            lines.append(f"| `{function(*names)}` | {meaning} |")
    return (
        f"# Redis keys\n\n{MADE}"
        "Braces are part of the key: they make the keys of one model, request or tenant share a\n"
        "slot. What may be lost, and what is kept of prompts and outputs, is in\n"
        "[guides/data.md](../guides/data.md).\n\n" + "\n".join(lines) + "\n"
    )


def documented_constants(module: ModuleType) -> dict[str, str]:
    """Module constants with the docstring that stands below each."""
    body = ast.parse(inspect.getsource(module)).body
    found: dict[str, str] = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            meaning = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                meaning = " ".join(str(following.value.value).split())
            found[statement.target.id] = meaning
    return found


def file_schema() -> str:
    """Schema of the whole settings file, for editors."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headrace settings file",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            cls.section: {"$ref": f"{cls.section}.schema.json"}
            for cls in (EngineSettings, GatewaySettings)
        },
    }
    return json.dumps(schema, indent=2) + "\n"


def environment_example() -> str:
    """Variables of every service, for compose."""
    return (
        "# Written by `make gen`. Copy to .env and uncomment what you change.\n\n"
        f"# --- gateway ---\n{env_example(GatewaySettings, GatewaySecrets)}\n"
        f"# --- engine ---\n{env_example(EngineSettings, EngineSecrets)}"
    )


def everything() -> dict[str, str]:
    """Every generated file by its path."""
    gateway = settings_markdown(GatewaySettings, GatewaySecrets)
    engine = settings_markdown(EngineSettings, EngineSecrets)
    return {
        "docs/reference/gateway-settings.md": settings_page(
            "Gateway settings", GatewaySettings, gateway
        ),
        "docs/reference/engine-settings.md": settings_page(
            "Engine settings", EngineSettings, engine
        ),
        "docs/reference/metrics.md": metrics_page(),
        "docs/reference/errors.md": errors_page(),
        "docs/reference/keys.md": keys_page(),
        "docs/reference/gateway.schema.json": json_schema(GatewaySettings),
        "docs/reference/engine.schema.json": json_schema(EngineSettings),
        "docs/reference/config.schema.json": file_schema(),
        "docker/.env.example": environment_example(),
        "charts/headrace/values.schema.json": schema.text(),
        "charts/headrace/README.md": readme.text(),
        "charts/headrace/files/alerts.yaml": alerts.text(),
        "images.txt": images.text(),
    } | {
        f"charts/headrace/files/dashboards/{board.uid}.json": dashboards.text(board)
        for board in dashboards.BOARDS
    }


def main() -> int:
    """Writes, or compares."""
    stale = 0
    for name, text in everything().items():
        path = ROOT / name
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in sys.argv:
            print(f"stale: {name}; run `make gen`")
            stale = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"written: {name}")
    return stale


if __name__ == "__main__":
    sys.exit(main())
