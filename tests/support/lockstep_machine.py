"""The engine and the naive one beside it: the same things happen to both, and both stand alike."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal

import hypothesis.strategies as st
import numpy as np
from headrace_engine.cache.block import LogicalBlock
from headrace_engine.cache.trie import Fold, PrefixTrie
from headrace_engine.scheduler.commit import PassPlan
from headrace_engine.scheduler.reasons import Reason
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.request import MediaSpan
from headrace_engine.state.sequence import Status
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.engine import RecurrentExecutor, Rig, TokenExactExecutor, image, true_tokens
from support.engine_machine import IMAGES
from support.naive_blocks import (
    NaiveBlock,
    NaiveSequence,
    NaiveState,
    NaiveThing,
    Name,
    Path,
    Symbol,
)
from support.naive_engine import NaiveEngine, NaiveRequest

PREFIXES = [[], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 9, 9, 9, 9], [5] * 12]


class NotingTrie(PrefixTrie):
    """Tells which of several siblings it took."""

    def __init__(self, fold: Fold, note: Callable[[tuple[LogicalBlock, int] | None], None]) -> None:
        super().__init__(fold)
        self._note = note

    def closest(
        self,
        parent: LogicalBlock,
        tokens: bytes,
        fingerprints: tuple[bytes, ...] = (),
        besides: LogicalBlock | None = None,
        prefers: Callable[[LogicalBlock], bool] = attrgetter("valid"),
    ) -> tuple[LogicalBlock, int] | None:
        found = super().closest(parent, tokens, fingerprints, besides, prefers)
        self._note(found)
        return found


class LockstepMachine(RuleBasedStateMachine):
    """Compares after every pass: plan, places, blocks, counts, reasons, and what is cached."""

    phases: int
    fold: Any
    colliding: bool
    recurrent: bool = False

    @initialize(
        blocks=st.sampled_from([8, 9, 12, 20]),
        rows=st.sampled_from([1, 2, 3, 4]),
        chunk=st.sampled_from([4, 8, 12]),
        cache=st.sampled_from([True, True, True, False]),
        window=st.sampled_from([1, 3, 8]),
        heavy=st.booleans(),
        prompt=st.sampled_from(["all", "all", "auto"]),
        generation=st.sampled_from(["all", "all", "auto", "none"]),
        ageing_s=st.sampled_from([None, 3.0, 15.0]),
        interval=st.sampled_from([1, 4, 8, 64]),
        skip=st.sampled_from([1, 1, 3]),
    )
    def start(
        self,
        blocks: int,
        rows: int,
        chunk: int,
        cache: bool,
        window: int,
        heavy: bool,
        prompt: Literal["all", "auto"],
        generation: Literal["all", "auto", "none"],
        ageing_s: float | None,
        interval: int,
        skip: int,
    ) -> None:
        """Both, with the same settings."""
        settings = SchedulerSettings(
            max_batch=rows,
            max_waiting=6,
            batch_tokens=chunk + rows + 4,
            prefill_chunk_tokens=chunk,
            session_tokens=40,
            block_tokens=4,
            pool_blocks=blocks,
            phases=type(self).phases,
            prefix_cache=cache,
            plan_window=window,
            quantum_passes=4,
            tenant_weights={"a": 2.0} if heavy else {},
            cache_prompt=prompt,
            cache_generation=generation,
            ageing_s=ageing_s,
            cache_checkpoint_interval=interval,
            cache_prompt_boundary_skip=skip,
            audit=True,
        )
        # A state of one part takes the memory of one block.
        self.executor = RecurrentExecutor((8,)) if self.recurrent else TokenExactExecutor()
        self.rig = Rig(settings, self.executor, fold=type(self).fold)
        self.chosen: deque[tuple[Name, int] | None] = deque()
        self.rig.scheduler.pool.trie = NotingTrie(type(self).fold, self._note)
        self.naive = NaiveEngine(
            settings,
            self._fails,
            self.chosen.popleft,
            colliding=type(self).colliding,
            recurrent=self.recurrent,
        )
        self.plan: PassPlan | None = None
        self.shown: tuple[list[int], list[tuple[int, ...]]] = ([], [])
        schedule = self.rig.scheduler.schedule

        def remembered(now_s: float) -> PassPlan:
            self.plan = schedule(now_s)
            residents = self.rig.scheduler.residents
            decodes = [s.number for s in residents.at(self.plan.decode.slots)]
            chunks = [
                (c.sequence.number, c.begin, c.end, max(c.begin, c.store_from), c.starts)
                for c in self.plan.chunks
            ]
            self.shown = (decodes, chunks)
            return self.plan

        self.rig.scheduler.schedule = remembered

    def _fails(self, pass_id: int, row: int) -> bool:
        return (pass_id, row) in self.executor.fail_rows

    def _note(self, found: tuple[LogicalBlock, int] | None) -> None:
        self.chosen.append(None if found is None else (self._name(found[0]), found[1]))

    # what happens

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.integers(0, 2), min_size=1, max_size=9),
        new=st.integers(1, 12),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        stops=st.sampled_from([(), (), (0, 1, 2, 3, 4, 5, 6, 7)]),
        tenant=st.sampled_from(["a", "b", "c"]),
        band=st.sampled_from([1, 1, 0, 2]),
        salt=st.sampled_from([b"", b"", b"x"]),
        given=st.sampled_from([0, 0, 2]),
        times=st.sampled_from([1, 1, 2, 3]),
        images=st.sampled_from([(), (), (), *IMAGES]),
        wait_s=st.sampled_from([None, None, None, 4.0, 15.0]),
    )
    def push(
        self,
        prefix: list[int],
        tail: list[int],
        new: int,
        n: int,
        stops: tuple[int, ...],
        tenant: str,
        band: int,
        salt: bytes,
        given: int,
        times: int,
        images: tuple[tuple[int, int, int], ...],
        wait_s: float | None,
    ) -> None:
        """Requests of one or more choices with one prompt, perhaps begun elsewhere."""
        prompt = prefix + tail
        media = tuple(
            MediaSpan(first, min(end, len(prompt)), image(number))
            for first, end, number in images
            if first < len(prompt)
        )
        given = min(given, new)
        for _ in range(times):
            self._push(prompt, new, n, frozenset(stops), tenant, band, salt, given, media, wait_s)

    @rule(data=st.data())
    def push_a_second_turn(self, data: st.DataObject) -> None:
        """What one said is the beginning of the next prompt."""
        if done := self.answered():
            self.follow(*data.draw(st.sampled_from(done)))

    def answered(self) -> list[tuple[int, int]]:
        """Choices that said something and ended."""
        return sorted(key for key, heard in self.rig.heard.items() if heard.end and heard.tokens)

    def follow(self, handle: int, choice: int) -> None:
        """The next turn of one of these."""
        earlier = self.rig.requests[handle]
        prompt = [*earlier.prompt.tolist(), *self.rig.tokens(handle, choice)]
        media = earlier.media
        most = min(29, self.rig.settings.pool_tokens - 2)
        self._push([*prompt[:most], 7], 3, 1, frozenset(), earlier.tenant, 1, b"", 0, media)

    def _push(
        self,
        prompt: list[int],
        new: int,
        n: int,
        stops: frozenset[int],
        tenant: str,
        band: int,
        salt: bytes,
        given: int,
        media: tuple[MediaSpan, ...] = (),
        wait_s: float | None = None,
    ) -> None:
        now_s = self.rig.clock.monotonic()
        deadline_s = None if wait_s is None else now_s + wait_s
        settings = self.rig.settings
        limit = min(len(prompt) + new, settings.session_tokens, settings.pool_tokens)
        given = min(given, limit - len(prompt))
        futures = [
            true_tokens(
                prompt, limit - len(prompt), choice=c, media=media, recurrent=self.recurrent
            )
            for c in range(n)
        ]
        handle = self.rig.push(
            prompt,
            new,
            n=n,
            stop_token_ids=stops,
            tenant=tenant,
            band=band,
            cache_salt=salt,
            generated=[future[:given] for future in futures] if given else (),
            media=media,
            deadline_s=deadline_s,
        )
        choices = [
            NaiveSequence(
                number=0,
                handle=handle,
                choice=c,
                tenant=tenant,
                salt=salt,
                band=band,
                asked_band=band,
                media=media,
                arrived_s=now_s,
                deadline_s=deadline_s,
                tokens=prompt + future[:given],
                prompt=len(prompt),
                limit=limit,
                stops=stops,
                min_new=0,
                future=future[given:],
            )
            for c, future in enumerate(futures)
        ]
        self.naive.push(NaiveRequest(handle, choices))

    @rule(data=st.data(), whole=st.booleans())
    def cancel(self, data: st.DataObject, whole: bool) -> None:
        """In whatever state it is."""
        if self.rig.requests:
            self.end(data.draw(st.sampled_from(sorted(self.rig.requests))), None if whole else 0)

    def end(self, handle: int, choice: int | None) -> None:
        """A request, or one choice of it, is cancelled."""
        self.rig.cancel(self.rig.requests[handle].handle, choice=choice)
        self.naive.cancel(handle, choice)

    @rule(row=st.integers(0, 3), ahead=st.integers(1, 2))
    def fail_a_row(self, row: int, ahead: int) -> None:
        """A row of a coming batch is not finite: what was made from it goes too."""
        self.executor.fail_rows.add((self.rig.scheduler.passes + ahead, row))

    @rule(passes=st.integers(1, 6))
    def run_passes(self, passes: int) -> None:
        """Both make so many passes."""
        for _ in range(passes):
            self._step()

    @rule()
    def evict_everything_unheld(self) -> None:
        """As when an engine is put to sleep."""
        self.rig.scheduler.pool.evict_all()
        for block in self.naive.blocks.cached():
            self.naive.blocks.take_memory(block)
        self.naive.blocks.sweep()

    def teardown(self) -> None:
        """All ends, and nothing is left."""
        if not hasattr(self, "rig"):
            return
        for _ in range(3000):
            if not self.rig.busy:
                break
            self._step()
        # Where all were cancelled before any pass took them, nothing was heard yet.
        self.rig.run(passes=1)
        self._compare()
        assert not self.naive.everybody
        for handle, request in self.rig.requests.items():
            for choice in range(request.n):
                assert self.rig.choice(handle, choice).end is not None, "no terminal status"
                self.rig.assert_true(handle, choice)
        self.rig.assert_idle()

    # whether both stand alike

    def _step(self) -> None:
        assert self.rig.busy == self.naive.busy
        if not self.rig.busy:
            return
        self.plan = None
        self.rig.clock.advance(1.0)
        self.rig.step()
        self.naive.step(self.rig.clock.monotonic())
        if self.plan is not None:
            self._compare_plans()
        self._compare()

    def _compare_plans(self) -> None:
        plan = self.naive.plan
        chunks = [
            (c.sequence.number, c.begin, c.end, max(c.begin, c.store_from), c.starts)
            for c in plan.chunks
        ]
        assert self.shown == ([s.number for s in plan.decodes], chunks)

    @invariant()
    def _compare(self) -> None:
        if not hasattr(self, "rig"):
            return
        residents, naive = self.rig.scheduler.residents, self.naive
        assert list(residents.sequences) == [s.number for s in naive.everybody]
        for sequence in naive.everybody:
            self._compare_sequence(sequence)
        assert [s.number for s in residents.waiting] == [s.number for s in naive.waiting()]
        assert not self.chosen
        self._compare_blocks()
        self._compare_reasons()
        assert residents.free_slots == naive.free_slots
        assert residents.counters.preemptions == naive.preemptions
        assert residents.counters.evictions == naive.evictions
        assert residents.counters.copied_tokens == naive.copied
        for key, why in naive.ended.items():
            end = self.rig.heard[key].end
            assert end is not None
            expected = {"numeric": "NUMERIC_FAILURE", "out_of_memory": "OUT_OF_MEMORY"}.get(why)
            told = end.reason.name if expected is None else end.code.name if end.code else ""
            assert told == (expected or why.upper())

    def _compare_sequence(self, expected: NaiveSequence) -> None:
        residents = self.rig.scheduler.residents
        sequence = residents.sequences[expected.number]
        assert sequence.status.value == expected.status
        assert (sequence.slot is not None) == expected.has_slot
        holder = residents.holders.get(expected.number)
        blocks = [] if holder is None else holder.blocks
        frontier = None if holder is None else holder.frontier
        if frontier is None or holder is None:
            assert expected.frontier is None
        else:
            naive = expected.frontier
            assert naive is not None
            assert (frontier.allocated, frontier.valid) == (naive.memory, naive.valid)
            assert holder.checkpointed == expected.checkpointed
            assert not frontier.valid or frontier.offset == naive.position
        assert [_state(b) for b in blocks] == [self._naive_state(b) for b in expected.blocks]
        if sequence.slot is None:
            assert sequence.tokens[: sequence.length].tolist() == expected.tokens
            assert sequence.filled == expected.filled
            return
        columns, slot = residents.columns, sequence.slot
        assert columns.known[slot] == len(expected.tokens)
        assert columns.planned[slot] == expected.planned
        assert columns.sampled[slot] == expected.sampled
        assert columns.inflight[slot] == expected.inflight
        assert bool(columns.live[slot]) == expected.live
        if sequence.status is Status.RUNNING:
            assert (expected.number in residents.prefilling) != expected.decodes

    def _naive_state(self, block: NaiveBlock) -> tuple[Any, ...]:
        holders = [h.number for h in block.holders]
        refs = self.naive.blocks.refs(block)
        states = [(s.position, s.publisher, sorted(s.origins)) for s in block.states]
        return (block.path is not None, block.memory, block.valid, refs, holders, states)

    def _compare_blocks(self) -> None:
        pool, naive = self.rig.scheduler.pool, self.naive.blocks
        known = {self._path(b): _state(b) for b in pool.trie.nodes()}
        assert known == {b.path: self._naive_state(b) for b in naive.indexed}
        offers = [(self._name(b), self._path(b), b.written, _state(b)) for b in pool.trie.offered]
        assert offers == [
            ((b.maker, b.index), b.offer, b.written, self._naive_state(b)) for b in naive.offered
        ]
        cached = [self._thing(slot.owner) for slot in pool.slots.sorted]
        expected = [_naive_thing(thing) for thing in naive.cached()]
        assert cached == expected, "not taken in the order of last use"
        stats = self.rig.scheduler.cache_stats()
        things = naive.things()
        memory = [b for b in naive.everything() if b.memory]
        leaving = [b for b in memory if b.holders and all(h.status == "ended" for h in b.holders)]
        assert stats.free_blocks == naive.free
        assert stats.cached_blocks == sum(position is None for _, _, position in cached)
        assert stats.state_blocks == sum(isinstance(t, NaiveState) and t.memory for t in things)
        assert stats.in_flight_blocks == len(leaving)
        assert stats.held_blocks == len(memory) - stats.cached_blocks - len(leaving)
        assert stats.indexed_blocks == len(naive.indexed)

    def _thing(self, thing: LogicalBlock) -> tuple[int, int, int | None]:
        if thing.capacity:
            return (*self._name(thing), None)
        assert thing.parent is not None
        return (*self._name(thing.parent), thing.offset)

    def _name(self, block: LogicalBlock) -> Name:
        return block.maker, block.offset // self.rig.settings.block_tokens

    def _path(self, block: LogicalBlock) -> Path:
        content: list[Symbol] = []
        node = block
        while node.parent is not None:
            tokens: list[int] = np.frombuffer(node.tokens, "<i4").tolist()
            marks: dict[int, object] = {}
            for mark in node.fingerprints:
                at, length = np.frombuffer(mark[:8], "<i4").tolist()
                marks[at] = (length, mark[8:])
            content = [*((t, marks.get(i)) for i, t in enumerate(tokens)), *content]
            node = node.parent
        identity = self.rig.scheduler.pool.trie.identity(node)
        return identity.tenant, identity.salt, tuple(content)

    def _compare_reasons(self) -> None:
        book = self.rig.scheduler.residents.reasons
        for sequence in self.naive.everybody:
            if sequence.status not in ("waiting", "paused"):
                continue
            told = book.of(sequence.number)
            assert told is not None
            reason, detail = self.naive.reasons.get(sequence.number, (self.naive.behind, 0))
            assert told.reason is reason
            assert told.detail == detail or reason is Reason.BLOCKS


def walk(machine: LockstepMachine, seed: int, events: int) -> None:
    """A long way at random: hypothesis prefers short ones, and much needs a full house."""
    rng = random.Random(seed)
    machine.start(
        blocks=rng.choice([8, 9, 12, 20]),
        rows=rng.choice([2, 3, 4]),
        chunk=rng.choice([4, 8, 12]),
        cache=rng.random() < 0.9,
        window=rng.choice([1, 3, 8]),
        heavy=rng.random() < 0.5,
        prompt=rng.choice(["all", "all", "auto"]),
        generation=rng.choice(["all", "all", "auto", "none"]),
        ageing_s=rng.choice([None, 3.0, 15.0]),
        interval=rng.choice([1, 4, 8, 64]),
        skip=rng.choice([1, 1, 3]),
    )
    for _ in range(events):
        event = rng.random()
        if event < 0.35:
            machine.push(
                prefix=rng.choice(PREFIXES),
                tail=[rng.randrange(3) for _ in range(rng.randint(1, 9))],
                new=rng.randint(1, 12),
                n=rng.choice([1, 1, 1, 2, 3]),
                stops=rng.choice([(), (), (0, 1, 2, 3, 4, 5, 6, 7)]),
                tenant=rng.choice("abc"),
                band=rng.choice([1, 1, 0, 2]),
                salt=rng.choice([b"", b"", b"x"]),
                given=rng.choice([0, 0, 2]),
                times=rng.choice([1, 1, 2, 3]),
                images=rng.choice([(), (), (), *IMAGES]),
                wait_s=rng.choice([None, None, None, 4.0, 15.0]),
            )
        elif event < 0.45 and (done := machine.answered()):
            machine.follow(*rng.choice(done))
        elif event < 0.53 and machine.rig.requests:
            machine.end(rng.choice(sorted(machine.rig.requests)), rng.choice([None, 0]))
        elif event < 0.57:
            machine.fail_a_row(row=rng.randint(0, 3), ahead=rng.randint(1, 2))
        elif event < 0.59:
            machine.evict_everything_unheld()
        else:
            machine.run_passes(passes=rng.randint(1, 8))
    machine.teardown()


def _state(block: LogicalBlock) -> tuple[Any, ...]:
    return (
        block.indexed,
        block.allocated,
        block.valid,
        block.refs + len(block.holders),
        [holder.number for holder in block.holders],
        [(s.offset, s.publisher, sorted(s.origins)) for s in block.states],
    )


def _naive_thing(thing: NaiveThing) -> tuple[int, int, int | None]:
    if isinstance(thing, NaiveBlock):
        return thing.maker, thing.index, None
    assert thing.block is not None
    return thing.block.maker, thing.block.index, thing.position
