"""Sampling state of slots on the device, and the four classes of step that use it.

Owner    executor thread
Writes   its device tensors and host flags; the rows' chosen tokens
Never    reads a device value on the host
Rules    sampling.batch-invariant
Next     headrace_engine.executor.cuda

A step's class is the least that its rows need: greedy, sampled, adjusted (penalties, bias, bans),
and whether anybody wants logprobs. In a higher class a plain row runs on neutral values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from headrace_contracts.limits import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, MAX_TOP_LOGPROBS
from numpy.typing import NDArray
from torch import Tensor

from headrace_engine.executor.sampler import computable
from headrace_engine.kernels.gpu.adjust import MOST, adjust, count
from headrace_engine.kernels.gpu.argmax import chunks_of, greedy
from headrace_engine.kernels.gpu.sample import sample
from headrace_engine.state.batch import BatchData, SlotSampling, SlotStart

_COLUMNS: Final = 8
"""Of each kind of parameter that every slot has."""
_FLOATS: Final = slice(_COLUMNS, _COLUMNS + _COLUMNS // 2)
"""What a start sends of a slot, in words of 64 bits: first its integers, then two floats a word, its
last token and its number."""
_LAST, _SLOT = _FLOATS.stop, _FLOATS.stop + 1
_WORDS: Final = _SLOT + 1


class StepClass(NamedTuple):
    """What a step's sampling has to be able to do."""

    adjusted: bool
    sampled: bool
    logprobs: bool


CLASSES: Final = (
    StepClass(adjusted=False, sampled=False, logprobs=False),
    StepClass(adjusted=False, sampled=True, logprobs=False),
    StepClass(adjusted=True, sampled=True, logprobs=False),
    StepClass(adjusted=True, sampled=True, logprobs=True),
)
"""The classes that are captured; the first that covers a step is used."""


class CudaSampler:
    """Per-slot parameters on the device; ``slots`` is one more than may be resident (the spare)."""

    def __init__(self, slots: int, rows: int, vocabulary: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._vocabulary = vocabulary
        self._device = device
        self.last = zeros(slots, dtype=torch.int32)
        self._floats = zeros(slots, _COLUMNS, dtype=torch.float32)
        self._words = zeros(slots, _COLUMNS, dtype=torch.int64)
        self._generated = zeros(slots, vocabulary, dtype=torch.int16)
        self._prompted = zeros(slots, vocabulary, dtype=torch.uint8)
        self._bias_ids = zeros(slots, MAX_LOGIT_BIAS, dtype=torch.int32)
        self._bias_values = zeros(slots, MAX_LOGIT_BIAS, dtype=torch.float32)
        self._stop_ids = zeros(slots, MAX_STOP_TOKEN_IDS, dtype=torch.int32)
        chunks = chunks_of(vocabulary)
        self._scratch = (
            zeros(rows, chunks, dtype=torch.float32),
            zeros(rows, chunks, dtype=torch.int32),
        )
        self.chosen = zeros(2, rows, dtype=torch.int32)
        """int32[2, rows]: tokens, then whether the row failed."""
        self.chosen_logprobs = zeros(rows, dtype=torch.float32)
        self.top_logprobs = zeros(rows, MAX_TOP_LOGPROBS, dtype=torch.float32)
        self.top_ids = zeros(rows, MAX_TOP_LOGPROBS, dtype=torch.int64)
        self._sampled = np.zeros(slots, np.bool_)
        self._adjusted = np.zeros(slots, np.bool_)
        self._logprobs = np.full(slots, -1, np.int32)
        self._floats[:, 5] = 1.0

    def note(self, starts: Sequence[SlotStart]) -> None:
        """Takes over what the class of a step depends on. Before ``class_of``."""
        for start in starts:
            sampling, slot = computable(start.sampling), start.slot
            self._sampled[slot] = sampling.temperature > 0
            self._adjusted[slot] = (
                _penalizes(sampling)
                or bool(sampling.bias_ids)
                or (sampling.min_new_tokens > 0 and bool(sampling.stop_token_ids))
            )
            wanted = -1 if sampling.logprobs is None else sampling.logprobs
            self._logprobs[slot] = min(wanted, self._vocabulary)

    def start(self, starts: Sequence[SlotStart]) -> None:
        """Loads the parameters of slots, once a sequence and activation. Before ``choose``.

        What every slot has goes in one copy; what few have, slot by slot.
        """
        if not starts:
            return
        packed = np.zeros((len(starts), _WORDS), np.int64)
        floats = packed[:, _FLOATS].view(np.float32)
        for row, start in enumerate(starts):
            sampling = computable(start.sampling)
            stops = self._start_rare(start, sampling)
            floats[row, :6] = (
                sampling.temperature,
                sampling.top_p,
                sampling.min_p,
                sampling.presence_penalty,
                sampling.frequency_penalty,
                sampling.repetition_penalty,
            )
            seed = sampling.seed & (2**64 - 1)
            packed[row, :6] = (
                seed - 2**64 if seed >= 2**63 else seed,
                start.choice,
                sampling.top_k,
                sampling.min_new_tokens,
                stops,
                len(sampling.bias_ids),
            )
            packed[row, _SLOT] = start.slot
            if len(start.tokens):
                packed[row, _LAST] = start.tokens[-1]
        sent = self._sent(packed)
        slots = sent[:, _SLOT]
        self._words.index_copy_(0, slots, sent[:, :_COLUMNS])
        self._floats.index_copy_(0, slots, sent[:, _FLOATS].view(torch.float32))
        self.last.index_copy_(0, slots, sent.view(torch.int32)[:, 2 * _LAST])

    def warm_up(self) -> None:
        """Starts the spare slot, so that torch's kernels for it are loaded: the first use of one waits
        until the device stands still."""
        nothing = SlotSampling(
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            repetition_penalty=1.0,
            bias_ids=(),
            bias_values=(),
            seed=0,
            stop_token_ids=frozenset(),
            min_new_tokens=0,
            logprobs=None,
            attempt=1,
        )
        spare = self.last.shape[0] - 1
        self.start([SlotStart(spare, np.zeros(1, np.int32), 1, 0, nothing)])

    def _start_rare(self, start: SlotStart, sampling: SlotSampling) -> int:
        """Bias, bans and penalties of a slot. Returns how many tokens stop it."""
        slot = start.slot
        stops = sorted(sampling.stop_token_ids)[:MAX_STOP_TOKEN_IDS]
        if sampling.bias_ids:
            count = len(sampling.bias_ids)
            self._put(self._bias_ids[slot, :count], np.array(sampling.bias_ids, np.int32))
            self._put(self._bias_values[slot, :count], np.array(sampling.bias_values, np.float32))
        if stops:
            self._put(self._stop_ids[slot, : len(stops)], np.array(stops, np.int32))
        if _penalizes(sampling):
            prompt, generated = np.split(start.tokens, [start.prompt_tokens])
            counts = np.bincount(generated, minlength=self._vocabulary).clip(max=MOST)
            self._put(self._generated[slot], counts.astype(np.int16))
            seen = np.zeros(self._vocabulary, np.uint8)
            seen[prompt] = 1
            self._put(self._prompted[slot], seen)
        return len(stops)

    def class_of(self, batch: BatchData) -> StepClass:
        """The least class that serves every generating row."""
        slots = batch.slots[: batch.generating]
        adjusted, sampled = bool(self._adjusted[slots].any()), bool(self._sampled[slots].any())
        logprobs = bool((self._logprobs[slots] >= 0).any())
        for candidate in CLASSES:
            if (
                candidate.adjusted >= adjusted
                and candidate.sampled >= sampled
                and candidate.logprobs >= logprobs
            ):
                return candidate
        raise AssertionError("the last class serves everything")

    def width_of(self, batch: BatchData) -> int:
        """Candidates wanted by the row that wants most, or -1 when nobody wants logprobs."""
        slots = batch.slots[: batch.generating]
        return int(self._logprobs[slots].max(initial=-1))

    def choose(
        self, logits: Tensor, step: StepClass, queries: Tensor, slots: Tensor, samples: Tensor
    ) -> None:
        """Fills ``chosen`` (and logprobs) for the rows of ``logits``, which it may change."""
        rows = logits.shape[0]
        chosen, failed = self.chosen[0, :rows], self.chosen[1, :rows]
        raw = logits
        if step.logprobs and step.adjusted:
            raw = logits.clone()
        if step.adjusted:
            adjust(
                logits,
                queries,
                slots,
                samples,
                self._floats,
                self._words,
                (self._generated, self._prompted),
                (self._bias_ids, self._bias_values),
                self._stop_ids,
            )
        if step.sampled:
            sample(
                logits,
                queries,
                slots,
                samples,
                self._floats,
                self._words,
                chosen,
                failed,
                self.last,
            )
        else:
            greedy(logits, self._scratch, queries, slots, chosen, failed, self.last)
        if step.adjusted:
            count(chosen, queries, slots, self._generated)
        if step.logprobs:
            total = torch.logsumexp(raw, 1, keepdim=True)
            picked = torch.gather(raw, 1, chosen[:, None].long())
            self.chosen_logprobs[:rows].copy_((picked - total)[:, 0])
            most = min(MAX_TOP_LOGPROBS, self._vocabulary)
            values, ids = torch.topk(raw, most, 1)
            self.top_logprobs[:rows, :most].copy_(values - total)
            self.top_ids[:rows, :most].copy_(ids)

    def _put(self, target: Tensor, values: NDArray[Any]) -> None:
        target.copy_(self._sent(values), non_blocking=True)

    def _sent(self, values: NDArray[Any]) -> Tensor:
        """``values`` on the device, in stream order. Pinned memory goes back when it was read."""
        source = torch.from_numpy(values)  # pyright: ignore[reportUnknownMemberType]
        if self._device.type != "cuda":
            return source
        return source.pin_memory().to(self._device, non_blocking=True)


def _penalizes(sampling: SlotSampling) -> bool:
    return (
        sampling.presence_penalty != 0
        or sampling.frequency_penalty != 0
        or sampling.repetition_penalty != 1
    )
