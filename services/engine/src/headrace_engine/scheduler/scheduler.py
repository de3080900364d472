"""The scheduler: one pass decides one batch. Plan, grant, replay, commit.

Owner    engine thread
Writes   through grant, replay and commit only
Never    reads a clock, randomness or a device: time is an argument
Rules    sched.one-commit, sched.decode-first, sched.no-overtaking, sched.stalled-head
Next     headrace_engine.scheduler.admit
"""

from __future__ import annotations

from functools import partial
from itertools import islice

from headrace_contracts.prefix_key import fold
from headrace_kit.affinity import Affinity

from headrace_engine.cache.block import LogicalBlock, SequenceBlocks
from headrace_engine.cache.cache_pool import CacheBlockPool
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.cache.registry import CacheRegistry, piece_bytes, state_blocks
from headrace_engine.cache.trie import Fold, PrefixTrie
from headrace_engine.memory.objects import ObjectAllocator, align_up
from headrace_engine.scheduler.admit import admit_prompt, create_missing_blocks
from headrace_engine.scheduler.checkpoint import plan_publication, publish_states
from headrace_engine.scheduler.commit import Chunk, PassPlan, commit_results
from headrace_engine.scheduler.grant import Grants
from headrace_engine.scheduler.journal import Journal, Origin
from headrace_engine.scheduler.journal_snapshot import Taking
from headrace_engine.scheduler.pace import Pace
from headrace_engine.scheduler.plan import (
    Decodes,
    ResumePlan,
    Way,
    plan_continue,
    plan_further,
    plan_resume,
    resume_ways,
)
from headrace_engine.scheduler.policy import (
    chunk_end,
    may_take_row,
    prefill_budget,
    prefill_share,
    worth_waiting,
)
from headrace_engine.scheduler.publish import invalidate_published
from headrace_engine.scheduler.reasons import Reason
from headrace_engine.scheduler.replay import replay_memory
from headrace_engine.scheduler.residents import Residents
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.metrics import CacheStats
from headrace_engine.state.sequence import Sequence, Status

BLOCK_ALIGN = 64
"""Bytes. A block's size is rounded up to it."""


class Scheduler:
    """Owns sequences, blocks, trie and allocator of one engine."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        block_bytes: int,
        weights_version: str,
        kv_dtype: str,
        state_parts: tuple[int, ...] = (),
        affinity: Affinity,
        fold: Fold = fold,
        journal: Journal | None = None,
    ) -> None:
        """``block_bytes`` are those of one block across all layers, ``state_parts`` those of each
        part of a recurrent state. Raises ``ValueError`` where the settings reckon with another state.
        """
        size = align_up(block_bytes, BLOCK_ALIGN)
        self.settings = settings
        self._affinity = affinity
        self.objects = ObjectAllocator(region_bytes=settings.pool_blocks * size, page_bytes=size)
        registry = CacheRegistry(BLOCK_ALIGN)
        registry.add_prefix(size)
        for part in state_parts:
            registry.add_checkpoint_parts(piece_bytes(part, size, BLOCK_ALIGN), 1)
        layout = registry.close(self.objects)
        self.pool = LogicalBlockPool(
            CacheBlockPool(self.objects),
            PrefixTrie(fold),
            layout.prefix,
            settings.block_tokens,
            layout.checkpoint,
        )
        if state_blocks(state_parts, size) != settings.state_blocks:
            raise ValueError(
                f"state_blocks is {settings.state_blocks}; a recurrent state of parts of "
                f"{state_parts} bytes takes {state_blocks(state_parts, size)}"
            )
        self.residents = Residents(settings, self.pool, (weights_version, kv_dtype))
        self.passes = 0
        self.pace: Pace | None = None
        """Where a step has a target."""
        if settings.step_target_ms is not None:
            self.pace = Pace(
                settings.step_target_ms / 1000,
                smallest=settings.block_tokens,
                largest=settings.prefill_chunk_tokens,
                step_tokens=settings.step_tokens,
            )
        self._rows_coming = 0
        """Of this pass: rows that will be free, and are nobody's yet."""
        self._plans: dict[int, ResumePlan] = {}
        """Of waiting sequences, by number."""
        self.journal = journal
        if journal is not None:
            self.pool.named, self.pool.likened = journal.named, journal.likened
            origin = Origin(settings, block_bytes, weights_version, kv_dtype, state_parts)
            journal.open(origin, self.passes, partial(Taking, self))

    # events

    def accept(self, sequence: Sequence, now_s: float) -> None:
        """A checked sequence begins to wait."""
        if self.journal is not None:
            self.journal.accepted(sequence, now_s)
        self.residents.enter(sequence, now_s)

    def end(self, sequence: Sequence, now_s: float) -> None:
        """A sequence has its terminal status."""
        if self.journal is not None:
            self.journal.ended(sequence, now_s, failed=False)
        self._plans.pop(sequence.number, None)
        self.residents.end(sequence, now_s)

    def fail(self, sequence: Sequence, now_s: float) -> None:
        """A sequence ends because its numbers are wrong: so is what it published.

        Sequences that read it lose their place and the results in flight; they compute it again.
        """
        if self.journal is not None:
            self.journal.ended(sequence, now_s, failed=True)
        self.residents.hold(sequence)
        self._plans.pop(sequence.number, None)
        self.residents.end(sequence, now_s)
        self._spread(sequence, now_s)

    def disown(self, sequence: Sequence, now_s: float) -> None:
        """As ``fail``, of a sequence that has ended, and has a batch in flight or had just now."""
        assert sequence.status is Status.ENDED
        if self.journal is not None:
            self.journal.disowned(sequence.number, now_s)
        self._spread(sequence, now_s)

    def _spread(self, sequence: Sequence, now_s: float) -> None:
        """Nothing that it computed, or that was made of that, is trusted."""
        holder = self.residents.holders[sequence.number]
        holder.chain = None
        holders = self.residents.holders.values()
        for number, cut in invalidate_published(self.pool, holder, holders).items():
            other = self.residents.sequences[number]
            if other.status is Status.RUNNING:
                self.residents.pause(other, now_s, trusted=cut)
            elif other.status is not Status.ENDED:
                self.residents.distrust(other, cut)
            else:
                self.residents.holders[number].chain = None

    def retire(self, now_s: float) -> list[Sequence]:
        """Frees what ended sequences hold once nothing of them is in flight."""
        if self.journal is not None and (self.residents.paused or self.residents.retiring):
            self.journal.retired(now_s)
        return self.residents.release_idle(now_s)

    def completed(self, now_s: float) -> None:
        """The oldest plan that was not empty has run."""
        if self.pace is not None:
            if self.journal is not None:
                self.journal.paced(now_s)
            self.pace.completed(now_s)

    # the pass

    def schedule(self, now_s: float) -> PassPlan:
        """Decides and commits one batch."""
        assert self._affinity.check()
        if self.journal is not None:
            self.journal.turn(self.passes, now_s)
        self._begin_pass(now_s)
        grants = Grants(self.pool, self.residents.claimants)
        decode, extended = self._grant_decodes(grants)
        chunks = self._grant_prefills(grants, len(decode.slots), now_s)
        self.residents.counters.evictions += replay_memory(grants, self.pool)
        plan = commit_results(
            self.residents, grants, decode, extended, chunks, pass_id=self.passes, now_s=now_s
        )
        ops = grants.ops
        if self.pool.state_type is not None:
            ops += publish_states(self.residents, self.settings, plan, extended).ops
        self.residents.counters.decode_tokens += len(plan.decode.slots)
        if self.pace is not None and not plan.empty:
            self.pace.handed_over(now_s, sum(chunk.end - chunk.begin for chunk in plan.chunks))
        if self.journal is not None:
            self.journal.planned(plan, ops, self.residents, now_s)
        return plan

    def stalled_head(self, plan: PassPlan) -> Sequence | None:
        """The first in line when nothing runs and nothing in flight will free memory."""
        residents = self.residents
        if not plan.empty or residents.paused or residents.retiring or not len(residents.waiting):
            return None
        if residents.columns.inflight.any():
            return None
        return next(iter(residents.waiting))

    def _begin_pass(self, now_s: float) -> None:
        residents, settings = self.residents, self.settings
        self.passes += 1
        residents.any_paused = False
        residents.reasons.begin_pass(now_s)
        quantum = self.passes % settings.quantum_passes == 0
        if quantum:
            residents.charge_decodes()
        if (quantum or residents.order.arrived) and residents.order.settle():
            residents.forget_claimants()
        if quantum and residents.waiting.age(now_s):
            residents.forget_claimants()
        for sequence in residents.paused:
            residents.reasons.name(sequence.number, Reason.IN_FLIGHT, now_s)
        if len(residents.waiting) and residents.free_slots:
            self._admit()

    def _admit(self) -> None:
        """Blocks for those that go first: no more new content than a pass computes, as it takes time
        to name, and the batch waits for it."""
        residents, settings, trie = self.residents, self.settings, self.pool.trie
        enough = len(trie) + settings.batch_tokens // settings.block_tokens
        for sequence in islice(residents.waiting, settings.plan_window):
            holder = residents.holders.get(sequence.number)
            if holder is None or not holder.blocks:
                if len(trie) >= enough:
                    return
                admit_prompt(self.pool, residents.hold(sequence), sequence, settings)
            elif len(holder.blocks) * settings.block_tokens < sequence.length:
                create_missing_blocks(self.pool, holder, sequence.length)

    def _grant_decodes(self, grants: Grants) -> tuple[Decodes, list[tuple[Sequence, LogicalBlock]]]:
        """A block for each decoding row that crosses into one, first in rank first."""
        residents = self.residents
        decodes, crossing = plan_continue(residents.columns, residents.decoding())
        return decodes, self._extend(grants, residents.at(crossing)) if len(crossing) else []

    def _extend(
        self, grants: Grants, crossers: list[Sequence]
    ) -> list[tuple[Sequence, LogicalBlock]]:
        """One block more for each. As long as nobody else loses one, order does not matter."""
        extended: list[tuple[Sequence, LogicalBlock]] = []
        if grants.make_free(len(crossers)):
            blocks = [self._block_after(sequence) for sequence in crossers]
            done = grants.take_free_many(blocks)
            extended += zip(crossers[:done], blocks, strict=False)
            crossers = crossers[done:]
        else:
            crossers.sort(key=self.residents.order.rank)
        for sequence in crossers:
            if sequence.number in grants.paused:
                continue
            block = self._block_after(sequence)
            if grants.take_free(block) or grants.take(self.residents.claimant(sequence), block):
                extended.append((sequence, block))
            else:
                grants.paused[sequence.number] = None
        return extended

    def _block_after(self, sequence: Sequence) -> LogicalBlock:
        """The block of the position that is planned next; made if need be."""
        holder = self.residents.holders[sequence.number]
        last = holder.blocks[-1]
        assert last.slot is not None
        # One that failed to get memory for it before has the block already.
        return last if last.slot.allocation is None else self.pool.extend(holder)

    def _grant_prefills(self, grants: Grants, decoding: int, now_s: float) -> list[Chunk]:
        """Chunks of known context: of those that run, then of those that wait, in order."""
        residents, settings = self.residents, self.settings
        budget = prefill_budget(
            decoding=decoding,
            batch_tokens=settings.batch_tokens,
            chunk_tokens=settings.prefill_chunk_tokens
            if self.pace is None
            else self.pace.chunk_tokens(),
            block_tokens=settings.block_tokens,
            step_tokens=settings.step_tokens,
        )
        whole, chunks = budget, list[Chunk]()
        contenders = len(residents.prefilling) + min(residents.free_slots, len(residents.waiting))
        if not contenders and not len(residents.waiting):
            return chunks
        for sequence in sorted(residents.prefilling.values(), key=residents.order.rank):
            if sequence.number not in grants.paused:
                chunk = self._continue_chunk(grants, sequence, budget, whole, contenders)
                contenders -= 1
                if chunk is not None:
                    chunks.append(chunk)
                    budget -= chunk.end - chunk.begin
        budget = self._grant_waiting(grants, chunks, budget, whole, contenders, now_s)
        self._spend_rest(grants, chunks, budget)
        return chunks

    def _continue_chunk(
        self, grants: Grants, sequence: Sequence, budget: int, whole: int, contenders: int
    ) -> Chunk | None:
        """The next chunk of a sequence that has its memory already."""
        assert sequence.slot is not None
        size = self.settings.block_tokens
        begin = int(self.residents.columns.planned[sequence.slot])
        holder = self.residents.holders[sequence.number]
        plan = plan_further(holder, known=sequence.length, begin=begin, lost=grants.lost)
        way = Way(begin)
        if holder.frontier is None:  # where a state is needed, others' blocks do not advance it
            way = resume_ways(holder, plan, known=sequence.length, lost=grants.lost)[0]
            way = way if way.begin > begin else Way(begin)
        share = prefill_share(budget=budget, whole=whole, contenders=contenders, block_tokens=size)
        chunk = self._chunk(sequence, way, plan, share, starts=False)
        if chunk is None or grants.check_producers(holder, way.begin, chunk.end) is not None:
            return None
        grants.kept.update(way.sources)
        grants.set_producers(holder, way.begin, chunk.end)
        return chunk

    def _chunk(
        self, sequence: Sequence, way: Way, plan: ResumePlan, budget: int, *, starts: bool
    ) -> Chunk | None:
        """A chunk that begins as ``way`` says. None: the budget reaches no boundary."""
        begin = way.begin
        end = chunk_end(
            begin=begin,
            context=sequence.length,
            budget=budget,
            block_tokens=self.settings.block_tokens,
        )
        if end <= begin:
            return None
        chunk = Chunk(sequence, begin, end, plan.store_from, way, starts)
        holder = self.residents.holders[sequence.number]
        if holder.frontier is not None:
            chunk.end, chunk.stops = plan_publication(self.settings, holder, sequence, begin, end)
        return chunk

    def _grant_waiting(
        self,
        grants: Grants,
        chunks: list[Chunk],
        budget: int,
        whole: int,
        contenders: int,
        now_s: float,
    ) -> int:
        """Admits waiting sequences until one is blocked. Returns what of the ``whole`` budget is left."""
        residents, settings, size = self.residents, self.settings, self.settings.block_tokens
        slots = residents.free_slots
        self._rows_coming = residents.coming_slots
        for sequence in islice(residents.waiting, settings.plan_window):
            if not slots:
                residents.reasons.name(sequence.number, Reason.BATCH_ROWS, now_s)
                if self._make_row_free(grants, sequence):
                    continue
                break
            holder = residents.holders.get(sequence.number)
            if holder is None or not holder.blocks:  # the next pass admits it
                residents.reasons.name(sequence.number, Reason.TOKEN_BUDGET, now_s)
                break
            plan = self._plan_waiting(grants, holder, sequence)
            ways = resume_ways(holder, plan, known=sequence.length, lost=grants.lost)
            share = prefill_share(
                budget=budget, whole=whole, contenders=contenders, block_tokens=size
            )
            chunk = self._chunk(sequence, ways[0], plan, share, starts=True)
            if chunk is None:
                residents.reasons.name(sequence.number, Reason.TOKEN_BUDGET, now_s)
                break
            contenders -= 1
            producer = self._awaited(grants, holder, plan, chunk)
            if producer is not None:
                residents.counters.deferrals += 1
                residents.reasons.name(sequence.number, Reason.PRODUCER, now_s, producer)
                continue
            short = self._take(grants, plan, ways, chunk, share)
            if short:
                residents.reasons.name(sequence.number, Reason.BLOCKS, now_s, short)
                break
            grants.set_producers(holder, chunk.begin, chunk.end)
            chunks.append(chunk)
            del self._plans[sequence.number]
            budget -= chunk.end - chunk.begin
            slots -= 1
        if not slots:
            residents.reasons.behind(Reason.BATCH_ROWS)
        elif budget < 1:
            residents.reasons.behind(Reason.TOKEN_BUDGET)
        return budget

    def _awaited(
        self, grants: Grants, holder: SequenceBlocks, plan: ResumePlan, chunk: Chunk
    ) -> int | None:
        """Who computes in this pass what the chunk would compute: the next pass finds it."""
        producer = grants.check_producers(holder, chunk.begin, chunk.end)
        if producer is not None:
            return producer
        sibling = holder.sibling
        if sibling is None or sibling.source.offset != plan.resume:
            return None
        producer = grants.producer(sibling.source)
        gain = min(plan.resume + sibling.common, chunk.sequence.length - 1) - chunk.begin
        work, size = chunk.end - chunk.begin, self.settings.block_tokens
        if not worth_waiting(gain=gain, work=work, block_tokens=size):
            return None
        return producer

    def _take(
        self, grants: Grants, plan: ResumePlan, ways: list[Way], chunk: Chunk, share: int
    ) -> int:
        """Memory for a chunk that starts; without copying when there is none for both.

        Returns how many blocks it is short of.
        """
        if grants.take_all_free(plan.missing, keep=ways[0].sources):
            return 0
        claimant = self.residents.claimant(chunk.sequence)
        short = grants.take_all(claimant, plan.missing, keep=ways[0].sources)
        if not short or len(ways) == 1:
            return short
        other = self._chunk(chunk.sequence, ways[1], plan, share, starts=True)
        holder = self.residents.holders[chunk.sequence.number]
        if other is None or grants.check_producers(holder, other.begin, other.end) is not None:
            return short
        short = grants.take_all(claimant, plan.missing)
        if not short:
            chunk.way, chunk.begin = other.way, other.begin
            chunk.end, chunk.stops = other.end, other.stops
        return short

    def _make_row_free(self, grants: Grants, sequence: Sequence) -> bool:
        """Whether a row will soon be free for it: the last in rank of a lesser band gives up its own."""
        residents = self.residents
        if max(residents.bands, default=0) <= residents.order.band(sequence):
            return False
        if self._rows_coming:
            self._rows_coming -= 1
            return True
        rank = residents.order.rank(sequence)
        for victim in residents.claimants().last_first:
            if not may_take_row(rank, victim.rank):
                return False
            if victim.runs and victim.number not in grants.paused:
                grants.paused[victim.number] = None
                return True
        return False

    def _plan_waiting(
        self, grants: Grants, holder: SequenceBlocks, sequence: Sequence
    ) -> ResumePlan:
        """The plan of the pass before, unless one of its blocks has changed since."""
        known = self._plans.get(sequence.number)
        if known is not None and not holder.changed and sequence.number not in grants.paused:
            return known
        plan = plan_resume(holder, known=sequence.length, filled=sequence.filled, lost=grants.lost)
        # What this pass takes away is not yet marked on the block.
        holder.changed = sequence.number in grants.paused
        self._plans[sequence.number] = plan
        return plan

    def _spend_rest(self, grants: Grants, chunks: list[Chunk], budget: int) -> None:
        """What nobody else needed lengthens the chunks of those who go first."""
        for chunk in chunks:
            if budget < 1:
                return
            if chunk.generating or chunk.stops or chunk.sequence.number in grants.paused:
                continue
            holder = self.residents.holders[chunk.sequence.number]
            end = chunk_end(
                begin=chunk.end,
                context=chunk.sequence.length,
                budget=budget,
                block_tokens=self.settings.block_tokens,
            )
            if end > chunk.end and grants.check_producers(holder, chunk.end, end) is None:
                if holder.frontier is not None:
                    end, chunk.stops = plan_publication(
                        self.settings, holder, chunk.sequence, chunk.begin, end
                    )
                grants.set_producers(holder, chunk.end, end)
                budget -= end - chunk.end
                chunk.end = end

    # what others may know

    def cache_stats(self) -> CacheStats:
        """Where the blocks are. O(blocks of ended sequences)."""
        slots, holders = self.pool.slots, self.residents.holders
        states = self.pool.checkpoints
        if self.pool.state_type is not None:
            fronts = [holder.frontier for holder in holders.values()]
            states += sum(state is not None and state.allocated for state in fronts)
        cached = len(slots.sorted) - self.pool.checkpoints
        free, blocks = self.objects.pages.free_pages, slots.allocated - states
        leaving: set[LogicalBlock] = set()
        for sequence in self.residents.retiring:
            holder = holders.get(sequence.number)
            if holder is not None:
                leaving.update(
                    b
                    for b in holder.blocks
                    if b.allocated and not any(h.eligible for h in b.holders)
                )
        return CacheStats(
            total_blocks=self.settings.pool_blocks,
            free_blocks=free,
            cached_blocks=cached,
            held_blocks=blocks - cached - len(leaving),
            in_flight_blocks=len(leaving),
            state_blocks=self.settings.pool_blocks - free - blocks,
            indexed_blocks=len(self.pool.trie),
            block_tokens=self.settings.block_tokens,
        )

    def audit(self) -> None:
        """Asserts every invariant, and that no block is lost. O(everything)."""
        self.residents.audit()
        stats = self.cache_stats()
        parts = stats.free_blocks + stats.cached_blocks + stats.held_blocks + stats.in_flight_blocks
        assert parts + stats.state_blocks == stats.total_blocks
        if self.pool.state_type is None:
            assert not stats.state_blocks
