"""The total order: band, tenant by virtual counter, deadline, arrival. And who waits, in it.

Owner    engine thread
Writes   tenants' counters and places, the waiting line
Never    reads a clock; looks at memory
Rules    order.total, order.quantum, order.newcomer
Next     headrace_engine.scheduler.admit
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from operator import attrgetter
from typing import Final

from headrace_engine.cache.block import Rank
from headrace_engine.state.due import DueTimes
from headrace_engine.state.sequence import Sequence

OVERTAKEN_S: Final = 60.0
"""Who has no deadline, or a later one, has to be done so long after it came, as far as its turn goes: nobody
is overtaken for longer by deadlines of others."""


_share = attrgetter("counter", "name")


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant's share of the engine."""

    name: str
    weight: float
    counter: float = 0.0
    """Tokens computed for it, divided by its weight."""
    place: int = 0
    """Its place among tenants since the last quantum."""
    sequences: int = 0
    """Sequences here that have not ended."""
    in_heap: bool = False


class TotalOrder:
    """Ranks of sequences. Places of tenants change when some arrived, before anybody looks, and
    once per quantum.

    Invariants
        every tenant with sequences stands once in ``_heap``, under a counter that it had
    """

    __slots__ = ("_bands", "_heap", "_pushed", "_tenants", "_weights", "arrived", "placings")

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._tenants: dict[str, Tenant] = {}
        self._bands: dict[int, int] = {}
        self._heap: list[tuple[float, int, Tenant]] = []
        """By counter: counters only grow, so an old entry is a lower bound."""
        self._pushed = 0
        self.arrived = False
        """Whether a tenant has no place yet."""
        self.placings = 0
        """How often places changed."""

    def rank(self, sequence: Sequence) -> Rank:
        """Place of a sequence that has entered. Smaller goes first."""
        if self.arrived:
            self.settle()
        tenant = self._tenants[sequence.request.tenant]
        deadline_s, number = _turn(sequence)
        return self.band(sequence), tenant.place, deadline_s, number

    def band(self, sequence: Sequence) -> int:
        """The sequence's band, after ageing."""
        return self._bands.get(sequence.number, sequence.request.band)

    def raise_band(self, sequence: Sequence) -> None:
        """It has waited long: one band up, for good."""
        self._bands[sequence.number] = max(0, self.band(sequence) - 1)

    def enter(self, sequence: Sequence) -> None:
        """A sequence arrives. A tenant that had none starts at the least counter in use."""
        name = sequence.request.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name, self._weights.get(name, 1.0))
        if not tenant.sequences:
            least = self._least()
            if least is not None:
                tenant.counter = max(tenant.counter, least)
            # Thousands may arrive at once: they get their places together.
            self.arrived = True
            self.watch(tenant)
        tenant.sequences += 1

    def leave(self, sequence: Sequence) -> None:
        """A sequence has ended. A tenant without any is forgotten once others have
        overtaken it, or all are gone."""
        self._bands.pop(sequence.number, None)
        tenant = self._tenants[sequence.request.tenant]
        tenant.sequences -= 1
        if tenant.sequences:
            return
        least = self._least()
        if least is None:
            self._tenants.clear()
        elif tenant.counter <= least:
            del self._tenants[tenant.name]

    def charge_many(self, tokens: Iterable[tuple[Sequence, int]]) -> None:
        """As many calls of ``charge``; a tenant's tokens are added up before they are weighed."""
        sums: dict[str, int] = {}
        for sequence, count in tokens:
            name = sequence.request.tenant
            sums[name] = sums.get(name, 0) + count
        for name, total in sums.items():
            tenant = self._tenants[name]
            tenant.counter += total / tenant.weight

    def charge(self, sequence: Sequence, tokens: int) -> None:
        """Tokens were computed for it. Places do not change before the next quantum."""
        tenant = self._tenants[sequence.request.tenant]
        tenant.counter += tokens / tenant.weight

    def settle(self) -> bool:
        """A quantum ends: tenants are placed by counter. True if any place changed."""
        self.arrived = False
        placed = sorted(self._tenants.values(), key=_share)
        changed = False
        least = self._least() or 0.0
        for place, tenant in enumerate(placed):
            changed |= tenant.place != place
            tenant.place = place
        for tenant in placed:
            if not tenant.sequences and tenant.counter <= least:
                del self._tenants[tenant.name]
        self.placings += changed
        return changed

    def place(self, tenant: str) -> int:
        """Where a tenant that has sequences stands."""
        if self.arrived:
            self.settle()
        return self._tenants[tenant].place

    def counter(self, tenant: str) -> float:
        """Virtual tokens of a tenant; 0 for one that is not known."""
        known = self._tenants.get(tenant)
        return known.counter if known is not None else 0.0

    def watch(self, tenant: Tenant) -> None:
        """The tenant has sequences from now on: its counter may be the least."""
        if not tenant.in_heap:
            tenant.in_heap = True
            self._pushed += 1
            heappush(self._heap, (tenant.counter, self._pushed, tenant))

    def _least(self) -> float | None:
        """The least counter of tenants that have sequences. What it costs, charges have paid for."""
        heap = self._heap
        while heap:
            counter, at, tenant = heap[0]
            if not tenant.sequences and tenant.counter == counter:
                heappop(heap)
                tenant.in_heap = False
            elif tenant.counter == counter:
                return counter
            else:
                heapreplace(heap, (tenant.counter, at, tenant))
        return None


class WaitingLine:
    """Waiting sequences, one sorted line per band and tenant; the order joins them.

    Looking at the first few costs nothing for the thousands behind them.

    Invariants
        ``_tenants[band]`` are those of ``_lines[band]`` by place, as of ``_placings``
    """

    __slots__ = ("_ageing_s", "_due", "_lines", "_order", "_placings", "_standing", "_tenants")

    def __init__(self, order: TotalOrder, ageing_s: float | None = None) -> None:
        """After each ``ageing_s`` a sequence moves up a band; None: it never does."""
        self._order = order
        self._ageing_s = ageing_s
        self._lines: dict[int, dict[str, list[Sequence]]] = {}
        self._tenants: dict[int, list[str]] = {}
        """By band, where somebody has looked since places changed."""
        self._placings = order.placings
        self._standing: dict[int, Sequence] = {}
        """By number."""
        self._due = DueTimes(self._standing)
        """When a sequence moves up, if it still waits then. In one line stand sequences that came in
        different bands, so that the oldest need not be the first."""

    def __len__(self) -> int:
        return len(self._standing)

    def __iter__(self) -> Iterator[Sequence]:
        """In the total order. The line may not change while it is looked at."""
        for band in sorted(self._lines):
            lines, tenants = self._lines[band], self._in_order(band)
            if tenants is None:
                tenants = self._tenants[band] = sorted(lines, key=self._order.place)
                self._placings = self._order.placings  # who arrived got a place just now
            for tenant in tenants:
                yield from lines[tenant]

    def add(self, sequence: Sequence) -> None:
        """It begins to wait; one that comes back stands before those that arrived later."""
        band, tenant = self._order.band(sequence), sequence.request.tenant
        line = self._lines.setdefault(band, {}).setdefault(tenant, [])
        if not line and (tenants := self._in_order(band)) is not None:
            insort(tenants, tenant, key=self._order.place)
        insort(line, sequence, key=_turn)
        self._standing[sequence.number] = sequence
        if self._ageing_s is not None and band:
            self._due.add(self._due_s(sequence, band), sequence.number)

    def remove(self, sequence: Sequence) -> None:
        """It runs, or has ended."""
        band, tenant = self._order.band(sequence), sequence.request.tenant
        line = self._lines[band][tenant]
        at = bisect_left(line, _turn(sequence), key=_turn)
        assert line[at] is sequence, "not in the line"
        del line[at]
        if not line:
            tenants, place = self._in_order(band), self._order.place
            if tenants is not None:
                del tenants[bisect_left(tenants, place(tenant), key=place)]
            del self._lines[band][tenant]
            if not self._lines[band]:
                del self._lines[band]
                self._tenants.pop(band, None)
        del self._standing[sequence.number]

    def age(self, now_s: float) -> bool:
        """Moves those up that have waited long enough. True if there were any."""
        moved = False
        for number in self._due.until(now_s):
            sequence = self._standing[number]
            band = self._order.band(sequence)
            # It may have moved up, and be due twice, having waited again.
            if band and self._due_s(sequence, band) <= now_s:
                self.remove(sequence)
                self._order.raise_band(sequence)
                self.add(sequence)
                moved = True
        return moved

    def _in_order(self, band: int) -> list[str] | None:
        """Tenants of a band, if their order is known; it is not once places have changed."""
        if self._order.arrived or self._placings != self._order.placings:
            self._tenants.clear()
            self._placings = self._order.placings
        return self._tenants.get(band)

    def _due_s(self, sequence: Sequence, band: int) -> float:
        """When it moves up from ``band``."""
        assert self._ageing_s is not None
        return sequence.arrived_s + self._ageing_s * (sequence.request.band - band + 1)


def _turn(sequence: Sequence) -> tuple[float, int]:
    """Among those of one tenant and band: first who has to be done first, then who came first."""
    due_s, deadline_s = sequence.arrived_s + OVERTAKEN_S, sequence.request.deadline_s
    return due_s if deadline_s is None else min(deadline_s, due_s), sequence.number
