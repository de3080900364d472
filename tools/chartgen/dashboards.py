"""``files/dashboards``: Grafana boards, one for each question that an operator has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from chartgen.metrics import problems


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph with one or more lines."""

    title: str
    lines: Sequence[tuple[str, str]]
    """Expression and legend of each."""
    unit: str = "short"
    """As Grafana writes it."""
    about: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard."""

    uid: str
    title: str
    rows: Sequence[tuple[str, Sequence[Panel]]]

    @property
    def expressions(self) -> list[tuple[str, str]]:
        """Title of the panel and expression, for each line."""
        return [
            (panel.title, expr)
            for _, panels in self.rows
            for panel in panels
            for expr, _ in panel.lines
        ]


def _rate(metric: str, by: str = "") -> str:
    grouped = f"sum by ({by}) " if by else "sum "
    return f'{grouped}(rate({metric}{{namespace=~"$namespace"}}[$__rate_interval]))'


def _quantile(q: float, metric: str) -> str:
    return f"histogram_quantile({q}, {_rate(f'{metric}_bucket', 'le')})"


def _now(metric: str, by: str = "", function: str = "sum") -> str:
    grouped = f"{function} by ({by}) " if by else f"{function} "
    return f'{grouped}({metric}{{namespace=~"$namespace"}})'


def _quantiles(metric: str) -> list[tuple[str, str]]:
    return [(_quantile(q, metric), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)]


SERVICE: Final = Board(
    "headrace-service",
    "Headrace: is it well?",
    (
        (
            "Now",
            (
                Panel("Requests open", [(_now("headrace_gateway_requests_open"), "open")]),
                Panel("Streams read", [(_now("headrace_gateway_streams_open"), "streams")]),
                Panel(
                    "Waiting in the queue, by model",
                    [(_now("headrace_gateway_queue_depth", "model", "max"), "{{model}}")],
                    about="As the gateways see it on the server. All of them see the same.",
                ),
                Panel(
                    "Engines ready, by model",
                    [(_now("headrace_gateway_engines_ready", "model", "max"), "{{model}}")],
                ),
                Panel(
                    "Server answers",
                    [
                        (_now("headrace_gateway_backend_up", function="min"), "gateways"),
                        (_now("headrace_engine_wire_up", function="min"), "engines"),
                    ],
                    about="1 while every one of them reaches the server.",
                ),
                Panel(
                    "Engines, and their slots",
                    [
                        (_now("headrace_engine_slots", function="count"), "engines"),
                        (_now("headrace_engine_slots"), "slots"),
                        (_now("headrace_engine_sequences_running"), "running"),
                    ],
                ),
            ),
        ),
        (
            "Calls",
            (
                Panel(
                    "Begun, by model",
                    [(_rate("headrace_gateway_requests_started_total", "model"), "{{model}}")],
                    "reqps",
                ),
                Panel(
                    "Ended, by reason",
                    [(_rate("headrace_gateway_requests_finished_total", "reason"), "{{reason}}")],
                    "reqps",
                ),
                Panel(
                    "Refused, by code",
                    [(_rate("headrace_gateway_requests_rejected_total", "code"), "{{code}}")],
                    "reqps",
                ),
                Panel(
                    "HTTP answers, by status",
                    [(_rate("headrace_gateway_http_requests_total", "status"), "{{status}}")],
                    "reqps",
                ),
            ),
        ),
        (
            "Waiting",
            (
                Panel(
                    "First token",
                    _quantiles("headrace_gateway_time_to_first_token_seconds"),
                    "s",
                    "From the arrival of a call.",
                ),
                Panel(
                    "Between tokens",
                    _quantiles("headrace_gateway_time_per_output_token_seconds"),
                    "s",
                    "Mean of each choice.",
                ),
                Panel("Whole call", _quantiles("headrace_gateway_request_seconds"), "s"),
                Panel(
                    "Frames' age",
                    [(_now("headrace_gateway_frame_lag_seconds", "pod", "max"), "{{pod}}")],
                    "s",
                    "By the clocks of both machines.",
                ),
            ),
        ),
        (
            "Tokens",
            (
                Panel(
                    "Prompt, by model",
                    [(_rate("headrace_gateway_prompt_tokens_total", "model"), "{{model}}")],
                ),
                Panel(
                    "Generated, by model",
                    [(_rate("headrace_gateway_completion_tokens_total", "model"), "{{model}}")],
                ),
                Panel(
                    "Of prompts, found in the cache",
                    [
                        (
                            f"{_rate('headrace_gateway_cached_tokens_total', 'model')}"
                            f" / {_rate('headrace_gateway_prompt_tokens_total', 'model')}",
                            "{{model}}",
                        )
                    ],
                    "percentunit",
                ),
            ),
        ),
        (
            "Mending",
            (
                Panel(
                    "Cancels, by cause",
                    [(_rate("headrace_gateway_cancels_total", "cause"), "{{cause}}")],
                ),
                Panel(
                    "Recoveries, by kind",
                    [(_rate("headrace_gateway_recoveries_total", "kind"), "{{kind}}")],
                ),
                Panel(
                    "Resumes, by source",
                    [(_rate("headrace_gateway_resumes_total", "source"), "{{source}}")],
                ),
                Panel(
                    "Rows dropped, by kind",
                    [(_rate("headrace_gateway_stale_rows_total", "kind"), "{{kind}}")],
                ),
            ),
        ),
    ),
)

ENGINES: Final = Board(
    "headrace-engines",
    "Headrace: engines",
    (
        (
            "Where a request's time goes",
            (
                Panel("In the engine's queue", _quantiles("headrace_engine_queue_seconds"), "s"),
                Panel("Prefill", _quantiles("headrace_engine_prefill_seconds"), "s"),
                Panel("First token", _quantiles("headrace_engine_first_token_seconds"), "s"),
                Panel("Between tokens", _quantiles("headrace_engine_inter_token_seconds"), "s"),
                Panel("Result to server", _quantiles("headrace_engine_publish_lag_seconds"), "s"),
            ),
        ),
        (
            "What runs, what waits",
            (
                Panel(
                    "Running and waiting",
                    [
                        (_now("headrace_engine_sequences_running", "pod"), "{{pod}} running"),
                        (_now("headrace_engine_sequences_waiting", "pod"), "{{pod}} waiting"),
                    ],
                ),
                Panel(
                    "Waiting, by reason",
                    [
                        (
                            _now("headrace_engine_sequences_waiting_by_reason", "reason"),
                            "{{reason}}",
                        )
                    ],
                ),
                Panel(
                    "Preemptions",
                    [(_rate("headrace_engine_preemptions_total", "pod"), "{{pod}}")],
                ),
                Panel(
                    "Longest pass under way",
                    [(_now("headrace_engine_stalled_seconds", "pod", "max"), "{{pod}}")],
                    "s",
                ),
            ),
        ),
        (
            "Passes",
            (
                Panel("Passes", [(_rate("headrace_engine_passes_total", "pod"), "{{pod}}")]),
                Panel(
                    "Tokens, by kind",
                    [
                        (_rate("headrace_engine_prefill_tokens_total"), "prefill"),
                        (_rate("headrace_engine_decode_tokens_total"), "decode"),
                        (_rate("headrace_engine_recomputed_tokens_total"), "computed again"),
                    ],
                ),
                Panel(
                    "Host time of a pass",
                    [
                        (_now("headrace_engine_plan_seconds", "pod", "max"), "{{pod}} plan"),
                        (_now("headrace_engine_update_seconds", "pod", "max"), "{{pod}} update"),
                        (_now("headrace_engine_wait_seconds", "pod", "max"), "{{pod}} wait"),
                    ],
                    "s",
                ),
                Panel(
                    "Tokens not yet published",
                    [(_now("headrace_engine_unpublished_tokens", "pod"), "{{pod}}")],
                ),
            ),
        ),
        (
            "Cache",
            (
                Panel(
                    "Held by sequences",
                    [(_now("headrace_engine_cache_usage_ratio", "pod", "max"), "{{pod}}")],
                    "percentunit",
                ),
                Panel(
                    "Blocks",
                    [
                        (_now("headrace_engine_blocks_held"), "held"),
                        (_now("headrace_engine_blocks_cached"), "cached"),
                        (_now("headrace_engine_blocks_free"), "free"),
                    ],
                ),
                Panel(
                    "Of prompts, found",
                    [
                        (
                            f"{_rate('headrace_engine_cached_tokens_total', 'pod')}"
                            f" / {_rate('headrace_engine_prompt_tokens_total', 'pod')}",
                            "{{pod}}",
                        )
                    ],
                    "percentunit",
                ),
                Panel(
                    "Evictions",
                    [(_rate("headrace_engine_evictions_total", "pod"), "{{pod}}")],
                ),
            ),
        ),
        (
            "Requests",
            (
                Panel("Held", [(_now("headrace_engine_requests_held", "pod"), "{{pod}}")]),
                Panel(
                    "Ended, by reason",
                    [(_rate("headrace_engine_requests_finished_total", "reason"), "{{reason}}")],
                ),
                Panel(
                    "Let go, by why",
                    [(_rate("headrace_engine_requests_let_go_total", "why"), "{{why}}")],
                ),
                Panel(
                    "Refused, by code",
                    [(_rate("headrace_engine_requests_refused_total", "code"), "{{code}}")],
                ),
            ),
        ),
    ),
)
BOARDS: Final = (SERVICE, ENGINES)

_COLUMNS: Final = 24
_HEIGHT: Final = 8


def text(board: Board) -> str:
    """A board's file. Ends when a panel names a metric that nobody declares."""
    wrong = [f"{title}: {each}" for title, expr in board.expressions for each in problems(expr)]
    if wrong:
        raise SystemExit(f"chartgen.dashboards: {board.uid}: " + "; ".join(wrong))
    return json.dumps(_board(board), indent=1, ensure_ascii=False) + "\n"


def _board(board: Board) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in board.rows:
        panels.append(
            {
                "type": "row",
                "title": title,
                "collapsed": False,
                "id": len(panels) + 1,
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
                "panels": [],
            }
        )
        top += 1
        width = _COLUMNS // len(row)
        for column, panel in enumerate(row):
            place = {"h": _HEIGHT, "w": width, "x": column * width, "y": top}
            panels.append(_panel(panel, len(panels) + 1, place))
        top += _HEIGHT
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["headrace"],
        "timezone": "browser",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_SOURCE, _NAMESPACE]},
        "panels": panels,
    }


_SOURCE: Final[dict[str, Any]] = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
    "hide": 0,
}
_NAMESPACE: Final[dict[str, Any]] = {
    "name": "namespace",
    "label": "Namespace",
    "type": "query",
    "datasource": {"type": "prometheus", "uid": "${datasource}"},
    "query": "label_values(headrace_gateway_backend_up, namespace)",
    "includeAll": True,
    "allValue": ".*",
    "multi": True,
    "refresh": 2,
    "current": {"text": "All", "value": "$__all"},
}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": source,
                "expr": expr,
                "legendFormat": legend,
            }
            for index, (expr, legend) in enumerate(panel.lines)
        ],
    }
