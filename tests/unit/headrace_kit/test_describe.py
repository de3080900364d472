"""Documents say what the declaration says."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import yaml
from headrace_kit.describe import (
    describe,
    env_example,
    json_schema,
    metrics_markdown,
    settings_markdown,
)
from headrace_kit.metrics import Registry
from headrace_kit.settings import Secrets, Settings, load, setting
from pydantic import AfterValidator, SecretStr


class Shade(StrEnum):
    """A closed set."""

    LIGHT = "light"
    DARK = "dark"


class PaperSettings(Settings, env_prefix="HEADRACE_ENGINE_"):
    """Settings to be described."""

    tokens: int = setting(16, ge=1, le=1024, unit="tokens")
    """Tokens of one block.
    On two lines."""
    mode: Literal["a", "b"] = setting("a")
    """Mode | with a bar."""
    shade: Shade = setting(Shade.DARK)
    """Shade."""
    hosts: tuple[Annotated[str, AfterValidator(str.strip)], ...] = setting(("x", "y"))
    """Hosts."""
    folder: Path | None = setting(None)
    """Folder."""
    on: bool = setting(True)
    """Switch."""
    weights: dict[str, float] = setting({})
    """Weights."""
    ratio: float = setting(0.5, gt=0, lt=1)
    """Ratio."""
    needed: str
    """Has no default."""


class PaperSecrets(Secrets, env_prefix="HEADRACE_ENGINE_"):
    """Secrets to be described."""

    paper_password: SecretStr | None = None
    """Password of the server."""


def test_description_carries_type_default_bounds_and_unit() -> None:
    found = {info.name: info for info in describe(PaperSettings)}
    tokens = found["tokens"]
    assert (tokens.type, tokens.bounds, tokens.unit) == ("integer", "≥ 1, ≤ 1024", "tokens")
    assert tokens.variable == "HEADRACE_ENGINE_TOKENS"
    assert tokens.flag == "--tokens"
    assert tokens.meaning == "Tokens of one block. On two lines."
    assert found["mode"].type == "`a`, `b`"
    assert found["shade"].type == "`light`, `dark`"
    assert found["shade"].default_text == "dark"
    assert found["hosts"].type == "list of text"
    assert found["hosts"].default_text == "x,y"
    assert (found["folder"].type, found["folder"].optional) == ("path", True)
    assert not tokens.optional
    assert found["ratio"].bounds == "> 0, < 1"
    assert found["on"].is_switch
    assert found["needed"].default_text == "required"
    assert found["weights"].type == "JSON object"


def test_table_has_a_row_for_every_setting_and_secret() -> None:
    table = settings_markdown(PaperSettings, PaperSecrets)
    for info in describe(PaperSettings):
        assert f"| `{info.name}` |" in table
    assert "Mode \\| with a bar." in table
    assert "`HEADRACE_ENGINE_PAPER_PASSWORD_FILE`" in table
    assert "| path, or nothing |" in table


def test_environment_example_loads_back_to_the_defaults() -> None:
    example = env_example(PaperSettings, PaperSecrets)
    pairs = [line[1:].split("=", 1) for line in example.splitlines() if line[1:2] != " "]
    environ = dict(pairs) | {"HEADRACE_ENGINE_NEEDED": "here"}
    assert load(PaperSettings, environ=environ) == PaperSettings(needed="here")
    assert len(environ) == len(PaperSettings.model_fields) + 1


def test_json_schema_forbids_what_load_forbids_and_has_no_secret() -> None:
    schema = json.loads(json_schema(PaperSettings))
    assert schema["additionalProperties"] is False
    assert schema["properties"]["tokens"]["maximum"] == 1024
    assert schema["properties"]["tokens"]["unit"] == "tokens"
    assert schema["required"] == ["needed"]
    assert "password" not in json.dumps(schema)
    assert yaml.safe_load(json_schema(PaperSettings)) == schema


def test_metrics_table_names_unit_and_labels() -> None:
    registry = Registry(service="gateway")
    registry.counter("headrace_gateway_requests_total", "Requests.", labels=("route", "status"))
    registry.histogram("headrace_gateway_wait_seconds", "Waits.")
    assert metrics_markdown(registry.declared()).splitlines()[2:] == [
        "| `headrace_gateway_requests_total` | counter |  | `route`, `status` | Requests. |",
        "| `headrace_gateway_wait_seconds` | histogram | seconds |  | Waits. |",
    ]
