"""Settings that the chart gives to gateways and engines alike."""

from __future__ import annotations

from headrace_engine.settings import EngineSettings
from headrace_gateway.settings import GatewaySettings


def test_grace_of_requests_has_the_same_default_and_bounds_in_both() -> None:
    for settings in (GatewaySettings, EngineSettings):
        grace = settings.model_json_schema()["properties"]["resume_grace_s"]
        assert (grace["default"], grace["minimum"], grace["maximum"]) == (0.0, 0, 3600)
