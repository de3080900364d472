"""The engine's pass as one writes it first, over ``naive_blocks``: everything is looked for again.

Written from the contract (``services/engine/CONTRACT.md``): it sorts everybody in every pass, plans
everybody again, and undoes a failed grant by putting everything back as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace_engine.scheduler.reasons import Reason
from headrace_engine.scheduler.settings import SchedulerSettings
from support.naive_blocks import (
    NaiveBlock,
    NaiveBlocks,
    NaiveSequence,
    NaiveState,
    NaiveThing,
    Name,
)
from support.naive_states import Start, boundary, home, starts_at_a_state, stop


@dataclass(eq=False)
class NaiveChunk:
    """Known context that a pass computes."""

    sequence: NaiveSequence
    begin: int
    end: int
    store_from: int
    starts: bool
    way: Start
    stops: bool = False
    """Whether its state is kept at its end."""

    @property
    def generates(self) -> bool:
        """Whether a token follows."""
        return self.end == len(self.sequence.tokens)


@dataclass
class NaivePlan:
    """One pass."""

    decodes: list[NaiveSequence] = field(default_factory=list[NaiveSequence])
    chunks: list[NaiveChunk] = field(default_factory=list[NaiveChunk])

    def rows(self) -> list[NaiveSequence]:
        """In the batch's order."""
        return self.decodes + [c.sequence for c in self.chunks]

    def sampling(self) -> int:
        """Leading rows that sample."""
        return len(self.decodes) + sum(c.generates for c in self.chunks)


@dataclass
class NaiveRequest:
    """What was pushed: one sequence for each choice, not yet numbered."""

    handle: int
    sequences: list[NaiveSequence]


class NaiveEngine:
    """One engine. ``step`` is one pass."""

    def __init__(
        self,
        settings: SchedulerSettings,
        fails: Callable[[int, int], bool],
        choose: Callable[[], tuple[Name, int] | None],
        *,
        colliding: bool,
        recurrent: bool = False,
    ) -> None:
        """``fails`` says whether a row of a pass is not finite; ``choose`` is of ``NaiveBlocks``."""
        self.settings = settings
        self._fails = fails
        self._recurrent = recurrent
        self.blocks = NaiveBlocks(
            settings.pool_blocks,
            settings.block_tokens,
            prefix_cache=settings.prefix_cache,
            colliding=colliding,
            choose=choose,
        )
        self.door: list[NaiveRequest] = []
        self.cancels: list[tuple[int, int | None]] = []
        self.everybody = self.blocks.sequences
        """In order of arrival."""
        self.passes = 0
        self.plan = NaivePlan()
        self.reasons: dict[int, tuple[Reason, int]] = {}
        """Of those that the newest pass looked at."""
        self.behind = Reason.PRIORITY
        """Of all others that wait."""
        self.evictions = self.preemptions = self.copied = 0
        self.ended: dict[tuple[int, int], str] = {}
        self._now_s = 0.0
        self._numbers = 0
        self._flights: list[tuple[int, list[NaiveSequence], int]] = []
        self._decode_order: list[NaiveSequence] = []
        self._pause_order: list[NaiveSequence] = []
        self._end_order: list[NaiveSequence] = []
        self._counters: dict[str, float] = {}
        self._places: dict[str, int] = {}
        self._arrived = False

    # from outside

    def push(self, request: NaiveRequest) -> None:
        """It waits at the door."""
        self.door.append(request)

    def cancel(self, handle: int, choice: int | None) -> None:
        """At the door at once, inside with the next pass."""
        for request in self.door:
            if request.handle != handle:
                continue
            if choice is None:
                self.door.remove(request)
            else:
                self.cancels.append((handle, choice))
            return
        self.cancels.append((handle, choice))

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.door or self.everybody or self._flights)

    def step(self, now_s: float) -> None:
        """Pop, accept, cancel, expire, retire, schedule, fail the stalled head, hand over, take, update,
        retire. Nothing of it takes time."""
        self._now_s = now_s
        self._pop()
        self._expire()
        self._retire()
        self.plan = self._schedule()
        self._fail_stalled_head()
        handed = bool(self.plan.rows())
        if handed:
            self._flights.append((self.passes, self.plan.rows(), self.plan.sampling()))
        if self._flights and not (handed and len(self._flights) < self.settings.phases):
            self._update(*self._flights.pop(0))
        self._retire()

    # who is here

    def waiting(self) -> list[NaiveSequence]:
        """In the total order."""
        return sorted((s for s in self.everybody if s.status == "waiting"), key=self.rank)

    def rank(self, sequence: NaiveSequence) -> tuple[int, int, float, int]:
        """Its place."""
        # The contract's minute and not our constant: else both could be wrong.
        due_s = sequence.arrived_s + 60.0
        if sequence.deadline_s is not None:
            due_s = min(due_s, sequence.deadline_s)
        return sequence.band, self._places[sequence.tenant], due_s, sequence.number

    @property
    def free_slots(self) -> int:
        """Rows that nobody has."""
        return self.settings.max_batch - sum(s.has_slot for s in self.everybody)

    def _present(self) -> dict[str, float]:
        return {s.tenant: self._counters[s.tenant] for s in self.everybody}

    # entry and end

    def _pop(self) -> None:
        budget = self.settings.max_batch + self.settings.max_waiting - len(self.everybody)
        coming, self.door = self.door[: max(0, budget)], self.door[max(0, budget) :]
        for request in coming:
            for sequence in request.sequences:
                self._enter(sequence)
        waiting_outside = {r.handle for r in self.door}
        cancels = [c for c in self.cancels if c[0] not in waiting_outside]
        self.cancels = [c for c in self.cancels if c[0] in waiting_outside]
        for handle, choice in cancels:
            for sequence in list(self.everybody):
                if (
                    sequence.handle == handle
                    and choice in (None, sequence.choice)
                    and sequence.status != "ended"
                ):
                    self._end(sequence, "cancelled")

    def _expire(self) -> None:
        late = [
            (s.deadline_s, s.number, s)
            for s in self.everybody
            if s.deadline_s is not None and s.deadline_s <= self._now_s and s.status != "ended"
        ]
        for _, _, sequence in sorted(late, key=lambda each: each[:2]):
            self._end(sequence, "deadline")

    def _enter(self, sequence: NaiveSequence) -> None:
        self._numbers += 1
        sequence.number = self._numbers
        present = self._present()
        if sequence.tenant not in present:
            own = self._counters.get(sequence.tenant, 0.0)
            self._counters[sequence.tenant] = max(
                [own, *([min(present.values())] if present else [])]
            )
            self._arrived = True
        self.everybody.append(sequence)
        delivered = len(sequence.tokens) - sequence.prompt
        if delivered and sequence.tokens[-1] in sequence.stops and delivered > sequence.min_new:
            self._end(sequence, "stop")
        elif delivered and len(sequence.tokens) >= sequence.limit:
            self._end(sequence, "length")

    def _end(self, sequence: NaiveSequence, why: str) -> None:
        assert sequence.status != "ended"
        self.ended[sequence.handle, sequence.choice] = why
        self._leave_batch(sequence)
        if sequence in self._pause_order:
            self._pause_order.remove(sequence)
        sequence.status = "ended"
        sequence.live = False
        self._end_order.append(sequence)

    def _leave_batch(self, sequence: NaiveSequence) -> None:
        sequence.decodes = False
        if sequence in self._decode_order:
            self._decode_order.remove(sequence)

    def _retire(self) -> None:
        for sequence in [s for s in self._pause_order if not s.inflight]:
            self._pause_order.remove(sequence)
            sequence.filled = sequence.planned
            if sequence.frontier is not None:
                sequence.frontier.position = sequence.planned
                sequence.frontier.valid = sequence.trusted is None and sequence.frontier.memory
            if sequence.trusted is not None:
                sequence.filled = min(sequence.filled, sequence.trusted)
            sequence.trusted = None
            self._free_row(sequence)
            sequence.status = "waiting"
        for sequence in [s for s in self._end_order if not s.inflight]:
            self._end_order.remove(sequence)
            stands = self._stands_at(sequence)
            written = sequence.planned if sequence.has_slot else sequence.filled
            if sequence.has_slot:
                self._free_row(sequence)
            if sequence.trusted is not None:
                written = min(written, sequence.trusted)
            if self.settings.prefix_cache:
                written = self._may_stay(sequence, written)
                self.blocks.publish(sequence, written)
                generated = self.settings.cache_generation == "all"
                self.blocks.keep_tail(sequence, written, generated=generated)
                if generated or stands <= sequence.prompt:
                    self._leave_state(sequence, stands)
            self.blocks.leave(sequence)
            present = self._present()
            if not present:
                self._counters.clear()
            elif sequence.tenant not in present:
                self._forget(sequence.tenant, min(present.values()))

    def _stands_at(self, sequence: NaiveSequence) -> int:
        """Where the live state of one that leaves stands; 0: nowhere that is known."""
        if sequence.has_slot:
            return sequence.planned if sequence.trusted is None else 0
        frontier = sequence.frontier
        return frontier.position if frontier is not None and frontier.valid else 0

    def _leave_state(self, sequence: NaiveSequence, position: int) -> None:
        """Its live state stays with the block in which it stands."""
        state = sequence.frontier
        if state is None or not state.memory or position > len(sequence.tokens):
            return
        block = home(self.blocks, self.settings, sequence, position) if sequence.blocks else None
        size = self.settings.block_tokens
        if block is None or not sequence.chain_open:
            return
        if self.blocks.extent(block) >= position - block.index * size:
            state.position, state.publisher = position, sequence.number
            state.origins = frozenset(sequence.origins)
            self.blocks.keep_state(state, block)

    def _may_stay(self, sequence: NaiveSequence, written: int) -> int:
        none = self.settings.cache_generation == "none"
        return min(written, sequence.prompt) if none else written

    def _forget(self, tenant: str, least: float) -> None:
        if self._counters[tenant] <= least:
            del self._counters[tenant]

    def _free_row(self, sequence: NaiveSequence) -> None:
        self._charge(sequence, sequence.planned - sequence.charged)
        sequence.has_slot = False

    def _charge(self, sequence: NaiveSequence, tokens: int) -> None:
        weight = self.settings.tenant_weights.get(sequence.tenant, 1.0)
        self._counters[sequence.tenant] += tokens / weight
        sequence.charged += tokens

    # the pass

    def _schedule(self) -> NaivePlan:
        self.passes += 1
        self._settle()
        self.reasons = {s.number: (Reason.IN_FLIGHT, 0) for s in self._pause_order}
        self.behind = Reason.PRIORITY
        if self.free_slots:
            self._admit()
        self._losers: list[NaiveSequence] = []
        self._producers: list[tuple[NaiveBlock, NaiveSequence]] = []
        self._kept: list[NaiveThing] = []
        rows = [s for s in self._decode_order if s.sampled < s.limit]
        crossers = self._grant_decodes(rows)
        chunks = self._grant_chunks(len(rows))
        self.blocks.sweep()
        return self._commit(rows, crossers, chunks)

    def _admit(self) -> None:
        """Blocks for the first that wait; no more new names than a pass has blocks to compute."""
        settings = self.settings
        self.blocks.sweep()
        enough = len(self.blocks.indexed) + settings.batch_tokens // settings.block_tokens
        for sequence in self.waiting()[: settings.plan_window]:
            if not sequence.blocks:
                if len(self.blocks.indexed) >= enough:
                    return
                if self._recurrent and sequence.frontier is None:
                    sequence.frontier = NaiveState(0, [sequence])
                self.blocks.admit(sequence, offers_all=settings.cache_prompt == "all")
            self.blocks.cover(sequence)

    def _settle(self) -> None:
        quantum = self.passes % self.settings.quantum_passes == 0
        if quantum:
            for sequence in self._decode_order:
                self._charge(sequence, sequence.planned - sequence.charged)
        if quantum or self._arrived:
            self._arrived = False
            order = sorted(self._counters, key=lambda t: (self._counters[t], t))
            self._places = {tenant: place for place, tenant in enumerate(order)}
            present = self._present()
            for tenant in order:
                if tenant not in present:
                    self._forget(tenant, min(present.values(), default=0.0))
        if quantum and self.settings.ageing_s is not None:
            for sequence in self.everybody:
                while sequence.status == "waiting" and sequence.band:
                    steps = sequence.asked_band - sequence.band + 1
                    if self._now_s < sequence.arrived_s + steps * self.settings.ageing_s:
                        break
                    sequence.band -= 1

    # memory

    def _grant_decodes(self, rows: list[NaiveSequence]) -> list[NaiveSequence]:
        """A block for each that stands at the end of its own. Returns who got one."""
        size = self.settings.block_tokens
        crossers = [s for s in rows if s.planned >= size * sum(b.memory for b in s.blocks)]
        if self.blocks.free + len(self.blocks.cached()) < len(crossers):
            crossers.sort(key=self.rank)
        got: list[NaiveSequence] = []
        for sequence in crossers:
            if sequence in self._losers:
                continue
            last = sequence.blocks[-1]
            block = self.blocks.extend(sequence) if last.memory else last
            if self._take(sequence, block):
                got.append(sequence)
            else:
                self._losers.append(sequence)
        return got

    def _take(self, taker: NaiveSequence, thing: NaiveThing) -> bool:
        """Memory: free, else of the oldest that nobody holds, else from the last in the order."""
        while not self.blocks.free:
            unheld = [b for b in self.blocks.cached() if b not in self._kept]
            victim = unheld[0] if unheld else self._tail_of_the_last(taker)
            if victim is None:
                return False
            self.evictions += self.blocks.take_memory(victim)
            self._losers += [h for h in victim.holders if h not in self._losers]
        thing.memory = True
        return True

    def _tail_of_the_last(self, taker: NaiveSequence) -> NaiveThing | None:
        for victim in sorted(self._eligible(), key=self.rank, reverse=True):
            if not self._may_take(taker, victim):
                continue
            if victim.frontier is not None and victim.frontier.memory:
                return victim.frontier
            for block in reversed(victim.blocks):
                if not block.memory or block in self._kept:
                    continue
                if all(self._may_take(taker, h) for h in block.holders):
                    return block
        return None

    def _eligible(self) -> list[NaiveSequence]:
        return [s for s in self.everybody if s.status != "ended"]

    def _may_take(self, taker: NaiveSequence, victim: NaiveSequence) -> bool:
        if victim.status == "ended" or self.rank(taker) >= self.rank(victim):
            return False
        if taker.running or not victim.running or victim in self._losers:
            return True
        came_first = taker.tenant == victim.tenant and taker.number < victim.number
        return taker.band < victim.band or came_first

    def _take_all(self, taker: NaiveSequence, sources: list[NaiveThing]) -> bool:
        """Memory for everything it knows, while ``sources`` keep their own; or all stays as it was."""
        needed = -(-len(taker.tokens) // self.settings.block_tokens)
        before = [(thing, replace(thing)) for thing in self.blocks.things()]
        losers, evictions, kept = list(self._losers), self.evictions, list(self._kept)
        self._kept += sources
        fronts = [] if taker.frontier is None else [taker.frontier]
        wanted: list[NaiveThing] = [*fronts, *taker.blocks[:needed]]
        for thing in [each for each in wanted if not each.memory]:
            if not self._take(taker, thing):
                for b, was in before:
                    b.memory, b.valid, b.written = was.memory, was.valid, was.written
                    b.publisher, b.origins = was.publisher, was.origins
                self._losers, self.evictions, self._kept = losers, evictions, kept
                return False
        return True

    # chunks

    def _grant_chunks(self, decoding: int) -> list[NaiveChunk]:
        settings = self.settings
        budget = settings.batch_tokens - decoding
        if decoding:
            budget = min(budget, settings.prefill_chunk_tokens)
        whole = budget
        running = [s for s in self.everybody if s.running and not s.decodes]
        waiting = self.waiting()
        others = len(running) + min(self.free_slots, len(waiting))
        chunks: list[NaiveChunk] = []
        for sequence in sorted(running, key=self.rank):
            if sequence in self._losers:
                continue
            resume, store_from = self._resume(sequence, sequence.planned)
            way = Start(sequence.planned)
            if not self._recurrent:  # where a state is needed, others' blocks do not advance it
                other = self._ways(sequence, resume)[0]
                way = other if other.begin > way.begin else way
            begin = way.begin
            end, stops = self._chunk_end(sequence, begin, self._share(budget, whole, others))
            others -= 1
            if end > begin and self._producer(sequence, begin, end) is None:
                self._kept += way.sources
                self._produce(sequence, begin, end)
                chunks.append(NaiveChunk(sequence, begin, end, store_from, False, way, stops))
                budget -= end - begin
        budget = self._grant_waiting(waiting, chunks, budget, whole, others)
        for chunk in chunks:
            losing = chunk.sequence in self._losers
            if budget < 1 or chunk.generates or chunk.stops or losing:
                continue
            end = self._farthest(chunk.sequence, chunk.end, budget)
            if end > chunk.end and self._producer(chunk.sequence, chunk.end, end) is None:
                if self._recurrent:
                    end, chunk.stops = stop(
                        self.blocks, self.settings, chunk.sequence, chunk.begin, end
                    )
                self._produce(chunk.sequence, chunk.end, end)
                budget -= end - chunk.end
                chunk.end = end
        return chunks

    def _grant_waiting(
        self,
        waiting: list[NaiveSequence],
        chunks: list[NaiveChunk],
        budget: int,
        whole: int,
        others: int,
    ) -> int:
        rows = self.free_slots
        coming = len(self._pause_order) + sum(s.has_slot for s in self._end_order)
        for sequence in waiting[: self.settings.plan_window]:
            number = sequence.number
            if not rows:
                self.reasons[number] = (Reason.BATCH_ROWS, 0)
                bands = [s.band for s in self.everybody if s.running]
                if max(bands, default=0) <= sequence.band:
                    break
                if coming:
                    coming -= 1
                    continue
                lesser = [
                    s
                    for s in self.everybody
                    if s.running and s not in self._losers and s.band > sequence.band
                ]
                if not lesser:
                    break
                self._losers.append(max(lesser, key=self.rank))
                continue
            if not sequence.blocks:
                self.reasons[number] = (Reason.TOKEN_BUDGET, 0)
                break
            resume, store_from = self._resume(sequence, sequence.filled)
            ways = self._ways(sequence, resume)
            way = ways[0]
            begin = way.begin
            share = self._share(budget, whole, others)
            end, stops = self._chunk_end(sequence, begin, share)
            if end <= begin:
                self.reasons[number] = (Reason.TOKEN_BUDGET, 0)
                break
            others -= 1
            producer = self._producer(sequence, begin, end) or self._worth_waiting(
                sequence, resume, begin, end
            )
            if producer is not None:
                self.reasons[number] = (Reason.PRODUCER, producer.number)
                continue
            if not self._take_all(sequence, way.sources):
                # Without the copy, then: what it is copied from may be all that is left.
                way = ways[-1]
                begin = way.begin
                end, stops = self._chunk_end(sequence, begin, share)
                free = end > begin and self._producer(sequence, begin, end) is None
                if len(ways) == 1 or not free or not self._take_all(sequence, []):
                    self.reasons[number] = (Reason.BLOCKS, 0)
                    break
            self._produce(sequence, begin, end)
            chunks.append(NaiveChunk(sequence, begin, end, store_from, True, way, stops))
            budget -= end - begin
            rows -= 1
        if budget < 1:
            self.behind = Reason.TOKEN_BUDGET
        if not rows:
            self.behind = Reason.BATCH_ROWS
        return budget

    def _ways(self, sequence: NaiveSequence, resume: int) -> list[Start]:
        """Where it can begin, and what is copied before: the best first."""
        found = self.blocks.usable(sequence, resume)
        sibling = None
        if found is not None:
            sibling = (found[0], min(resume + found[1], len(sequence.tokens) - 1))
        if self._recurrent:
            return starts_at_a_state(sequence, resume, sibling)
        if sibling is not None and sibling[1] > resume:
            return [Start(sibling[1], sibling[0]), Start(resume)]
        return [Start(resume)]

    def _worth_waiting(
        self, sequence: NaiveSequence, resume: int, begin: int, end: int
    ) -> NaiveSequence | None:
        """Who computes its sibling just now, where that is most of what it would compute itself."""
        size = self.settings.block_tokens
        if sequence.sibling is None or sequence.sibling[0].index * size != resume:
            return None
        gain = min(resume + sequence.sibling[1], len(sequence.tokens) - 1) - begin
        if 2 * gain <= max(end - begin, size):
            return None
        return next((by for block, by in self._producers if block is sequence.sibling[0]), None)

    def _share(self, budget: int, whole: int, others: int) -> int:
        """Half, while somebody else wants some; but a block or a quarter of all, where there is so much."""
        if others <= 1:
            return budget
        return max(budget // 2, min(budget, max(self.settings.block_tokens, whole // 4)))

    def _chunk_end(self, sequence: NaiveSequence, begin: int, budget: int) -> tuple[int, bool]:
        """Where it ends, and whether its state is kept there."""
        end = self._farthest(sequence, begin, budget)
        if self._recurrent and end > begin:
            return stop(self.blocks, self.settings, sequence, begin, end)
        return end, False

    def _farthest(self, sequence: NaiveSequence, begin: int, budget: int) -> int:
        """At the end of the context, or at a block's."""
        context, size = len(sequence.tokens), self.settings.block_tokens
        ends = [e for e in range(begin + 1, begin + budget + 1) if e == context or e % size == 0]
        return max((e for e in ends if e <= context), default=begin)

    def _resume(self, sequence: NaiveSequence, written: int) -> tuple[int, int]:
        """Where to begin, and below which position nothing may be written."""
        size = self.settings.block_tokens
        at = store_from = 0
        for block in sequence.blocks:
            if not block.valid or not block.memory:
                break
            extent = size if block.path is not None else max(0, min(size, written - at))
            at += extent
            if extent < size:
                break
            if block.path is not None:
                store_from = at
        return min(at, len(sequence.tokens) - 1), store_from

    def _range(self, sequence: NaiveSequence, begin: int, end: int) -> list[NaiveBlock]:
        size = self.settings.block_tokens
        return [b for b in sequence.blocks if b.index * size < end and (b.index + 1) * size > begin]

    def _producer(self, sequence: NaiveSequence, begin: int, end: int) -> NaiveSequence | None:
        for block in self._range(sequence, begin, end):
            for marked, by in self._producers:
                if marked is block and by is not sequence:
                    return by
        return None

    def _produce(self, sequence: NaiveSequence, begin: int, end: int) -> None:
        self._producers += [
            (b, sequence)
            for b in self._range(sequence, begin, end)
            if b.offer is not None or (b.path is not None and not b.valid)
        ]

    # commit and update

    def _commit(
        self, rows: list[NaiveSequence], crossers: list[NaiveSequence], chunks: list[NaiveChunk]
    ) -> NaivePlan:
        for sequence in self._losers:
            if sequence.running:
                self._pause(sequence, None)
        rows = [s for s in rows if s not in self._losers]
        chunks = [c for c in chunks if c.sequence not in self._losers]
        for chunk in chunks:
            if chunk.way.state is not None:
                self.blocks.copy(chunk.sequence, chunk.way.state)
            if chunk.way.sibling is not None:
                self.blocks.copy(chunk.sequence, chunk.way.sibling)
                self.copied += chunk.begin - chunk.way.sibling.index * self.settings.block_tokens
        for sequence in crossers:
            if sequence not in self._losers:
                sequence.blocks[-1].valid = True
                sequence.blocks[-1].publisher = sequence.number
                if sequence.origins:
                    sequence.blocks[-1].origins = frozenset(sequence.origins)
                self.blocks.publish(sequence, self._may_stay(sequence, sequence.planned))
        for sequence in rows:
            sequence.planned += 1
            sequence.sampled += 1
            sequence.inflight += 1
        for chunk in chunks:
            self._commit_chunk(chunk)
        plan = NaivePlan(rows, sorted(chunks, key=lambda c: not c.generates))
        if self._recurrent:
            self._keep_states(plan, crossers)
        return plan

    def _keep_states(self, plan: NaivePlan, crossers: list[NaiveSequence]) -> None:
        """Copies of states, as far as there is memory that is free or that nobody holds."""
        wanted: list[tuple[NaiveSequence, int]] = []
        for chunk in plan.chunks:
            if chunk.stops:
                wanted.append((chunk.sequence, chunk.end))
            if chunk.begin and chunk.begin == boundary(self.settings, chunk.sequence):
                wanted.append((chunk.sequence, chunk.begin))
        for sequence in crossers:
            at = sequence.blocks[-1].index * self.settings.block_tokens
            due = sequence.checkpointed + self.settings.cache_checkpoint_interval
            if sequence.running and at >= due:
                wanted.append((sequence, at))
        kept: list[tuple[NaiveSequence, NaiveBlock, NaiveState]] = []
        for sequence, at in wanted:
            block = home(self.blocks, self.settings, sequence, at)
            if block is None or any(b is block and s.position == at for _, b, s in kept):
                continue
            room = self.blocks.free - len(kept)
            cached = self.blocks.cached()
            written = self.blocks.extent(block) >= at - block.index * self.settings.block_tokens
            if not written or room + len(cached) < 1:
                continue
            if room < 1:
                self.evictions += self.blocks.take_memory(cached[0])
            kept.append((sequence, block, NaiveState(at, [])))
        self.blocks.sweep()
        for sequence, block, state in kept:
            state.memory, state.publisher = True, sequence.number
            state.origins = frozenset(sequence.origins)
            self.blocks.keep_state(state, block)
            sequence.checkpointed = state.position

    def _commit_chunk(self, chunk: NaiveChunk) -> None:
        sequence = chunk.sequence
        if chunk.starts:
            self.reasons.pop(sequence.number, None)
            sequence.status, sequence.has_slot, sequence.live = "running", True, True
            sequence.sampled = len(sequence.tokens)
            if self._recurrent and (chunk.way.state is not None or not chunk.begin):
                sequence.checkpointed = chunk.begin
        self._charge(sequence, chunk.end - chunk.begin)
        sequence.planned = sequence.charged = chunk.end
        sequence.inflight += 1
        for block in self._range(sequence, chunk.begin, chunk.end):
            if block.offer is not None:
                offered = len(block.offer[2])
                reached = min(offered, chunk.end) - block.index * self.settings.block_tokens
                block.written = max(block.written, reached)
            if sequence.origins and not (block.path is not None and block.valid):
                block.origins = frozenset(sequence.origins)
            full = (block.index + 1) * self.settings.block_tokens <= chunk.end
            if not block.valid and (full or block.path is None):
                block.valid = True
                block.publisher = sequence.number
        if chunk.generates:
            sequence.sampled += 1
            sequence.decodes = True
            self._decode_order.append(sequence)

    def _pause(self, sequence: NaiveSequence, trusted: int | None) -> None:
        self.preemptions += 1
        self._leave_batch(sequence)
        sequence.status = "paused"
        self._pause_order.append(sequence)
        self.reasons[sequence.number] = (Reason.IN_FLIGHT, 0)
        if trusted is not None:
            self._distrust(sequence, trusted)

    def _distrust(self, sequence: NaiveSequence, trusted: int) -> None:
        if sequence.status == "waiting":
            sequence.filled = min(sequence.filled, trusted)
            if sequence.frontier is not None:
                sequence.frontier.valid = False
            return
        if sequence.trusted is None or trusted < sequence.trusted:
            sequence.trusted = trusted
        sequence.live = False

    def _fail_stalled_head(self) -> None:
        waiting = self.waiting()
        stuck = not self.plan.rows() and not self._pause_order and not self._end_order
        if stuck and waiting and not any(s.inflight for s in self.everybody):
            head = waiting[0]
            self._end(head, "length" if len(head.tokens) > head.prompt else "out_of_memory")

    def _update(self, pass_id: int, rows: list[NaiveSequence], sampling: int) -> None:
        for sequence in rows:
            sequence.inflight -= 1
        sampled = rows[:sampling]
        failed = [s for i, s in enumerate(sampled) if self._fails(pass_id, i)]
        lives = [s for s in failed if s.live]
        ended = [s for s in failed if s.status == "ended"]
        for sequence in lives:
            self._end(sequence, "numeric")
            self._poison(sequence)
        for sequence in ended:
            self._poison(sequence)
        for sequence in [s for s in sampled if s.live]:
            index = len(sequence.tokens) - sequence.prompt
            token = sequence.future.pop(0)
            sequence.tokens.append(token)
            if token in sequence.stops and index >= sequence.min_new:
                self._end(sequence, "stop")
            elif len(sequence.tokens) >= sequence.limit:
                self._end(sequence, "length")

    def _poison(self, sequence: NaiveSequence) -> None:
        sequence.chain_open = False
        size = self.settings.block_tokens
        bad = self.blocks.poisoned_by(sequence)
        for other in self.everybody:
            lost = [b.index * size for b in other.blocks if b in bad]
            if sequence.number in other.origins:
                lost.append(other.origins[sequence.number])
            if not lost or other is sequence:
                continue
            if other.running:
                self._pause(other, min(lost))
            elif other.status == "ended":
                other.chain_open = False
            else:
                self._distrust(other, min(lost))
        for block in bad:
            self.blocks.invalidate(block)
        self.blocks.sweep()
