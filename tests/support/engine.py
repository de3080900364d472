"""Drives an engine loop step by step, without threads, against executors that know the truth."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from headrace_contracts.codes import FinishReason
from headrace_contracts.prefix_key import fold
from headrace_engine.cache.registry import state_blocks
from headrace_engine.cache.trie import Fold
from headrace_engine.executor.base import Executor, ExecutorLimits, ModelShape
from headrace_engine.executor.copies import run_copies
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.scheduler.journal import Journal
from headrace_engine.scheduler.scheduler import Scheduler
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.batch import BatchData, BatchOutput, ResolvedCopy, SlotStart
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.outputs import PassOutputs, RowEnd, RowLogprobs, RowStarted
from headrace_engine.state.request import MediaSpan, Request, RequestHandle, Sampling
from numpy.typing import NDArray
from support.clock import FakeClock

VOCABULARY = 97
_MASK = (1 << 61) - 1


def mix(*values: int) -> int:
    """A number that depends on all of these."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state ^ (value + 0x7F4A7C15)) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
        state ^= state >> 29
    return state & _MASK


def next_token(content: int, index: int, choice: int, seed: int, vocabulary: int) -> int:
    """The stub model: a token from everything before it."""
    return mix(content, index, choice, seed) % vocabulary


def true_tokens(
    prompt: Sequence[int],
    count: int,
    *,
    choice: int = 0,
    seed: int = 0,
    given: Sequence[int] = (),
    media: Sequence[MediaSpan] = (),
    recurrent: bool = False,
    vocabulary: int = VOCABULARY,
) -> list[int]:
    """What a sequence generates when it runs alone, without a cache. ``given`` came earlier."""
    total = state = 0
    images = image_marks(media)
    for position, token in enumerate([*prompt, *given]):
        symbol = token + images.get(position, 0)
        total = (total + mix(symbol, position, total)) & _MASK
        state = mix(state, symbol)
    out: list[int] = []
    position = len(prompt) + len(given)
    for index in range(len(given), len(given) + count):
        content = mix(total, state) if recurrent else total
        token = next_token(content, index, choice, seed, vocabulary)
        out.append(token)
        total = (total + mix(token, position, total)) & _MASK
        state = mix(state, token)
        position += 1
    return out


def image_marks(media: Sequence[MediaSpan]) -> dict[int, int]:
    """What each placeholder position gets from its image, which is known by ``image(number)``."""
    return {
        position: 1000 * (1 + int.from_bytes(span.fingerprint[-4:]))
        for span in media
        for position in range(span.first, span.end)
    }


def image(number: int) -> bytes:
    """A fingerprint. Number 0: of an image that is equal to nothing."""
    return number.to_bytes(32) if number else b""


class WrongContent(AssertionError):
    """A batch would have read or written KV that is not what it must be."""


class TokenExactExecutor:
    """Its KV is the identity of the tokens that were computed into each place of the region.

    The content of a position depends on the whole content before it, *as read through the
    blocks the batch names*, and a token on the sum of all content. So a wrong share, a stale
    block, a block that was taken away or written by somebody else shows as a wrong token.
    """

    recurrent = False

    def __init__(
        self,
        vocabulary: int = VOCABULARY,
        context_tokens: int = 1 << 20,
        *,
        state_parts: tuple[int, ...] = (),
    ) -> None:
        self._shape = ModelShape(
            state_parts=state_parts,
            name="exact",
            architecture="exact",
            vocabulary=vocabulary,
            context_tokens=context_tokens,
            weights_version="exact-1",
            kv_dtype="identity",
            kv_bytes_per_token=8,
        )
        self._slots: dict[int, SlotStart] = {}
        self._last: dict[int, int] = {}
        self.fail_rows: set[tuple[int, int]] = set()
        """(pass, row) of rows whose output is to be reported as not finite; they write rubbish."""
        self.broken_pass: int | None = None
        """Pass whose batch raises."""
        self.batches: list[BatchData] = []
        self.copied = 0
        """Copies of cache objects so far."""

    @property
    def shape(self) -> ModelShape:
        return self._shape

    def block_bytes(self, block_tokens: int) -> int:
        return -(-8 * block_tokens // 64) * 64

    def start(self, limits: ExecutorLimits) -> None:
        self._limits = limits
        self._size = limits.block_tokens
        # Memory that was never written holds what no computation gives.
        self.region: NDArray[np.int64] = np.full(limits.region_bytes // 8, -1, np.int64)
        self._table = np.full(
            (limits.slots, -(-limits.sequence_tokens // self._size)), -1, np.int64
        )

    def submit(self, batch: BatchData) -> None:
        if batch.pass_id == self.broken_pass:
            raise RuntimeError("the device broke")
        self.batches.append(batch)

    def collect(self, batch: BatchData) -> None:
        self._copy(batch.restores)
        for start in batch.starts:
            self._slots[start.slot] = start
            self._last.pop(start.slot, None)
            self._table[start.slot] = -1
        self._table[batch.table_slots, batch.table_indices] = batch.table_offsets
        self._check_form(batch)
        tokens = np.zeros(batch.generating, np.int32)
        failed = np.zeros(batch.generating, np.bool_)
        # As a device would: nothing of one row depends on another row of the same batch.
        for row in range(batch.rows):
            content = self._run(batch, row)
            if row >= batch.generating:
                continue
            slot = int(batch.slots[row])
            start = self._slots[slot]
            token = next_token(
                content,
                int(batch.sample_indices[row]),
                start.choice,
                start.sampling.seed,
                self._shape.vocabulary,
            )
            tokens[row] = token
            self._last[slot] = token
            failed[row] = (batch.pass_id, row) in self.fail_rows
        self._copy(batch.publishes)
        batch.output = BatchOutput(tokens=tokens, failed=failed)

    def _copy(self, copies: list[ResolvedCopy]) -> None:
        for copy in copies:
            assert copy.source != copy.target
            self.copied += 1
        run_copies(self.region.view(np.uint8), copies)

    def close(self) -> None:
        pass

    def _run(self, batch: BatchData, row: int) -> int:
        begin, length = int(batch.begins[row]), int(batch.lengths[row])
        at = int(batch.token_offsets[row])
        count = -(-(begin + length) // self._size)
        blocks = self._table[batch.slots[row], :count]
        places = (blocks // 8).tolist()
        images = image_marks(self._slots[int(batch.slots[row])].media)
        total = 0
        for position in range(begin):
            total += int(self.region[places[position // self._size] + position % self._size])
        total &= _MASK
        fails = row < batch.generating and (batch.pass_id, row) in self.fail_rows
        poison = 1 if fails else 0
        for i in range(length):
            position = begin + i
            token = (
                self._last[int(batch.slots[row])]
                if batch.autoregressive[row]
                else int(batch.tokens[at + i])
            )
            content = mix(token + images.get(position, 0), position, total) + poison
            place = places[position // self._size] + position % self._size
            if position >= int(batch.store_from[row]):
                self.region[place] = content
            total = (total + int(self.region[place])) & _MASK
        return total

    def _check_form(self, batch: BatchData) -> None:
        rows = batch.rows
        assert rows == len(batch.begins) == len(batch.lengths) == len(batch.autoregressive)
        assert len(set(batch.slots.tolist())) == rows, "a slot twice in one batch"
        assert batch.token_offsets[-1] == len(batch.tokens) == batch.lengths.sum()
        assert len(batch.tokens) <= self._limits.batch_tokens
        assert rows <= self._limits.slots
        assert (batch.lengths >= 1).all()
        assert not batch.autoregressive[batch.generating :].any()
        assert (batch.lengths[batch.autoregressive] == 1).all()
        assert len(batch.sample_indices) == batch.generating
        ends = batch.begins + batch.lengths
        assert (ends <= self._limits.sequence_tokens).all()
        written: set[tuple[int, int]] = set()
        for row in range(rows):
            count = -(-int(ends[row]) // self._size)
            blocks: list[int] = self._table[batch.slots[row], :count].tolist()
            assert min(blocks) >= 0, "the block table has a hole"
            assert len(set(blocks)) == len(blocks), "a block twice in one sequence"
            first = max(int(batch.begins[row]), int(batch.store_from[row]))
            for position in range(first, int(ends[row])):
                place = (blocks[position // self._size], position % self._size)
                if place in written:
                    raise WrongContent("two rows write one place")
                written.add(place)


class RecurrentExecutor(TokenExactExecutor):
    """It also has a state: a hash of every token the sequence consumed, in order.

    The state lies in the region, a word in each part, and is read there before the first token of
    a row. So a state that was not restored, not published, or of another position shows as a wrong
    token.
    """

    recurrent = True

    def __init__(self, state_parts: tuple[int, ...] = (8, 8)) -> None:
        super().__init__(state_parts=state_parts)

    def _run(self, batch: BatchData, row: int) -> int:
        # Before super: it gives the row's token to the next one.
        slot, begin = int(batch.slots[row]), int(batch.begins[row])
        start = self._slots[slot]
        at, length = int(batch.token_offsets[row]), int(batch.lengths[row])
        tokens = batch.tokens[at : at + length].tolist()
        if batch.autoregressive[row]:
            tokens = [self._last[slot]]
        parts = [address // 8 for address in start.state]
        assert len(parts) == len(self._shape.state_parts)
        state = 0
        if begin:
            state = mix(*(int(self.region[part]) for part in parts[1:]), 0)
            state = int(self.region[parts[0]]) ^ state
        images = image_marks(start.media)
        for position, token in enumerate(tokens, begin):
            state = mix(state, token + images.get(position, 0))
        rest = [(row, place) for place in range(len(parts) - 1)]
        failed = row < batch.generating and (batch.pass_id, row) in self.fail_rows
        words = [mix(batch.pass_id, *where) for where in rest]
        self.region[parts[1:]] = words
        self.region[parts[0]] = (state + failed) ^ mix(*words, 0)
        return mix(super()._run(batch, row), state)


class InlineRunner:
    """A ``BatchRunner`` without a thread: a batch runs when it is taken, as late as possible."""

    def __init__(self, executor: Executor, limits: ExecutorLimits) -> None:
        self._executor = executor
        self.limits = limits
        self._inside: deque[BatchData] = deque()
        executor.start(limits)

    def submit(self, batch: BatchData) -> None:
        assert len(self._inside) < self.limits.phases, "more batches than phases"
        self._inside.append(batch)

    def take(self, timeout_s: float | None = None) -> BatchData | None:
        batch = self._inside.popleft()
        try:
            self._executor.submit(batch)
            self._executor.collect(batch)
        except RuntimeError as error:
            batch.error = error
        return batch


@dataclass
class Choice:
    """What was heard of one choice."""

    tokens: list[int] = field(default_factory=list[int])
    first: int | None = None
    """Index of the first token heard."""
    end: RowEnd | None = None
    started: RowStarted | None = None
    logprobs: list[RowLogprobs] = field(default_factory=list[RowLogprobs])


class Rig:
    """One engine, stepped by the test. What it says is collected and checked for order."""

    def __init__(
        self,
        settings: SchedulerSettings | None = None,
        executor: Executor | None = None,
        *,
        fold: Fold = fold,
        journal: Journal | None = None,
        **changes: Any,
    ) -> None:
        self.settings = settings or small_settings(**changes)
        self.executor = executor or TokenExactExecutor()
        page = self.executor.block_bytes(self.settings.block_tokens)
        state = state_blocks(self.executor.shape.state_parts, page)
        self.settings = replace(self.settings, state_blocks=state)
        self.clock = FakeClock()
        self.door = EngineGateway(self.clock)
        limits = executor_limits(
            self.settings, self.executor.block_bytes(self.settings.block_tokens)
        )
        self.runner = InlineRunner(self.executor, limits)
        self.loop = EngineLoop(
            self.door,
            self.runner,
            self.settings,
            self.clock,
            self.executor.shape,
            fold=fold,
            journal=journal,
        )
        self.heard: dict[tuple[int, int], Choice] = {}
        self.requests: dict[int, Request] = {}
        self._next = 1

    @property
    def scheduler(self) -> Scheduler:
        """The loop's scheduler."""
        return self.loop.scheduler

    def push(self, prompt: Sequence[int], max_new_tokens: int = 4, **fields: Any) -> RequestHandle:
        """A request; sampling fields and request fields by name."""
        sampling_names = Sampling.__dataclass_fields__
        sampling = {k: v for k, v in fields.items() if k in sampling_names}
        rest = {k: v for k, v in fields.items() if k not in sampling_names}
        handle = RequestHandle(self._next)
        self._next += 1
        generated = rest.pop("generated", ())
        request = Request(
            id=f"r{handle}",
            handle=handle,
            prompt=np.array(prompt, np.int32),
            sampling=Sampling(max_new_tokens=max_new_tokens, **sampling),
            generated=tuple(np.array(g, np.int32) for g in generated),
            **rest,
        )
        self.requests[handle] = request
        self.door.push(request)
        return handle

    def cancel(
        self,
        handle: RequestHandle,
        reason: FinishReason = FinishReason.CANCELLED,
        choice: int | None = None,
    ) -> None:
        self.door.cancel(Cancel(handle, reason, choice))

    def step(self) -> None:
        """One pass, if there is something to do (the loop would sleep otherwise)."""
        if self.busy:
            self.loop.step()
        self._hear()

    @property
    def busy(self) -> bool:
        return bool(self.door.queued or self.scheduler.residents.sequences or self.loop.in_flight)

    def run(self, passes: int = 10_000) -> None:
        """Until nothing is resident; fails if that takes more passes."""
        for _ in range(passes):
            if not self.busy:
                self._hear()
                return
            self.step()
        raise AssertionError(f"still busy after {passes} passes")

    def choice(self, handle: int, choice: int = 0) -> Choice:
        return self.heard.setdefault((handle, choice), Choice())

    def tokens(self, handle: int, choice: int = 0) -> list[int]:
        return self.choice(handle, choice).tokens

    def reason(self, handle: int, choice: int = 0) -> FinishReason | None:
        end = self.choice(handle, choice).end
        return None if end is None else end.reason

    def _hear(self) -> None:
        for outputs in self.door.take_outputs(0) or []:
            self.hear(outputs)

    def hear(self, outputs: PassOutputs) -> None:
        """Collects outputs, and checks what every listener may rely on."""
        keys = list(zip(outputs.handles.tolist(), outputs.choices.tolist(), strict=True))
        assert len(set(keys)) == len(keys), "two rows of one choice"
        spoken = {end.row for end in outputs.ends} | {start.row for start in outputs.starts}
        ended_rows = [end.row for end in outputs.ends]
        assert len(set(ended_rows)) == len(ended_rows)
        at = 0
        for row, key in enumerate(keys):
            heard = self.heard.setdefault(key, Choice())
            assert heard.end is None, f"{key} said something after its end"
            count = int(outputs.counts[row])
            assert count in (0, 1)
            assert count or row in spoken
            if count:
                first = int(outputs.firsts[row])
                if heard.first is None:
                    heard.first = first
                assert first == heard.first + len(heard.tokens), f"{key} lost a token"
                heard.tokens.append(int(outputs.tokens[at]))
                at += 1
        assert at == len(outputs.tokens)
        for start in outputs.starts:
            heard = self.heard[keys[start.row]]
            assert heard.started is None
            heard.started = start
        for logprobs in outputs.logprobs:
            self.heard[keys[logprobs.row]].logprobs.append(logprobs)
        for end in outputs.ends:
            self.heard[keys[end.row]].end = end

    def assert_idle(self) -> None:
        """Nothing is held but cache; and without the cache, nothing at all."""
        residents = self.scheduler.residents
        assert not residents.sequences
        assert not residents.holders
        assert residents.free_slots == self.settings.max_batch
        self.loop.audit()
        self.scheduler.pool.evict_all()
        self.loop.audit()
        assert self.scheduler.pool.alive == 0
        assert len(self.scheduler.pool.trie) == 0
        assert self.scheduler.pool.trie.roots == 0
        assert self.scheduler.objects.live == 0
        assert self.scheduler.objects.pages.coalesced()

    def assert_true(self, handle: int, choice: int = 0) -> None:
        """The choice said what it says alone and without a cache, as far as it got."""
        request = self.requests[handle]
        given: list[int] = request.generated[choice].tolist() if request.generated else []
        heard = self.choice(handle, choice)
        prompt: list[int] = request.prompt.tolist()
        expected = true_tokens(
            prompt,
            len(heard.tokens),
            choice=choice,
            seed=request.sampling.seed,
            given=given,
            media=request.media,
            recurrent=bool(self.executor.shape.state_parts),
        )
        assert heard.tokens == expected, f"wrong tokens of {request.id}, choice {choice}"


def small_settings(**changes: Any) -> SchedulerSettings:
    """Tiny memory and every invariant checked in every pass."""
    fields: dict[str, Any] = {
        "max_batch": 4,
        "max_waiting": 16,
        "batch_tokens": 32,
        "prefill_chunk_tokens": 8,
        "session_tokens": 64,
        "block_tokens": 4,
        "pool_blocks": 16,
        "phases": 1,
        "quantum_passes": 4,
        "audit": True,
    }
    fields.update(changes)
    return SchedulerSettings(**fields)


def colliding_fold(parent: Any, tokens: bytes, fingerprints: Any) -> Any:
    """A key function that cannot tell anything apart."""
    return b"\0" * 16
