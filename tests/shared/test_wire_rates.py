"""A key's minute: taken before, corrected after, filled again evenly."""

from __future__ import annotations

from functools import partial

from headrace_transport.interface import Allowance, Rates
from support.wires import Wires

TENANT = "acme"
SLACK = 20
"""Per cent of a minute's tokens that a busy machine lets pass between two calls."""


async def take(
    wires: Wires,
    rates: Rates,
    *,
    requests: int = 1,
    tokens: int = 0,
    must: bool = True,
    key: str = "k",
) -> Allowance:
    """Takes from a key's buckets."""
    wire = await wires.gateway()
    return await wire.take_rate(TENANT, key, rates, requests=requests, tokens=tokens, must=must)


async def test_a_minutes_requests_are_granted_at_once_and_then_no_more(wires: Wires) -> None:
    ask = partial(take, wires, Rates(requests=3, tokens=None))
    granted = [await ask() for _ in range(3)]
    assert all(each.granted for each in granted)
    assert [each.requests_left for each in granted] == [2, 1, 0]
    assert [each.tokens_left for each in granted] == [0, 0, 0]
    refused = await ask()
    assert not refused.granted
    assert 0 < refused.wait_ms <= 20_000
    assert refused.wait_ms <= refused.requests_full_ms <= 60_000
    assert (await ask(key="another")).granted


async def test_what_was_taken_comes_back_evenly(wires: Wires) -> None:
    ask = partial(take, wires, Rates(requests=600, tokens=None))
    assert (await ask(requests=600)).granted
    refused = await ask(requests=10)
    assert not refused.granted
    assert refused.wait_ms <= 1000
    await wires.pass_ms(refused.wait_ms + 50)
    assert (await ask(requests=10)).granted


async def test_both_are_there_or_nothing_is_taken(wires: Wires) -> None:
    ask = partial(take, wires, Rates(requests=2, tokens=100))
    assert (await ask(tokens=90)).tokens_left == 10
    refused = await ask(tokens=90)
    assert not refused.granted
    assert refused.requests_left == 1
    assert 10 <= refused.tokens_left < SLACK + 10
    assert (await ask(tokens=5)).granted


async def test_more_than_a_minutes_tokens_is_a_whole_minutes(wires: Wires) -> None:
    ask = partial(take, wires, Rates(requests=None, tokens=100))
    first = await ask(tokens=5000)
    assert (first.granted, first.tokens_left) == (True, 0)
    assert not (await ask(tokens=50)).granted


async def test_a_reservation_is_corrected_either_way(wires: Wires) -> None:
    rates = Rates(requests=5, tokens=1000)
    await take(wires, rates, tokens=800)
    back = await take(wires, rates, requests=0, tokens=-700, must=False)
    assert back.granted
    assert 900 <= back.tokens_left < 900 + SLACK * 10
    assert back.requests_left == 4
    over = await take(wires, rates, requests=0, tokens=3000, must=False)
    assert over.granted
    assert -2100 <= over.tokens_left < -2100 + SLACK * 10
    assert over.tokens_full_ms > 60_000
    assert not (await take(wires, rates, tokens=1)).granted
    whole = await take(wires, rates, requests=-9, tokens=-90_000, must=False)
    assert (whole.requests_left, whole.tokens_left) == (5, 1000)
    assert (whole.requests_full_ms, whole.tokens_full_ms) == (0, 0)


async def test_a_limit_that_changes_holds_at_once(wires: Wires) -> None:
    assert (await take(wires, Rates(requests=100, tokens=None))).requests_left == 99
    assert (await take(wires, Rates(requests=2, tokens=None))).requests_left == 1
    assert (await take(wires, Rates(requests=None, tokens=None))).granted


async def test_buckets_that_are_full_again_are_forgotten(wires: Wires) -> None:
    await take(wires, Rates(requests=60_000, tokens=None))
    await wires.flush()
    assert (await take(wires, Rates(requests=3, tokens=None))).requests_left == 2
