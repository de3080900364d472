"""What a served stack's processes say of themselves."""

from __future__ import annotations

import json

import httpx
from support.served import ServedStack


def engine_metrics(stack: ServedStack) -> dict[str, float]:
    """Every series of the engine, by name and labels as Prometheus writes them."""
    return _read(f"http://127.0.0.1:{_ready(stack, 'engine')['http_port']}/metrics")


def gateway_metrics(stack: ServedStack) -> dict[str, float]:
    """Every series of the first gateway."""
    return _read(f"{stack.url}/metrics")


def process_id(stack: ServedStack, name: str) -> int:
    """Process id of ``engine``, ``gateway``, ``gateway-1``, ..."""
    return _ready(stack, name)["pid"]


def _ready(stack: ServedStack, name: str) -> dict[str, int]:
    return json.loads((stack.state_dir / "run" / f"{name}.ready.json").read_text())


def _read(url: str) -> dict[str, float]:
    text = httpx.get(url, trust_env=False).text
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = (line.rsplit(" ", 1) for line in lines)
    return {name: float(value) for name, value in pairs}
