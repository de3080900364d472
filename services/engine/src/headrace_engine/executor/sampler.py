"""Logits to tokens: penalties, bias, bans, temperature, filters, noise, logprobs.

Owner    executor thread
Writes   its per-slot state: parameters, counts, last tokens
Never    looks at a row's neighbours: a row's token depends on its own logits and state alone
Rules    sampling.batch-invariant
Next     headrace_engine.executor.cpu

Order: penalties and bias on raw logits, bans, temperature, top-k, top-p, min-p, then the
largest of (scaled logit + Gumbel noise). The noise of a token is a hash of (seed, choice, index
of the sample, token id), so a token is the same whatever shares its batch, and again after the
sequence moved to another engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace_engine.state.batch import BatchOutput, SlotSampling, SlotStart

Row = NDArray[np.float32]

_MASK64: Final = (1 << 64) - 1
_LEAST_TEMPERATURE: Final = 1e-5
"""Logits that are divided by less outgrow float32. The noise is below 17, so that at this one already
the most likely token is chosen wherever it leads by 0.0002."""
_MOST: Final = 1e30
"""Of a logit divided by the temperature: far from what float32 holds, and noise is nothing beside it."""
_TOP_P_FIRST_LOOK: Final = 1024
"""Most likely tokens that usually hold top_p of the mass; all are sorted when they do not."""


class SamplingKernels(Protocol):
    """The walks over a whole vocabulary. ``NativeLibrary`` has them, and NumpySampling does."""

    def greedy(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Index of the largest of each row (the first of equals), and whether all are finite."""
        ...

    def gumbel(self, key: tuple[int, int], count: int) -> NDArray[np.float32]:
        """``float32[count]`` noise of token ids ``0 .. count`` under a key of two words."""
        ...


class NumpySampling:
    """The twin of the native walks."""

    def greedy(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """See SamplingKernels."""
        finite: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(logits), axis=1)
        return logits.argmax(axis=1).astype(np.int32), finite

    def gumbel(self, key: tuple[int, int], count: int) -> NDArray[np.float32]:
        """See SamplingKernels."""
        return gumbel(np.arange(count, dtype=np.uint32), key)


@dataclass(slots=True)
class _Slot:
    sampling: SlotSampling
    choice: int
    stop_ids: NDArray[np.int64]
    bias_ids: NDArray[np.int64]
    bias_values: NDArray[np.float32]
    penalized: bool
    plain_greedy: bool
    """Temperature 0 and nothing that changes logits, bans aside."""


class Sampler:
    """Per-slot sampling state for ``slots`` sequences."""

    def __init__(self, slots: int, vocabulary: int, kernels: SamplingKernels) -> None:
        self._kernels = kernels
        self.last_tokens: NDArray[np.int32] = np.zeros(slots, np.int32)
        self._vocabulary = vocabulary
        self._slots: list[_Slot | None] = [None] * slots
        # The system commits these pages only for slots that ever use a penalty.
        self._generated = np.zeros((slots, vocabulary), np.uint16)
        self._prompt = np.zeros((slots, vocabulary), np.bool_)

    def start(self, start: SlotStart) -> None:
        """Resets the slot for a sequence that enters it."""
        sampling = computable(start.sampling)
        penalized = (
            sampling.presence_penalty != 0
            or sampling.frequency_penalty != 0
            or sampling.repetition_penalty != 1
        )
        self._slots[start.slot] = _Slot(
            sampling=sampling,
            choice=start.choice,
            stop_ids=np.array(sorted(sampling.stop_token_ids), np.int64),
            bias_ids=np.array(sampling.bias_ids, np.int64),
            bias_values=np.array(sampling.bias_values, np.float32),
            penalized=penalized,
            plain_greedy=sampling.temperature == 0 and not penalized and not sampling.bias_ids,
        )
        if len(start.tokens):
            self.last_tokens[start.slot] = start.tokens[-1]
        if penalized:
            prompt, generated = np.split(start.tokens, [start.prompt_tokens])
            self._prompt[start.slot] = False
            self._prompt[start.slot, prompt] = True
            self._generated[start.slot] = np.bincount(generated, minlength=self._vocabulary)

    def sample(
        self, slots: NDArray[np.int32], indices: NDArray[np.int32], logits: NDArray[np.float32]
    ) -> BatchOutput:
        """One token for each row of ``logits[rows, vocabulary]``; remembers it as the last one."""
        states = [self._state(int(slot)) for slot in slots]
        tokens, finite = self._kernels.greedy(logits)
        failed = ~finite
        output = BatchOutput(tokens=tokens, failed=failed)
        for row, state in enumerate(states):
            slot, index = int(slots[row]), int(indices[row])
            banned = index < state.sampling.min_new_tokens and len(state.stop_ids) > 0
            if failed[row]:
                tokens[row] = 0
            elif banned or not state.plain_greedy:
                chosen = self._choose(state, slot, index, logits[row])
                tokens[row], failed[row] = chosen or 0, chosen is None
            if state.penalized:
                self._generated[slot, tokens[row]] += 1
        self.last_tokens[slots] = tokens
        self._add_logprobs(output, states, logits)
        return output

    def _state(self, slot: int) -> _Slot:
        state = self._slots[slot]
        assert state is not None, f"slot {slot} samples before it was started"
        return state

    def _choose(self, state: _Slot, slot: int, index: int, raw: Row) -> int | None:
        """None where what changes the logits leaves no finite one as the largest."""
        sampling = state.sampling
        logits = raw.copy()
        if state.penalized:
            self._penalize(logits, slot, sampling)
        logits[state.bias_ids] += state.bias_values
        if index < sampling.min_new_tokens:
            logits[state.stop_ids] = -np.inf
        highest = logits.max()
        if not np.isfinite(highest):
            return None
        if sampling.temperature == 0 or abs(highest) > _MOST * sampling.temperature:
            return int(logits.argmax())
        logits /= np.float32(sampling.temperature)
        kept = filtered(logits, sampling.top_k, sampling.top_p, sampling.min_p)
        key = noise_key(sampling.seed, state.choice, index)
        if kept is None:
            return int((logits + self._kernels.gumbel(key, len(logits))).argmax())
        return int(kept[(logits[kept] + gumbel(kept.astype(np.uint32), key)).argmax()])

    def _penalize(self, logits: Row, slot: int, sampling: SlotSampling) -> None:
        counts = self._generated[slot]
        generated = counts > 0
        if sampling.repetition_penalty != 1:
            seen = generated | self._prompt[slot]
            penalty = np.float32(sampling.repetition_penalty)
            with np.errstate(over="ignore", divide="ignore"):  # infinite: the row fails
                logits[seen] = np.where(
                    logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty
                )
        logits -= np.float32(sampling.frequency_penalty) * counts.astype(np.float32)
        logits[generated] -= np.float32(sampling.presence_penalty)

    def _add_logprobs(
        self, output: BatchOutput, states: list[_Slot], logits: NDArray[np.float32]
    ) -> None:
        wanted = [
            (row, state.sampling.logprobs)
            for row, state in enumerate(states)
            if state.sampling.logprobs is not None
        ]
        if not wanted:
            return
        width = min(max(count for _, count in wanted), self._vocabulary)
        output.chosen_logprobs = np.zeros(len(states), np.float32)
        output.top_ids = np.zeros((len(states), width), np.int32)
        output.top_logprobs = np.zeros((len(states), width), np.float32)
        for row, count in wanted:
            if output.failed[row]:
                continue
            values = logits[row]
            total = log_sum_exp(values)
            output.chosen_logprobs[row] = values[output.tokens[row]] - total
            ids = most_likely(values, count)
            output.top_ids[row, : len(ids)] = ids
            output.top_logprobs[row, : len(ids)] = values[ids] - total


def computable(sampling: SlotSampling) -> SlotSampling:
    """Without a temperature that no kernel can divide by: the most likely token is chosen then."""
    if sampling.temperature < _LEAST_TEMPERATURE:
        return sampling._replace(temperature=0.0)
    return sampling


def log_sum_exp(values: Row) -> np.float32:
    """Logarithm of the sum of exponentials, without overflow."""
    highest = values.max()
    return np.float32(highest + np.log(np.exp(values - highest).sum(dtype=np.float64)))


def most_likely(values: Row, count: int) -> NDArray[np.int64]:
    """Indices of the ``count`` largest, largest first; equal ones by index."""
    if count == 0:
        return np.zeros(0, np.int64)
    if count < len(values):
        # Everything at least as large as the count-th, so that ties are cut by index, not by luck.
        bound = np.partition(values, len(values) - count)[len(values) - count]
        candidates = np.flatnonzero(values >= bound)
    else:
        candidates = np.arange(len(values))
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:count]]


def filtered(scaled: Row, top_k: int, top_p: float, min_p: float) -> NDArray[np.int64] | None:
    """Token ids that the filters leave, or None when no filter is on. Never empty."""
    limited = 0 < top_k < len(scaled)
    if not limited and top_p >= 1 and min_p <= 0:
        return None
    if limited:
        kept = most_likely(scaled, top_k)
        weights = np.exp(scaled[kept] - scaled[kept[0]])
    elif top_p < 1:
        return _without_top_k(scaled, top_p, min_p)
    else:
        kept = np.arange(len(scaled))
        weights = np.exp(scaled - scaled.max())
    if top_p < 1:
        count = _mass_count(weights, float(weights.sum(dtype=np.float64)), top_p)
        assert count is not None  # all of the mass is here
        kept, weights = kept[:count], weights[:count]
    return kept[weights >= min_p] if min_p > 0 else kept


def _without_top_k(scaled: Row, top_p: float, min_p: float) -> NDArray[np.int64]:
    total = float(np.exp(scaled - scaled.max()).sum(dtype=np.float64))
    for look in (min(_TOP_P_FIRST_LOOK, len(scaled)), len(scaled)):
        kept = most_likely(scaled, look)
        weights = np.exp(scaled[kept] - scaled[kept[0]])
        count = _mass_count(weights, total, top_p)
        if count is not None:
            kept, weights = kept[:count], weights[:count]
            break
    return kept[weights >= min_p] if min_p > 0 else kept


def _mass_count(weights: Row, total: float, top_p: float) -> int | None:
    """How many of the descending weights make ``top_p`` of the total; None when all do not."""
    before = np.concatenate([[0.0], np.cumsum(weights, dtype=np.float64)])
    if before[-1] < top_p * total and not np.isclose(before[-1], total):
        return None
    return max(1, int((before[:-1] < top_p * total).sum()))


def gumbel(ids: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.float32]:
    """``float32[ids]`` Gumbel noise of each token id; the same on every machine to rounding."""
    first, second = key
    bits = ids * np.uint32(0x9E3779B1) + np.uint32(first)
    bits = _mix(_mix(bits) + np.uint32(second))
    # 23 bits and a half: exact in float32 and never 0 or 1.
    uniform = ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-23)
    return -np.log(-np.log(uniform))


def noise_key(seed: int, choice: int, index: int) -> tuple[int, int]:
    """Two 32-bit words that name one sample of one choice."""
    key = _splitmix(_splitmix(seed & _MASK64) ^ ((choice & 0xFFFFFFFF) << 32 | index & 0xFFFFFFFF))
    return key & 0xFFFFFFFF, key >> 32


def _mix(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B)
    return bits ^ (bits >> np.uint32(16))


def _splitmix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
