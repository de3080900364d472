"""The declared metrics, and whether an expression names only such."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from headrace_engine.metrics import EngineMetrics
from headrace_gateway.metrics import GatewayMetrics
from headrace_kit.metrics import Declaration, Registry

_NAME: Final = re.compile(r"headrace_[a-z0-9_]+")
_LABELS: Final = re.compile(r"(headrace_[a-z0-9_]+)\{([^}]*)\}")
_LABEL: Final = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=)")
PLACE: Final = frozenset({"namespace", "pod", "job", "instance", "le"})
"""Labels that Prometheus adds, or that histograms have."""


@cache
def declared() -> dict[str, Declaration]:
    """Every metric of both services."""
    gateway, engine = Registry("gateway"), Registry("engine")
    GatewayMetrics(gateway)
    EngineMetrics(engine)
    return {made.name: made for made in (*gateway.declared(), *engine.declared())}


def problems(expression: str) -> list[str]:
    """Names of metrics and labels in a PromQL expression that nobody declares."""
    found = [
        f"{name} is not declared"
        for name in sorted(set(_NAME.findall(expression)))
        if declaration_of(name) is None
    ]
    for name, selectors in _LABELS.findall(expression):
        made = declaration_of(name)
        known = PLACE | set(made.labels if made else ())
        found += [
            f"{name} has no label {label}"
            for label in _LABEL.findall(selectors)
            if label not in known
        ]
    return found


def declaration_of(series: str) -> Declaration | None:
    """Whose series this is; histograms have three kinds of them."""
    made = declared().get(series)
    if made is not None:
        return None if made.kind == "histogram" else made
    for suffix in ("_bucket", "_sum", "_count"):
        made = declared().get(series.removesuffix(suffix)) if series.endswith(suffix) else None
        if made is not None and made.kind == "histogram":
            return made
    return None
