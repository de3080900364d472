"""EchoExecutor: a device without a model. Its tokens are a function of the prompt, nothing more.

Owner    executor thread
Writes   ``BatchData.output``
Never    reads block contents; sleeps unless asked
Rules    executor.no-device-above
Next     headrace_engine.loop.update
"""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

from headrace_engine.executor.base import ExecutorLimits, ModelShape
from headrace_engine.state.batch import BatchData, BatchOutput, SlotStart

FORCED_BIAS = 50.0
"""A logit bias of at least this chooses its token; at most minus this bans it."""


class EchoExecutor:
    """Repeats the prompt, token by token.

    * mode ``echo``: token i is prompt token i; after the last one it emits the lowest stop
      token, or begins again if there is none or min_new_tokens is not reached.
    * mode ``attempt``: as ``echo``, with ``attempt`` added to every token, so that a test can
      tell which attempt decided a token.

    A bias of 50 or more chooses its token, one of -50 or less bans it. Log probabilities, where
    wanted, are those of a model that is certain.
    """

    def __init__(
        self,
        vocabulary: int,
        mode: Literal["echo", "attempt"] = "echo",
        step_s: float = 0.0,
        *,
        context_tokens: int = 1 << 20,
        kv_bytes_per_token: int = 4,
    ) -> None:
        """``step_s`` is the time one batch takes."""
        self._mode = mode
        self._step_s = step_s
        self._slots: dict[int, SlotStart] = {}
        self._shape = ModelShape(
            name="echo",
            architecture="echo",
            vocabulary=vocabulary,
            context_tokens=context_tokens,
            weights_version="echo-1",
            kv_dtype="none",
            kv_bytes_per_token=kv_bytes_per_token,
        )

    @property
    def shape(self) -> ModelShape:
        """Known at once."""
        return self._shape

    def block_bytes(self, block_tokens: int) -> int:
        """As declared; no such memory is ever allocated."""
        return -(-block_tokens * self._shape.kv_bytes_per_token // 64) * 64

    def start(self, limits: ExecutorLimits) -> None:
        """Nothing to allocate."""

    def submit(self, batch: BatchData) -> None:
        """Takes the batch; ``collect`` runs it."""

    def collect(self, batch: BatchData) -> None:
        """Waits the step time, then sets the tokens."""
        if self._step_s:
            time.sleep(self._step_s)
        for start in batch.starts:
            self._slots[start.slot] = start
        slots: list[int] = batch.slots[: batch.generating].tolist()
        indices: list[int] = batch.sample_indices.tolist()
        tokens = [
            self._token(self._slots[slot], index)
            for slot, index in zip(slots, indices, strict=True)
        ]
        chosen = np.array(tokens, np.int32)
        output = BatchOutput(tokens=chosen, failed=np.zeros(len(tokens), np.bool_))
        wanted = [self._slots[slot].sampling.logprobs for slot in slots]
        if any(w is not None for w in wanted):
            width = min(max(w or 0 for w in wanted), self._shape.vocabulary)
            output.chosen_logprobs = np.zeros(len(tokens), np.float32)
            output.top_ids = (chosen[:, None] + np.arange(width, dtype=np.int32)) % np.int32(
                self._shape.vocabulary
            )
            output.top_logprobs = np.tile(-100.0 * np.arange(width, dtype=np.float32), (len(tokens), 1))  # fmt: skip
        batch.output = output

    def close(self) -> None:
        """Forgets the slots; there is no memory to free."""
        self._slots.clear()

    def _token(self, start: SlotStart, index: int) -> int:
        sampling = start.sampling
        stops = sampling.stop_token_ids
        biases = dict(zip(sampling.bias_ids, sampling.bias_values, strict=True))
        may_stop = index >= sampling.min_new_tokens
        forced = [t for t, b in biases.items() if b >= FORCED_BIAS and (may_stop or t not in stops)]
        if forced:
            return max(forced, key=lambda token: (biases[token], -token))
        if stops and may_stop and index >= start.prompt_tokens:
            return min(stops)
        token = int(start.tokens[index % start.prompt_tokens])
        if self._mode == "attempt":
            token += sampling.attempt
        vocabulary = self._shape.vocabulary
        token %= vocabulary
        for _ in range(vocabulary):
            banned = biases.get(token, 0.0) <= -FORCED_BIAS or (token in stops and not may_stop)
            if not banned:
                break
            token = (token + 1) % vocabulary
        return token
