"""Numbers that routers and autoscalers act on."""

from __future__ import annotations

import contextlib
import socket
from urllib.parse import urlsplit

import pytest
from support.api import CAPITAL, Api
from support.figures import gateway_metrics
from support.idle import check_idle
from support.served import ServedStack
from support.waiting import wait_until

STREAMS = 20
FINISHED = "headrace_gateway_requests_finished_total"
STARTED = "headrace_gateway_requests_started_total"


def _sum(metrics: dict[str, float], name: str, *parts: str) -> float:
    return sum(
        value
        for series, value in metrics.items()
        if series.split("{")[0] == name and all(part in series for part in parts)
    )


@pytest.mark.case("BR-32")
def test_gauges_fall_and_totals_count_after_a_mass_departure(api: Api, stack: ServedStack) -> None:
    before = gateway_metrics(stack)
    place = urlsplit(stack.url)
    body = (
        f'{{"model":"{stack.model}","prompt":"Once upon a time","max_tokens":2000,'
        '"ignore_eos":true,"stream":true}'
    )
    request = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {stack.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    with contextlib.ExitStack() as lines:
        for _ in range(STREAMS):
            line = lines.enter_context(
                socket.create_connection((place.hostname or "", place.port or 0), timeout=30)
            )
            line.sendall(request)
            assert line.recv(12) == b"HTTP/1.1 200"
    check_idle(stack)

    def open_ones() -> float:
        now = gateway_metrics(stack)
        return now["headrace_gateway_requests_open"] + now["headrace_gateway_streams_open"]

    wait_until(lambda: open_ones() == 0, lambda: f"{open_ones():g} are still open", every_s=0.1)
    after = gateway_metrics(stack)
    cancelled = [_sum(metrics, FINISHED, 'reason="cancelled"') for metrics in (before, after)]
    assert cancelled[1] - cancelled[0] == STREAMS
    assert _sum(after, STARTED) == _sum(after, FINISHED)
    assert api.text(CAPITAL)


@pytest.mark.case("BR-32")
def test_latency_buckets_reach_from_a_blink_to_ten_minutes(api: Api, stack: ServedStack) -> None:
    api.text({**CAPITAL, "max_tokens": 1})
    metrics = gateway_metrics(stack)
    for name in (
        "headrace_gateway_time_to_first_token_seconds_bucket",
        "headrace_gateway_request_seconds_bucket",
    ):
        bounds = [
            float(series.split('le="')[1].split('"')[0])
            for series in metrics
            if series.startswith(name) and "+Inf" not in series
        ]
        assert min(bounds) <= 0.01
        assert max(bounds) >= 600
