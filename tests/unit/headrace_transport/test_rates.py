"""Buckets in memory, to the millisecond."""

from __future__ import annotations

from headrace_transport.interface import Allowance, Rates
from headrace_transport.rates import Buckets

RATES = Rates(requests=6, tokens=600)


def test_a_bucket_fills_evenly_and_never_over() -> None:
    buckets = Buckets()
    first = buckets.take(RATES, requests=1, tokens=600, must=True, now_ms=0)
    assert first == Allowance(True, 5, 0, 0, 10_000, 60_000)
    refused = buckets.take(RATES, requests=1, tokens=100, must=True, now_ms=4_000)
    assert refused == Allowance(False, 5, 40, 6_000, 6_000, 56_000)
    assert buckets.take(RATES, requests=1, tokens=100, must=True, now_ms=10_000).granted
    later = buckets.take(RATES, requests=0, tokens=0, must=True, now_ms=1_000_000)
    assert later == Allowance(True, 6, 600, 0, 0, 0)


def test_a_clock_that_goes_back_fills_nothing() -> None:
    buckets = Buckets()
    buckets.take(RATES, requests=6, tokens=0, must=True, now_ms=100_000)
    assert not buckets.take(RATES, requests=1, tokens=0, must=True, now_ms=1).granted
