"""``files/alerts.yaml``: alerts on declared metrics, for Prometheus as it is and for its operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import yaml

from chartgen.metrics import problems


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert."""

    name: str
    expr: str
    wait: str
    """How long it has to be so."""
    severity: Literal["critical", "warning"]
    summary: str
    what_to_do: str


ALERTS: Final = (
    Alert(
        "HeadraceGatewaysAbsent",
        "absent(headrace_gateway_backend_up)",
        "5m",
        "critical",
        "No gateway reports metrics.",
        "Nobody can be served. Look at the gateway's pods and at what scrapes them.",
    ),
    Alert(
        "HeadraceServerUnreachable",
        "min by (namespace) (headrace_gateway_backend_up) == 0"
        " or min by (namespace) (headrace_engine_wire_up) == 0",
        "1m",
        "critical",
        "The Redis or Valkey server does not answer.",
        "Engines go on with what they have; nothing new is taken. Look at the server, its memory and"
        " its disk, and at the network policies.",
    ),
    Alert(
        "HeadraceNoEngine",
        "max by (namespace, model) (headrace_gateway_queue_depth) > 0"
        " and on (namespace, model) max by (namespace, model) (headrace_gateway_engines_ready) == 0",
        "10m",
        "critical",
        "{{ $value }} requests for {{ $labels.model }} wait, and no engine serves it.",
        "Look at the engines' pods: are they pending for want of a GPU, or still loading?",
    ),
    Alert(
        "HeadraceQueueLong",
        "max by (namespace, model) (headrace_gateway_queue_depth)"
        " / on (namespace, model)"
        " sum by (namespace, model) (rate(headrace_gateway_requests_finished_total[5m])) > 60",
        "10m",
        "warning",
        "What waits for {{ $labels.model }} takes {{ $value | humanizeDuration }} to work off.",
        "There is more demand than capacity: more engines, or a shorter queue (max_queued), so that"
        " callers learn it at once.",
    ),
    Alert(
        "HeadraceEngineStalled",
        "max by (namespace, pod) (headrace_engine_stalled_seconds) > 5",
        "30s",
        "critical",
        "A pass of engine {{ $labels.pod }} has not ended for {{ $value | humanizeDuration }}.",
        "It loses its leases after stall_s, and others take over. Keep its log and its journal.",
    ),
    Alert(
        "HeadraceErrors",
        'sum by (namespace) (rate(headrace_gateway_requests_finished_total{reason="error"}[5m]))'
        " / sum by (namespace) (rate(headrace_gateway_requests_finished_total[5m])) > 0.01"
        " and "
        'sum by (namespace) (rate(headrace_gateway_requests_finished_total{reason="error"}[1h]))'
        " / sum by (namespace) (rate(headrace_gateway_requests_finished_total[1h])) > 0.01",
        "2m",
        "critical",
        "{{ $value | humanizePercentage }} of the requests end as errors.",
        "The gateways' and engines' logs have a line for each, with its code.",
    ),
    Alert(
        "HeadraceRefusals",
        "sum by (namespace, code) (rate(headrace_gateway_requests_rejected_total"
        '{code=~"queue_full|no_engine|backend_unavailable"}[5m])) > 0',
        "5m",
        "warning",
        "Calls are refused with {{ $labels.code }}.",
        "There is less capacity than demand: more engines, or a longer queue (max_queued).",
    ),
    Alert(
        "HeadraceFirstTokenSlow",
        "histogram_quantile(0.95, sum by (namespace, model, le)"
        " (rate(headrace_gateway_time_to_first_token_seconds_bucket[5m]))) > 5",
        "10m",
        "warning",
        "One in twenty first tokens of {{ $labels.model }} takes {{ $value | humanizeDuration }}.",
        "Is the time spent in the queue or in the prefill? The engines' board tells.",
    ),
    Alert(
        "HeadraceCacheFull",
        "max by (namespace, pod) (headrace_engine_cache_usage_ratio) > 0.95"
        " and max by (namespace, pod) (headrace_engine_sequences_waiting) > 0",
        "10m",
        "warning",
        "The KV cache of {{ $labels.pod }} is full and sequences wait for it.",
        "Shorter contexts, a larger cache (cache_bytes) or more engines.",
    ),
    Alert(
        "HeadracePreemptions",
        # Not the number of preemptions: a sequence that gave up its slot to a more urgent one, and
        # not its memory, has nothing to compute again.
        "sum by (namespace, pod) (rate(headrace_engine_recomputed_tokens_total[10m]))"
        " / (sum by (namespace, pod) (rate(headrace_engine_prefill_tokens_total[10m]))"
        " + sum by (namespace, pod) (rate(headrace_engine_decode_tokens_total[10m]))) > 0.05",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of what {{ $labels.pod }} computes was computed before.",
        "Sequences lose their memory to others and begin again: lower max_batch, or enlarge the cache.",
    ),
    Alert(
        "HeadraceLeasesLost",
        'sum by (namespace) (rate(headrace_engine_requests_let_go_total{why="lost"}[10m])) > 0',
        "10m",
        "warning",
        "Engines lose the leases of requests that they run.",
        "They are stuck, starved of CPU, or cut off from the server for longer than lease_ms.",
    ),
    Alert(
        "HeadraceRequestsLost",
        'sum by (namespace) (rate(headrace_gateway_recoveries_total{kind="failed"}[10m])) > 0',
        "5m",
        "warning",
        "Requests end because no engine took them over.",
        "Do engines die, or does the server lose data?",
    ),
    Alert(
        "HeadraceVersionsMixed",
        "sum by (namespace) (rate(headrace_gateway_foreign_records_total[5m])) > 0"
        " or sum by (namespace) (rate(headrace_engine_foreign_records_total[5m])) > 0",
        "1m",
        "critical",
        "Records of another wire version come from the server.",
        "Two versions that cannot read each other share a server: see docs/guides/upgrades.md.",
    ),
    Alert(
        "HeadraceRecordsDamaged",
        "sum by (namespace, kind) (increase(headrace_gateway_damaged_records_total[75m])) > 0"
        " or sum by (namespace, kind) (increase(headrace_engine_damaged_records_total[75m])) > 0",
        "0m",  # keys are read together once an hour
        "warning",
        "Records of kind {{ $labels.kind }} on the server cannot be read and are left out.",
        "Something else writes there, or the server loses data: the logs name each record once.",
    ),
    Alert(
        "HeadracePublishSlow",
        "histogram_quantile(0.99, sum by (namespace, pod, le)"
        " (rate(headrace_engine_publish_lag_seconds_bucket[5m]))) > 0.5",
        "10m",
        "warning",
        "Tokens of {{ $labels.pod }} reach the server after {{ $value | humanizeDuration }}.",
        "Look at the server's latency and at the network to it.",
    ),
    Alert(
        "HeadraceTokensWait",
        "max by (namespace, pod) (headrace_engine_unpublished_tokens) > 10000",
        "1m",
        "warning",
        "{{ $value }} tokens of {{ $labels.pod }} wait for the server.",
        "Beyond buffer_tokens requests are given up.",
    ),
)


def text() -> str:
    """The file's content. Ends when an alert names a metric that nobody declares."""
    wrong = [f"{alert.name}: {each}" for alert in ALERTS for each in problems(alert.expr)]
    if wrong:
        raise SystemExit("chartgen.alerts: " + "; ".join(wrong))
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.wait,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.what_to_do},
        }
        for alert in ALERTS
    ]
    made = yaml.safe_dump(
        {"groups": [{"name": "headrace", "rules": rules}]}, sort_keys=False, width=100
    )
    return f"# Written by `make gen`. Do not edit.\n{made}"
