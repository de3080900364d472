"""Simulator: a trace through the shipped scheduler, batches taking what a cost model says.

Owner    any one thread
Writes   a scheduler of its own
Never    reads a clock; decides anything that the scheduler decides
Rules    simulate.conserves, simulate.deterministic
Next     headrace_engine.scheduler.simulate.summary
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np
from headrace_contracts.codes import FinishReason
from headrace_kit.affinity import Affinity
from numpy.typing import NDArray

from headrace_engine.scheduler.commit import PassPlan
from headrace_engine.scheduler.drive import Flight, flight_of, flush, give_tokens, land
from headrace_engine.scheduler.journal import Arrival
from headrace_engine.scheduler.journal_replay import step_of
from headrace_engine.scheduler.journal_state import make_sequence
from headrace_engine.scheduler.residents import Counters
from headrace_engine.scheduler.scheduler import Scheduler
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.scheduler.simulate.cost import CostModel
from headrace_engine.scheduler.simulate.trace import Item
from headrace_engine.state.sequence import Sequence, Status


@dataclass(slots=True)
class Outcome:
    """What became of one item."""

    item: Item
    tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float | None = None
    end: str = ""
    """length, cancelled, refused (can never fit), or out_of_memory."""
    preemptions: int = 0


@dataclass(slots=True)
class Simulation:
    """Everything that was measured."""

    outcomes: list[Outcome]
    counters: Counters = field(default_factory=Counters)
    passes: int = 0
    duration_s: float = 0.0
    busy_s: float = 0.0
    """Time the device had a batch."""
    gaps_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Between two tokens of one sequence."""
    served: dict[str, float] = field(default_factory=dict[str, float])
    """Tokens computed per tenant, by its weight, while two tenants or more had to wait."""
    load: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])
    """(time, running, waiting) after each pass that handed something over."""


def simulate(items: Many[Item], settings: SchedulerSettings, cost: CostModel) -> Simulation:
    """Runs the trace to its end. The same for the same arguments."""
    return _Run(items, settings, cost).run()


class _Run:
    def __init__(self, items: Many[Item], settings: SchedulerSettings, cost: CostModel) -> None:
        affinity = Affinity("simulation")
        affinity.bind()
        self._settings = settings
        self._cost = cost
        self._scheduler = Scheduler(
            settings, block_bytes=64, weights_version="", kv_dtype="", affinity=affinity
        )
        self._residents = self._scheduler.residents
        self._outcomes = [Outcome(item) for item in items]
        self._arriving = deque(range(1, len(items) + 1))
        """Numbers of sequences, in order of arrival: the place in the trace, from 1."""
        self._cancels = deque(
            sorted(
                (o.item.cancel_s, n)
                for n, o in enumerate(self._outcomes, 1)
                if o.item.cancel_s is not None
            )
        )
        self._flights: deque[tuple[Flight, float]] = deque()
        self._last_s = np.zeros(settings.max_batch)
        """When the sequence in each slot got its newest token; NaN: it had none."""
        self._backlog: dict[str, int] = {}
        self._gaps: list[NDArray[np.float64]] = []
        self._result = Simulation(self._outcomes, self._residents.counters)
        self._now_s = self._device_free_s = 0.0

    def run(self) -> Simulation:
        while self._arriving or self._residents.sequences or self._flights:
            if not self._residents.sequences and not self._flights:
                next_s = self._outcomes[self._arriving[0] - 1].item.arrival_s
                self._now_s = max(self._now_s, next_s)
            self._pass()
        result = self._result
        result.passes = self._scheduler.passes
        result.duration_s = self._now_s
        result.gaps_s = np.concatenate(self._gaps) if self._gaps else np.zeros(0)
        return result

    def _pass(self) -> None:
        self._admit()
        self._cancel()
        self._scheduler.retire(self._now_s)
        plan = self._scheduler.schedule(self._now_s)
        head = self._scheduler.stalled_head(plan)
        if head is not None:
            self._end(head, FinishReason.ERROR, "out_of_memory")
        if not plan.empty:
            self._hand_over(plan)
        if self._flights and (len(self._flights) >= self._settings.phases or plan.empty):
            self._take()
        self._scheduler.retire(self._now_s)

    def _admit(self) -> None:
        """As the door: no more inside than slots and waiting places."""
        room = self._settings.max_batch + self._settings.max_waiting
        while self._arriving and len(self._residents.sequences) < room:
            number = self._arriving[0]
            outcome = self._outcomes[number - 1]
            item = outcome.item
            if item.arrival_s > self._now_s:
                return
            self._arriving.popleft()
            if item.cancel_s is not None and item.cancel_s <= self._now_s:
                outcome.end, outcome.ended_s = "cancelled", item.cancel_s
                continue
            longest = min(self._settings.session_tokens, self._settings.pool_tokens)
            if item.prompt_tokens + 1 > longest:
                outcome.end, outcome.ended_s = "refused", self._now_s
                continue
            self._accept(number, item, longest)

    def _accept(self, number: int, item: Item, longest: int) -> None:
        arrival = Arrival(
            number=number,
            choice=0,
            id=str(number),
            tenant=item.tenant,
            band=item.band,
            salt="",
            length=item.prompt_tokens,
            prompt_tokens=item.prompt_tokens,
            limit=min(item.prompt_tokens + item.output_tokens, longest),
            arrived_s=item.arrival_s,
            deadline_s=None,
        )
        self._scheduler.accept(make_sequence(arrival, item.content), self._now_s)
        self._backlog[item.tenant] = self._backlog.get(item.tenant, 0) + 1

    def _cancel(self) -> None:
        while self._cancels and self._cancels[0][0] <= self._now_s:
            sequence = self._residents.sequences.get(self._cancels.popleft()[1])
            if sequence is not None and sequence.status is not Status.ENDED:
                self._end(sequence, FinishReason.CANCELLED, "cancelled")

    def _hand_over(self, plan: PassPlan) -> None:
        for chunk in plan.chunks:
            slot = chunk.sequence.slot
            assert slot is not None
            if chunk.starts:
                last_s = self._outcomes[chunk.sequence.number - 1].last_token_s
                self._last_s[slot] = np.nan if last_s is None else last_s
            if chunk.first:
                self._backlog[chunk.sequence.request.tenant] -= 1
        self._count_service(plan)
        seconds = self._cost.seconds(step_of(plan, self._residents))
        began_s = max(self._now_s, self._device_free_s)
        self._device_free_s = began_s + seconds
        self._result.busy_s += seconds
        self._flights.append((flight_of(plan), self._device_free_s))
        running = len(plan.decode.slots) + len(plan.chunks)
        self._result.load.append((self._now_s, running, len(self._residents.waiting)))

    def _count_service(self, plan: PassPlan) -> None:
        waiting = [tenant for tenant, count in self._backlog.items() if count]
        if len(waiting) < 2:
            return
        tokens = dict.fromkeys(waiting, 0)
        for sequence in self._residents.at(plan.decode.slots):
            tenant = sequence.request.tenant
            if tenant in tokens:
                tokens[tenant] += 1
        for chunk in plan.chunks:
            tenant = chunk.sequence.request.tenant
            if tenant in tokens:
                tokens[tenant] += chunk.end - chunk.begin
        for tenant, count in tokens.items():
            weight = self._settings.tenant_weights.get(tenant, 1.0)
            self._result.served[tenant] = self._result.served.get(tenant, 0.0) + count / weight

    def _take(self) -> None:
        flight, ready_s = self._flights.popleft()
        self._now_s = max(self._now_s, ready_s)
        self._scheduler.completed(self._now_s)
        land(flight, self._residents)
        slots = give_tokens(flight, self._residents, self._content)
        gaps = self._now_s - self._last_s[slots]
        self._gaps.append(gaps[~np.isnan(gaps)])
        self._last_s[slots] = self._now_s
        columns = self._residents.columns
        for sequence in self._residents.at(slots):
            outcome = self._outcomes[sequence.number - 1]
            outcome.tokens += 1
            outcome.last_token_s = self._now_s
            if outcome.first_token_s is None:
                outcome.first_token_s = self._now_s
        for sequence in self._residents.at(slots[columns.known[slots] >= columns.limit[slots]]):
            self._end(sequence, FinishReason.LENGTH, "length")

    def _end(self, sequence: Sequence, reason: FinishReason, name: str) -> None:
        flush(sequence, self._residents)
        sequence.end_reason = reason
        if sequence.first_pass_s is None:
            self._backlog[sequence.request.tenant] -= 1
        outcome = self._outcomes[sequence.number - 1]
        outcome.end, outcome.ended_s = name, self._now_s
        outcome.preemptions = sequence.preemptions
        self._scheduler.end(sequence, self._now_s)

    def _content(self, number: int) -> NDArray[np.int32]:
        return self._outcomes[number - 1].item.content
