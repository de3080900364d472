"""The gateway's settings: bounds hold, and secrets are no settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headrace_gateway.settings import GatewaySecrets, GatewaySettings
from headrace_kit.errors import SettingsError
from headrace_kit.settings import load
from jsonschema import Draft7Validator
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("http_port", 70000),
        ("max_queued", 0),
        ("drain_s", -1),
        ("name", "Not A Name"),
        ("log_level", "loud"),
        ("keepalive_s", 0),
        ("nonsense", 1),
    ],
)
def test_values_out_of_bounds_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError):
        GatewaySettings.model_validate({name: value})


def test_lists_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_GATEWAY_CORS_ORIGINS", "https://a.example,https://b.example")
    assert load(GatewaySettings).cors_origins == ("https://a.example", "https://b.example")


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "null", "http://localhost:3000", "https://ui.example:8443", "http://[::1]:8080"),
        *("http://a.example:443", "https://xn--bcher-kva.example", "chrome-extension://abcdef"),
    ],
)
def test_origins_as_browsers_write_them_are_taken(origin: str) -> None:
    assert GatewaySettings(cors_origins=(origin,)).cors_origins == (origin,)
    assert in_the_schema(origin)


@pytest.mark.parametrize(
    "origin",
    [
        *("ui.example", "https://ui.example/", "https://ui.example/app", "https://UI.example"),
        *("https://*.example", "https://ui.example:443", "http://ui.example:80", "https://"),
        *("https://b\u00fccher.example", "https://user@ui.example", "https://ui.example:", " *"),
        "https://ui.example\n",
    ],
)
def test_an_origin_that_no_browser_sends_is_refused_in_words(
    origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationError, match="no browser sends the origin"):
        GatewaySettings(cors_origins=("https://a.example", origin))
    monkeypatch.setenv("HEADRACE_GATEWAY_CORS_ORIGINS", json.dumps([origin]))
    with pytest.raises(SettingsError, match=r"CORS_ORIGINS: no browser sends the origin"):
        load(GatewaySettings)
    if not origin.endswith("\n"):  # Python's $ lets it pass, Helm's does not
        assert not in_the_schema(origin)


def in_the_schema(origin: str) -> bool:
    schema: dict[str, Any] = GatewaySettings.model_json_schema()
    items = Draft7Validator(schema["properties"]["cors_origins"])
    return items.is_valid([origin])  # pyright: ignore[reportUnknownMemberType]


def test_a_misspelt_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_GATEWAY_MAX_QUEUE", "5")
    with pytest.raises(SettingsError, match="MAX_QUEUE"):
        load(GatewaySettings)


def test_secrets_do_not_show() -> None:
    secrets = GatewaySecrets.model_validate({"pepper": "very-secret-pepper"})
    assert "very-secret" not in repr(secrets)
