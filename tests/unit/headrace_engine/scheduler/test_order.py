"""TotalOrder and WaitingLine: band, tenant, arrival."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from headrace_engine.scheduler.order import OVERTAKEN_S, TotalOrder, WaitingLine
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_engine.state.sequence import Sequence
from hypothesis import given
from hypothesis import strategies as st


def make(
    number: int,
    tenant: str = "a",
    band: int = 1,
    arrived_s: float = 0.0,
    deadline_s: float | None = None,
) -> Sequence:
    tokens = np.zeros(1, np.int32)
    request = Request(
        f"r{number}",
        RequestHandle(number),
        tokens,
        Sampling(1),
        tenant=tenant,
        band=band,
        deadline_s=deadline_s,
    )
    return Sequence(request, 0, number, tokens, 1, 1, 9, "", arrived_s)


def numbers(line: WaitingLine) -> list[int]:
    return [sequence.number for sequence in line]


@pytest.mark.rule("order.total")
def test_band_goes_before_tenant_and_tenant_before_arrival() -> None:
    order = TotalOrder({})
    line = WaitingLine(order)
    sequences = [
        make(1, "b"), make(2, "a"), make(3, "b", band=0), make(4, "a"), make(5, "c", band=2),
    ]  # fmt: skip
    for sequence in sequences:
        order.enter(sequence)
        line.add(sequence)
    order.charge(sequences[0], 5)
    order.settle()
    assert numbers(line) == [3, 2, 4, 1, 5]
    assert numbers(line) == sorted(numbers(line), key=lambda n: order.rank(sequences[n - 1]))
    assert len(line) == 5


@pytest.mark.rule("order.total")
def test_within_a_tenant_those_go_first_that_have_to_be_done_first() -> None:
    order = TotalOrder({})
    line = WaitingLine(order)
    sequences = [
        make(1), make(2, deadline_s=9.0), make(3, deadline_s=5.0), make(4, deadline_s=9.0),
        make(5, "b", deadline_s=1.0), make(6, band=0), make(7, band=2, deadline_s=0.5),
    ]  # fmt: skip
    for sequence in sequences:
        order.enter(sequence)
        line.add(sequence)
    order.settle()
    assert numbers(line) == [6, 3, 2, 4, 1, 5, 7]
    assert numbers(line) == sorted(numbers(line), key=lambda n: order.rank(sequences[n - 1]))
    for left in (3, 1, 2):
        line.remove(sequences[left - 1])
    assert numbers(line) == [6, 4, 5, 7]


@pytest.mark.rule("order.total")
def test_deadlines_overtake_nobody_for_long() -> None:
    order = TotalOrder({})
    line = WaitingLine(order)
    for sequence in (
        make(1),
        make(2, deadline_s=86_400.0),
        make(3, arrived_s=OVERTAKEN_S - 2, deadline_s=OVERTAKEN_S - 1),
        make(4, arrived_s=OVERTAKEN_S - 2, deadline_s=OVERTAKEN_S + 1),
    ):
        order.enter(sequence)
        line.add(sequence)
    order.settle()
    assert numbers(line) == [3, 1, 2, 4]


def test_one_that_comes_back_stands_before_later_arrivals() -> None:
    order = TotalOrder({})
    line = WaitingLine(order)
    sequences = [make(i) for i in range(1, 5)]
    for sequence in sequences:
        order.enter(sequence)
        line.add(sequence)
    line.remove(sequences[1])
    assert numbers(line) == [1, 3, 4]
    line.add(sequences[1])
    assert numbers(line) == [1, 2, 3, 4]


@pytest.mark.rule("order.quantum")
def test_places_change_only_when_the_quantum_ends() -> None:
    order = TotalOrder({"b": 2.0})
    first, second = make(1, "a"), make(2, "b")
    order.enter(first)
    order.enter(second)
    assert order.rank(first) < order.rank(second)
    order.charge(first, 100)
    order.charge(second, 150)
    assert order.rank(first) < order.rank(second)
    assert order.settle()
    assert order.rank(second) < order.rank(first), "75 per weight are less than 100"
    assert not order.settle()


@pytest.mark.rule("order.newcomer")
def test_a_new_tenant_starts_at_the_least_counter_in_use() -> None:
    order = TotalOrder({})
    first, second = make(1, "a"), make(2, "b")
    order.enter(first)
    order.enter(second)
    order.charge(first, 100)
    order.charge(second, 40)
    third = make(3, "c")
    order.enter(third)
    assert order.counter("c") == 40.0


def test_a_tenant_that_left_does_not_lose_its_debt_by_coming_back() -> None:
    order = TotalOrder({})
    first, second = make(1, "a"), make(2, "b")
    order.enter(first)
    order.enter(second)
    order.charge(first, 100)
    order.leave(first)
    again = make(3, "a")
    order.enter(again)
    assert order.counter("a") == 100.0
    order.leave(again)
    order.charge(second, 500)
    order.settle()
    assert order.counter("a") == 0.0, "forgotten once the others have overtaken it"


def test_nothing_is_kept_of_tenants_when_nobody_is_here() -> None:
    order = TotalOrder({})
    for i in range(50):
        sequence = make(i + 1, f"tenant-{i}")
        order.enter(sequence)
        order.charge(sequence, i)
        order.leave(sequence)
    assert all(order.counter(f"tenant-{i}") == 0.0 for i in range(50))


@pytest.mark.rule("order.newcomer")
@given(
    st.lists(
        st.tuples(st.sampled_from("eelcs"), st.integers(0, 7), st.integers(0, 90)),
        min_size=10,
        max_size=60,
    )
)
def test_newcomers_start_at_the_least_counter_whatever_came_before(
    events: list[tuple[str, int, int]],
) -> None:
    order = TotalOrder({"t0": 2.0, "t3": 0.5})
    here: dict[str, list[Sequence]] = {}
    known: dict[str, float] = {}
    for number, (event, which, tokens) in enumerate(events, 1):
        name = f"t{which}"
        least = min((known[t] for t in here if here[t]), default=None)
        if event == "e":
            sequence = make(number, name)
            if not here.get(name):
                known[name] = max(known.get(name, 0.0), least or 0.0)
            here.setdefault(name, []).append(sequence)
            order.enter(sequence)
        elif event == "s":
            order.settle()
        elif here.get(name):
            if event == "c":
                order.charge(here[name][0], tokens)
                known[name] = order.counter(name)
            else:
                order.leave(here[name].pop())
        least = min((known[t] for t in here if here[t]), default=None)
        for tenant in [t for t in known if not here.get(t)]:
            # Who is not here is remembered only while he is ahead.
            if least is None or (event == "s" and known[tenant] <= least):
                del known[tenant]
        present = [s for line in here.values() for s in line]
        for sequence in present:
            assert order.counter(sequence.request.tenant) == known[sequence.request.tenant]
        ranks = sorted(order.rank(s) for s in present)
        assert len(set(ranks)) == len(present)


def test_thousands_of_tenants_that_arrive_at_once_get_their_places_together() -> None:
    settled = 0

    class Counting(TotalOrder):
        def settle(self) -> bool:
            nonlocal settled
            settled += 1
            return super().settle()

    order = Counting({})
    sequences = [make(i, f"t{i:05}") for i in range(1, 3000)]
    for sequence in sequences:
        order.enter(sequence)
    assert settled == 0
    assert [order.rank(s)[1] for s in sequences] == list(range(2999))
    assert settled == 1


def test_to_look_at_the_first_costs_nothing_for_tenants_behind_them() -> None:
    asked = 0

    class Counting(TotalOrder):
        def place(self, tenant: str) -> int:
            nonlocal asked
            asked += 1
            return super().place(tenant)

    order = Counting({})
    line = WaitingLine(order)
    sequences = [make(i, f"t{i:05}") for i in range(1, 3000)]
    for sequence in sequences:
        order.enter(sequence)
        line.add(sequence)
    assert next(iter(line)).number == 1
    asked = 0
    for sequence in sequences[:100]:
        assert next(iter(line)) is sequence
        line.remove(sequence)
    line.add(sequences[50])
    assert next(iter(line)) is sequences[50]
    assert asked < 101 * 15


@pytest.mark.rule("order.total")
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 2)), max_size=60))
def test_the_line_is_in_the_total_order_whatever_comes_and_goes(
    events: list[tuple[int, int, int]],
) -> None:
    order = TotalOrder({})
    line = WaitingLine(order, ageing_s=10.0)
    here: dict[int, Sequence] = {}
    waits: set[int] = set()
    for now, (what, tenant, band) in enumerate(events, start=1):
        if what < 4:  # one comes
            here[now] = make(now, f"t{tenant}", band, float(now))
            order.enter(here[now])
            line.add(here[now])
            waits.add(now)
        elif what == 4:
            order.settle()
        elif what == 5:
            line.age(float(now))
        elif here:
            number = sorted(here)[tenant % len(here)]
            order.charge(here[number], 10 * band)
            if number in waits:  # it runs
                line.remove(here[number])
                waits.remove(number)
            elif what < 8:  # it waits again
                line.add(here[number])
                waits.add(number)
            else:
                order.leave(here.pop(number))
        assert numbers(line) == sorted(waits, key=lambda n: order.rank(here[n]))


@pytest.mark.rule("order.ageing")
def test_who_waits_long_moves_up_a_band_after_each_time() -> None:
    order = TotalOrder({})
    line = WaitingLine(order, ageing_s=10.0)
    old, young = make(1, band=2, arrived_s=0.0), make(2, band=2, arrived_s=8.0)
    urgent = make(3, band=1, arrived_s=9.0)
    for sequence in (old, young, urgent):
        order.enter(sequence)
        line.add(sequence)
    assert not line.age(9.9)
    assert line.age(10.0)
    assert not line.age(10.0)
    assert order.band(old) == 1
    assert order.band(young) == 2
    assert numbers(line) == [1, 3, 2]
    assert line.age(20.0)
    assert order.band(old) == 0
    assert order.band(young) == 1
    line.remove(old)
    order.leave(old)
    assert len(line) == 2


@pytest.mark.rule("order.ageing")
def test_one_that_came_in_a_lesser_band_does_not_hold_up_those_behind_it() -> None:
    order = TotalOrder({})
    line = WaitingLine(order, ageing_s=10.0)
    lesser, behind = make(1, band=2, arrived_s=0.0), make(2, band=1, arrived_s=5.0)
    for sequence in (lesser, behind):
        order.enter(sequence)
        line.add(sequence)
    line.age(16.0)
    assert (order.band(lesser), order.band(behind)) == (1, 0)
    assert numbers(line) == [2, 1]


@pytest.mark.rule("order.ageing")
def test_who_runs_or_has_left_does_not_age_and_who_waits_again_ages_once() -> None:
    order = TotalOrder({})
    line = WaitingLine(order, ageing_s=10.0)
    runs, gone, again = (make(number, band=2, arrived_s=0.0) for number in (1, 2, 3))
    for sequence in (runs, gone, again):
        order.enter(sequence)
        line.add(sequence)
        line.remove(sequence)
    order.leave(gone)
    line.add(again)
    line.add(other := make(4, band=2, arrived_s=9.0))
    line.age(10.0)
    assert order.band(runs) == 2
    assert order.band(again) == 1
    assert order.band(other) == 2
    line.age(35.0)
    assert order.band(again) == 0, "two times have passed"
    assert not line.age(99.0)
    assert order.band(again) == 0


def test_the_line_keeps_nothing_of_who_has_left_it() -> None:
    order = TotalOrder({})
    line = WaitingLine(order, ageing_s=1e9)
    gone = make(1, band=2)
    order.enter(gone)
    line.add(gone)
    line.remove(gone)
    order.leave(gone)
    tokens = weakref.ref(gone.tokens)
    del gone
    gc.collect()

    assert tokens() is None


def test_times_of_those_that_left_the_line_do_not_pile_up() -> None:
    order = TotalOrder({})
    line = WaitingLine(order, ageing_s=1e9)
    for number in range(1, 5001):
        sequence = make(number)
        order.enter(sequence)
        line.add(sequence)
        line.remove(sequence)
        order.leave(sequence)

    assert len(line._due) <= 1024  # pyright: ignore[reportPrivateUsage]
