"""The executor that runs on a CUDA device: one message in, one graph, one message out.

Owner    executor thread
Writes   device memory, ``batch.output``
Never    synchronizes within ``submit``; compiles or allocates device memory after ``start``
Rules    executor.no-device-above, executor.nothing-allocated-after-start, batch.one-holder
Next     headrace_engine.model.cuda_decoder

A step: restore copies, one host-to-device copy of the packed message, the prepare kernel,
forward, sampling, publish copies, one copy of the chosen tokens back, an event. Decode steps are
replays of graphs captured for a ladder of batch sizes and the classes of ``cuda_sampling``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
import torch
from headrace_contracts.limits import MAX_TOP_LOGPROBS
from headrace_kit.log import get_logger
from numpy.typing import NDArray
from torch import Tensor

from headrace_engine.errors import ModelRejected
from headrace_engine.executor.base import ExecutorLimits, ModelShape
from headrace_engine.executor.cuda_ahead import check_card, check_config
from headrace_engine.executor.cuda_graphs import captured, upload
from headrace_engine.executor.cuda_memory import (
    GRAPH_BYTES,
    LOADED_BYTES,
    MemoryPlan,
    allocating,
    keep_pinned,
    measured,
)
from headrace_engine.executor.cuda_prefill import STEP_TOKENS, Bounds, PrefillGraphs
from headrace_engine.executor.cuda_sampling import CLASSES, CudaSampler, StepClass
from headrace_engine.executor.cuda_shapes import shapes_alone
from headrace_engine.executor.cuda_sharing import LEAST_ROWS, Sharing
from headrace_engine.kernels.build import default_cache_dir
from headrace_engine.kernels.gpu.prefill_attention import tile_tokens
from headrace_engine.kernels.gpu.prepare import UNIT_BYTES, Message, aligned, prepare
from headrace_engine.kernels.gpu.store import counts, keep_kernels, know_triton
from headrace_engine.model.cuda_decoder import (
    PREFILL_SIZES,
    CudaDecoder,
    MixedBatch,
    padded_tokens,
)
from headrace_engine.model.cuda_weights import CudaWeights, load_weights
from headrace_engine.model.loader.formats import Progress
from headrace_engine.model.opening import open_model
from headrace_engine.state.batch import BatchData, BatchOutput, ResolvedCopy
from headrace_engine.uncollected import uncollected

log = get_logger(__name__)

_SHARED_CLASSES: Final = CLASSES[:2]
"""Classes of which there are also steps that read a common beginning once."""
_LADDER: Final = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256),
    *(320, 384, 448, 512, 640, 768, 896, 1024),
)
"""Rows of captured steps. Besides the largest batch: a step runs at the next of these."""


@dataclass(slots=True)
class _Phase:
    """Buffers that one batch in flight has to itself."""

    host: Tensor
    words: NDArray[np.int32]
    """The same memory as ``host``."""
    chosen: Tensor
    chosen_logprobs: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    done: torch.cuda.Event | None


class CudaExecutor:
    """See Executor."""

    def __init__(
        self, weights: CudaWeights, digest: str = "", ready: Callable[[], None] | None = None
    ) -> None:
        """``digest`` is of the weights' content. ``ready`` returns when kernels are there that another
        process compiles, and is called before the first launch."""
        self._weights = weights
        self._ready = ready
        self._device = weights.embedding.device
        self._on_gpu = self._device.type == "cuda"
        config = weights.config
        kv_dtype = str(weights.embedding.dtype).removeprefix("torch.")
        self._item_bytes = weights.embedding.element_size()
        self._token_bytes = 2 * config.layers * config.kv_heads * config.head_dim * self._item_bytes
        self._shape = ModelShape(
            name=config.name,
            architecture=config.architecture,
            vocabulary=config.vocabulary,
            context_tokens=config.context_tokens,
            weights_version=f"{digest[:32]}-{kv_dtype}-cuda",
            kv_dtype=kv_dtype,
            kv_bytes_per_token=self._token_bytes,
        )
        self._running: deque[tuple[BatchData, _Phase, int]] = deque()
        self._graphs: dict[tuple[int, StepClass, bool], torch.cuda.CUDAGraph] = {}
        """By rows, class, and whether a common beginning is read once."""
        self._plan: MemoryPlan | None = None

    @classmethod
    def load(
        cls,
        model: str,
        *,
        device: str = "cuda",
        dtype: torch.dtype = torch.bfloat16,
        context_tokens: int | None = None,
        sha256: str | None = None,
        cache_dir: Path | None = None,
        progress: Progress | None = None,
        ready: Callable[[], None] | None = None,
    ) -> CudaExecutor:
        """Opens, checks and loads a model. Raises ModelRejected, also when there is no device.

        ``cache_dir`` is where compiled kernels are kept, in a folder ``triton``; the variable
        TRITON_CACHE_DIR wins over it. ``ready`` as for ``CudaExecutor``.
        """
        place = torch.device(device)
        if place.type == "cuda" and not torch.cuda.is_available():
            raise ModelRejected(
                f"no CUDA device is usable here (asked for {device!r}): {_why_no_device()}"
            )
        if place.type == "cuda":
            check_card(torch.cuda.get_device_capability(place))
        keep_kernels((cache_dir or default_cache_dir()) / "triton")
        if place.type == "cuda":
            know_triton()
        opened = open_model(model, sha256=sha256)
        check_config(opened.weights.config, str(opened.path))
        positions = min(
            opened.weights.config.context_tokens,
            context_tokens or opened.weights.config.context_tokens,
        )
        hint = "take a smaller model or a larger card"
        stored = opened.weights.stored_bytes
        with allocating(f"weights ({stored / 2**30:.2f} GiB in the file)", place, hint):
            weights = load_weights(opened.weights, place, dtype, positions, progress)
        return cls(weights, opened.digest, ready)

    @property
    def shape(self) -> ModelShape:
        """See Executor."""
        return self._shape

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens at which the model itself ends a text."""
        return self._weights.config.eos_token_ids

    def describe(self) -> dict[str, str | int]:
        """Device and data type, for the log."""
        name = torch.cuda.get_device_name(self._device) if self._on_gpu else "interpreter"
        return {"device": name, "dtype": self._shape.kv_dtype, "weights_bytes": self._weights.size}

    @property
    def step_tokens(self) -> int:
        """See RoundsItsSteps."""
        return STEP_TOKENS

    def block_bytes(self, block_tokens: int) -> int:
        """See Executor."""
        return -(-self._token_bytes * block_tokens // UNIT_BYTES) * UNIT_BYTES

    @uncollected()
    def cache_room(self, limits: ExecutorLimits, share: float) -> int | None:
        """See MeasuresItsMemory. Runs the largest step once, and frees everything again."""
        if not self._on_gpu:
            return None
        self._await_kernels()
        device = self._device
        torch.cuda.empty_cache()
        weights = torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        block_bytes = self.block_bytes(limits.block_tokens)
        try:
            with allocating("activations", device, "lower max_batch or batch_tokens"):
                self._allocate(replace(limits, region_bytes=block_bytes))
                captures = len(self._captured_steps()) + len(self._prefills.kinds)
                with torch.inference_mode():
                    self._run_largest()
                    torch.cuda.synchronize(device)
                    activations = torch.cuda.max_memory_reserved(device) - weights
                    torch.cuda.empty_cache()
                    held = torch.cuda.memory_reserved(device)
                    torch.cuda.reset_peak_memory_stats(device)
                    self._decode_step(self._inbox, self._ladder[-1], CLASSES[-1])
                    torch.cuda.synchronize(device)
                    replayed = torch.cuda.max_memory_reserved(device) - held
            total, used, own = measured(device)
        finally:
            self.close()
        graphs = replayed + GRAPH_BYTES * captures
        workspace = used - own + LOADED_BYTES
        plan = MemoryPlan(total, share, workspace, weights, activations, graphs)
        plan.check(block_bytes)
        self._plan = plan
        return plan.room

    @uncollected()
    def start(self, limits: ExecutorLimits) -> None:
        """See Executor. Captures every graph; whatever is missing afterwards is an error."""
        if not self._on_gpu:
            self._allocate(limits)
            return
        self._await_kernels()
        if self._plan is not None:
            log.info("memory.planned", gib=self._plan.with_cache(limits.region_bytes).told())
        with allocating(
            f"the KV cache ({limits.region_bytes / 2**30:.2f} GiB) and scratch",
            self._device,
            "lower cache_bytes, gpu_memory_utilization, max_batch or batch_tokens",
        ):
            self._allocate(limits)
            # Steps have a stream of their own, which would not wait for what this one still fills.
            torch.cuda.synchronize(self._device)
        self._stream = torch.cuda.Stream(self._device)
        before = measured(self._device)
        with (
            allocating("graphs", self._device, "lower gpu_memory_utilization or max_batch"),
            torch.cuda.stream(self._stream),
            torch.inference_mode(),
        ):
            self._warm()
            self._stream.synchronize()
            torch.cuda.empty_cache()
            self._capture()
            # The largest is a count of each token of the vocabulary, of a row with penalties.
            keep_pinned(2 * self._weights.config.vocabulary)
        self._stream.synchronize()
        log.info("kernels.ready", found=counts.found, compiled=counts.compiled)
        total, used, own = measured(self._device)
        actual = MemoryPlan(
            total,
            self._plan.share if self._plan is not None else 1.0,
            workspace=before[1] - before[2],
            weights=self._weights.size,
            activations=before[2] - self._weights.size - limits.region_bytes,
            graphs=used - before[1],
            cache=limits.region_bytes,
        )
        log.info("memory.used", gib=actual.told(), torch_gib=round(own / 2**30, 3))
        if self._plan is not None and used > total * self._plan.share:
            log.warning("memory.over_plan", used_gib=round(used / 2**30, 3), share=self._plan.share)

    def _allocate(self, limits: ExecutorLimits) -> None:
        """Everything but what runs once: the region, scratch, sampling state, messages."""
        self._limits = limits
        config = self._weights.config
        blocks = -(-limits.sequence_tokens // limits.block_tokens) + 1
        # Kernels are compiled for a width that is a multiple of 16: one for any context.
        blocks = -(-blocks // 16) * 16
        self._region = torch.zeros(limits.region_bytes, dtype=torch.uint8, device=self._device)
        items = self._region.view(self._weights.embedding.dtype)
        self._table = torch.zeros(
            (limits.slots + 1, blocks), dtype=torch.int64, device=self._device
        )
        self._decoder = CudaDecoder(self._weights, items, self._table)
        self._decoder.allocate(
            tokens=max(limits.batch_tokens, limits.slots),
            rows=limits.slots,
            block_tokens=limits.block_tokens,
        )
        self._tile = tile = tile_tokens(config.heads, config.kv_heads)
        self._prefills = PrefillGraphs(
            self._decoder,
            tile=tile,
            tokens=padded_tokens(max(limits.batch_tokens, limits.slots)),
            rows=limits.slots,
        )
        self._sharing = Sharing(
            limits.slots + 1,
            limits.slots,
            blocks,
            block_tokens=limits.block_tokens,
            heads=config.heads,
            kv_heads=config.kv_heads,
            device=self._device,
        )
        self._sampler = CudaSampler(limits.slots + 1, limits.slots, config.vocabulary, self._device)
        tokens = padded_tokens(max(limits.batch_tokens, limits.slots))
        rows = aligned(limits.slots)
        self._message = Message(rows, aligned(rows + blocks * limits.slots), aligned(tokens))
        tiles = limits.slots + -(-tokens // tile)
        self._attending = max(rows + aligned(2 * tiles), aligned(self._prefills.words))
        words = self._message.size + self._attending + rows
        self._phases = [self._phase(words) for _ in range(limits.phases)]
        # Steps read one inbox; phases take turns in it, in stream order.
        self._inbox = torch.zeros(words, dtype=torch.int32, device=self._device)
        self._prefills.place(
            self._inbox[self._message.size :][: self._prefills.words],
            self._message.updates,
            self._prepare_mixed,
        )
        # A decode step sends only what lies before the updates' capacity is used up.
        self._decode_message = Message(rows, rows, rows)
        self._ladder = [size for size in _LADDER if size < limits.slots] + [limits.slots]

    def submit(self, batch: BatchData) -> None:
        """See Executor."""
        if not self._on_gpu:
            with torch.inference_mode():
                self._submit(batch)
            return
        with torch.cuda.stream(self._stream), torch.inference_mode():
            self._submit(batch)

    def collect(self, batch: BatchData) -> None:
        """See Executor."""
        oldest, phase, width = self._running.popleft()
        assert oldest is batch, "batches are collected in the order they were submitted"
        if phase.done is not None:
            phase.done.synchronize()
        rows = batch.generating
        chosen = phase.chosen.numpy()
        output = BatchOutput(
            tokens=chosen[0, :rows].copy(), failed=chosen[1, :rows].astype(np.bool_)
        )
        if width >= 0:
            output.chosen_logprobs = phase.chosen_logprobs[:rows].numpy().copy()
            output.top_ids = phase.top_ids[:rows, :width].numpy().astype(np.int32)
            output.top_logprobs = phase.top_logprobs[:rows, :width].numpy().copy()
        batch.output = output

    def close(self) -> None:
        """See Executor. Frees everything that ``start`` made; the weights go with the object."""
        if self._on_gpu:
            torch.cuda.synchronize(self._device)
        self._graphs.clear()
        self._running.clear()
        made = "_decoder _prefills _sharing _sampler _phases _table _region _inbox"
        for name in made.split():
            self.__dict__.pop(name, None)
        if self._on_gpu:
            torch.cuda.empty_cache()

    def _submit(self, batch: BatchData) -> None:
        phase = self._phases[batch.phase]
        self._sharing.applied(batch)
        self._copy(batch.restores)
        self._sampler.note(batch.starts)
        step = self._sampler.class_of(batch)
        width = self._sampler.width_of(batch)
        updates = len(batch.table_slots)
        singles = batch.generating == batch.rows == len(batch.tokens)
        if singles and updates <= self._decode_message.updates:
            self._sampler.start(batch.starts)
            self._decode(batch, phase, step)
        else:
            self._mixed(batch, phase, step)
        self._copy(batch.publishes)
        self._send_back(batch.generating, phase, width)
        self._running.append((batch, phase, width))

    def _decode(self, batch: BatchData, phase: _Phase, step: StepClass) -> None:
        rows = batch.rows
        size = self._size_of(rows)
        message = self._decode_message
        self._fill(phase.words, message, batch)
        used = message.host_tokens + rows
        self._inbox[:used].copy_(phase.host[:used], non_blocking=True)
        shared = step in _SHARED_CLASSES and self._sharing.worth(batch, size)
        if self._on_gpu:
            self._graphs[size, step, shared].replay()
        else:
            self._decode_step(self._inbox, size, step, shared=shared)

    def _decode_step(
        self,
        inbox: Tensor,
        size: int,
        step: StepClass,
        *,
        shared: bool = False,
        layers: int | None = None,
    ) -> None:
        message = self._decode_message
        self._prepare(message, inbox, rows=size, longest=1, updates=message.updates)
        beginnings = self._sharing.rows(size) if shared else None
        logits = self._decoder.decode(size, beginnings, layers=layers)
        samples = inbox[message.samples : message.samples + size]
        self._sampler.choose(
            logits, step, self._decoder.every_row[:size], self._decoder.columns.slots, samples
        )

    def _mixed(self, batch: BatchData, phase: _Phase, step: StepClass) -> None:
        message, words, inbox = self._message, phase.words, self._inbox
        self._fill(words, message, batch)
        offsets, lengths = batch.token_offsets, batch.lengths
        generating, tokens = batch.generating, len(batch.tokens)
        single_rows = lengths == 1
        singles = offsets[:-1][single_rows]
        fresh_rows = (batch.begins == 0) & (lengths >= self._decoder.fresh_tokens) & self._on_gpu
        tiles = self._tiles(offsets, lengths, batch.begins, ~(fresh_rows | single_rows))
        kind = None
        if not fresh_rows.any():
            kind = self._prefills.fit(tokens, len(singles), len(tiles))
        at = message.size
        outputs = at + self._attending
        if kind is None:
            single_part, at = _append(words, at, singles)
            tile_part, _ = _append(words, at, tiles.reshape(-1))
        else:
            self._prefills.write(words[at:outputs], kind, singles, tiles)
            single_part = tile_part = slice(0, 0)
        # Also the output layer runs at few sizes, so that its kernels were used before.
        wanted = np.zeros(self._size_of(generating) if generating else 0, np.int32)
        wanted[:generating] = offsets[1 : generating + 1] - 1
        output_part, end = _append(words, outputs, wanted)
        inbox[:end].copy_(phase.host[:end], non_blocking=True)
        bounds = Bounds(batch.rows, int(lengths.max()), len(batch.table_slots))
        if kind is not None:
            hidden = self._prefills.run(kind, bounds)
        else:
            size = self._rounded(tokens)
            longest = max(bounds.longest, size - tokens)
            self._prepare_mixed(size, bounds._replace(longest=longest))
            mixed = MixedBatch(
                singles=inbox[single_part] if len(singles) else None,
                tiles=inbox[tile_part].view(-1, 2) if tiles.size else None,
                fresh=[
                    (int(offsets[row]), int(offsets[row + 1])) for row in np.flatnonzero(fresh_rows)
                ],
            )
            hidden = self._decoder.run(size, mixed)
        # Behind the layers: they need nothing of it, and the device runs them meanwhile.
        self._sampler.start(batch.starts)
        logits = self._decoder.project(hidden, inbox[output_part])[:generating]
        if generating:
            queries = inbox[output_part][:generating]
            samples = inbox[message.samples : message.samples + generating]
            self._sampler.choose(logits, step, queries, self._decoder.columns.slots, samples)

    def _rounded(self, tokens: int) -> int:
        # The interpreter has no kernels to load, and takes its time for each token.
        return padded_tokens(tokens) if self._on_gpu else tokens

    def _size_of(self, rows: int) -> int:
        return next(size for size in self._ladder if size >= rows)

    def _tiles(
        self,
        offsets: NDArray[np.int32],
        lengths: NDArray[np.int32],
        begins: NDArray[np.int32],
        wanted: NDArray[np.bool_],
    ) -> NDArray[np.int32]:
        """int32[tiles, 2]: first token and tokens of each. Those with most before them come first:
        they take longest, and short ones fill the end."""
        step = self._tile
        rows = np.flatnonzero(wanted)
        counts = -(-lengths[rows] // step)
        ends = np.cumsum(counts)
        # Of each tile: its row, and its first token among that row's.
        rows = np.repeat(rows, counts)
        firsts = step * (np.arange(len(rows)) - np.repeat(ends - counts, counts))
        tiles = np.stack([offsets[rows] + firsts, np.minimum(lengths[rows] - firsts, step)], 1)
        return tiles[np.argsort(-(begins[rows] + firsts), kind="stable")].astype(np.int32)

    def _fill(self, words: NDArray[np.int32], message: Message, batch: BatchData) -> None:
        rows, updates, tokens = batch.rows, len(batch.table_slots), len(batch.tokens)
        words[0], words[1], words[2] = rows, updates, tokens
        for place, column in (
            (message.slots, batch.slots),
            (message.begins, batch.begins),
            (message.lengths, batch.lengths),
            (message.offsets, batch.token_offsets[:-1]),
            (message.store_from, batch.store_from),
            (message.samples, batch.sample_indices),
            (message.update_slots, batch.table_slots),
            (message.update_blocks, batch.table_indices),
            (message.update_units, batch.table_offsets // UNIT_BYTES),
            (message.host_tokens, batch.tokens),
        ):
            words[place : place + len(column)] = column
        automatic = np.flatnonzero(batch.autoregressive)
        words[message.host_tokens + batch.token_offsets[automatic]] = -1

    def _prepare_mixed(self, size: int, bounds: Bounds) -> None:
        rows, longest, updates = bounds
        self._prepare(
            self._message, self._inbox, rows=rows, longest=longest, updates=updates, size=size
        )

    def _prepare(
        self,
        message: Message,
        inbox: Tensor,
        *,
        rows: int,
        longest: int,
        updates: int,
        size: int | None = None,
    ) -> None:
        columns = self._decoder.columns
        prepare(
            message,
            inbox,
            self._table,
            self._sampler.last,
            columns.tokens,
            columns.slots,
            columns.positions,
            columns.targets,
            rows=rows,
            longest=longest,
            updates=updates,
            block_tokens=self._limits.block_tokens,
            head_dim=self._weights.config.head_dim,
            item_bytes=self._item_bytes,
            size=size,
        )

    def _send_back(self, rows: int, phase: _Phase, width: int) -> None:
        sampler = self._sampler
        phase.chosen.copy_(sampler.chosen, non_blocking=True)
        if width >= 0:
            phase.chosen_logprobs[:rows].copy_(sampler.chosen_logprobs[:rows], non_blocking=True)
            phase.top_ids[:rows].copy_(sampler.top_ids[:rows], non_blocking=True)
            phase.top_logprobs[:rows].copy_(sampler.top_logprobs[:rows], non_blocking=True)
        if phase.done is not None:
            phase.done.record()

    def _copy(self, copies: list[ResolvedCopy]) -> None:
        for copy in copies:
            source = self._region[copy.source : copy.source + copy.size]
            self._region[copy.target : copy.target + copy.size].copy_(source)

    def _phase(self, words: int) -> _Phase:
        def pinned(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, pin_memory=self._on_gpu)

        rows = self._limits.slots
        host = pinned(words, dtype=torch.int32)
        return _Phase(
            host=host,
            words=host.numpy(),
            chosen=pinned(2, rows, dtype=torch.int32),
            chosen_logprobs=pinned(rows, dtype=torch.float32),
            top_ids=pinned(rows, MAX_TOP_LOGPROBS, dtype=torch.int64),
            top_logprobs=pinned(rows, MAX_TOP_LOGPROBS, dtype=torch.float32),
            done=torch.cuda.Event() if self._on_gpu else None,
        )

    def _warm(self) -> None:
        """Runs every kernel once in every shape class, so that nothing is compiled later: first all
        that ``_capture`` captures, then what runs beside it.

        One layer does, as all of them are of the same shapes. What takes longest to compile is among
        what comes first: see ``cuda_ahead``.
        """
        self._prefills.warm()
        for rows, step, shared in self._captured_steps():
            self._decode_step(self._inbox, rows, step, shared=shared, layers=1)
        self._decoder.warm_up()
        steps = [self._rows_of(size) for size in PREFILL_SIZES]
        # Two tokens of one row fit in any start's step, also where one row cannot have a size's tokens.
        for lengths in [[2], *steps, [1, min(96, self._longest)]]:
            if sum(lengths) <= self._limits.batch_tokens and len(lengths) <= self._limits.slots:
                self._mixed(self._idle_batch(lengths), self._phases[0], CLASSES[0])
                if self._on_gpu:  # the next one writes the message that this one's copy still reads
                    self._stream.synchronize()
        if self._on_gpu:
            # Torch has another kernel that picks the rows of the output layer where they are many.
            most = self._ladder[-1]
            self._decoder.project(self._decoder.normed(most), self._decoder.every_row[:most])
            self._sampler.warm_up()

    def _await_kernels(self) -> None:
        if self._ready is not None:
            self._ready()
            self._ready = None

    def rehearse(self, limits: ExecutorLimits) -> None:
        """Launches everything once that a start would, on torch's "meta" device: nothing is computed,
        and whoever notes the launches knows what a start compiles. See ``cuda_ahead``."""
        assert self._device.type == "meta", "rehearsed with the weights' shapes alone"
        with torch.inference_mode(), shapes_alone():
            self._allocate(limits)
            self._warm()

    def _rows_of(self, tokens: int) -> list[int]:
        """Lengths of the fewest rows that have so many tokens."""
        whole, rest = divmod(tokens, self._longest)
        return [self._longest] * whole + [rest] * (rest > 0)

    @property
    def _longest(self) -> int:
        """Tokens of the longest row: there are no angles for positions beyond."""
        return min(self._limits.sequence_tokens, self._weights.rope.shape[0])

    def _captured_steps(self) -> list[tuple[int, StepClass, bool]]:
        """Rows, class, and whether a common beginning is read once; of all decode steps."""
        shared = [
            (rows, step, True)
            for rows in self._ladder
            for step in _SHARED_CLASSES
            if rows >= LEAST_ROWS
        ]
        return shared + [(rows, step, False) for rows in self._ladder for step in CLASSES]

    def _run_largest(self) -> None:
        """A step of as many tokens as may come, in the fewest rows, and one of as many rows."""
        lengths = self._rows_of(self._limits.batch_tokens)[: self._limits.slots]
        self._mixed(self._idle_batch(lengths), self._phases[0], CLASSES[0])
        self._inbox.zero_()
        self._decode_step(self._inbox, self._ladder[-1], CLASSES[-1])

    def _idle_batch(self, lengths: list[int]) -> BatchData:
        """Rows of the spare slot, which read block 0 and write nothing."""
        rows, spare = len(lengths), self._limits.slots
        nothing = np.zeros(rows, np.int32)
        return BatchData(
            pass_id=0,
            phase=0,
            generating=1,
            slots=np.full(rows, spare, np.int32),
            begins=nothing,
            lengths=np.array(lengths, np.int32),
            autoregressive=np.zeros(rows, np.bool_),
            sample_indices=nothing[:1],
            tokens=np.zeros(sum(lengths), np.int32),
            token_offsets=np.array([0, *accumulate(lengths)], np.int32),
            store_from=np.full(rows, np.iinfo(np.int32).max, np.int32),
            table_slots=np.full(1, spare, np.int32),
            table_indices=nothing[:1],
            table_offsets=np.zeros(1, np.int64),
        )

    def _capture(self) -> None:
        pool = torch.cuda.graph_pool_handle()
        for rows, step, shared in sorted(self._captured_steps(), reverse=True):
            with captured(pool) as graph:
                self._decode_step(self._inbox, rows, step, shared=shared)
            self._graphs[rows, step, shared] = graph
        self._prefills.capture(pool)
        upload([*self._graphs.values(), *self._prefills.graphs.values()], self._stream)


def _why_no_device() -> str:
    """What torch says of it: no driver, one that is too old and its version, no CUDA in the build."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return "torch finds none"


def _append(words: NDArray[np.int32], at: int, column: NDArray[np.int32]) -> tuple[slice, int]:
    """Writes a column at ``at``; returns where it is, and where the next one begins."""
    end = at + len(column)
    words[at:end] = column
    return slice(at, end), aligned(end)
