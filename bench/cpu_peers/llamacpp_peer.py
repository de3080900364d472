"""llama.cpp on the GGUF file as it is, through the plain calls of its Python binding.

One context, a sequence for each prompt. What all prompts share at their beginning is computed once
and copied between sequences, which is how a program shares a prefix there.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

CONTEXT = 32 * 640
BATCH = 1024


class LlamaCppPeer:
    """See worker.Peer."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        assert dtype == "packed", "the file's own weights"
        self._lib: Any = importlib.import_module("llama_cpp")
        lib = self._lib
        lib.llama_backend_init()
        parameters = lib.llama_model_default_params()
        self._model = lib.llama_model_load_from_file(model.encode(), parameters)
        settings = lib.llama_context_default_params()
        settings.n_ctx = CONTEXT
        settings.n_batch = settings.n_ubatch = BATCH
        settings.n_seq_max = 32
        settings.kv_unified = True
        settings.n_threads = settings.n_threads_batch = threads
        self._context = lib.llama_init_from_model(self._model, settings)
        self._vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._numpy: Any = importlib.import_module("numpy")
        self._batch = lib.llama_batch_init(BATCH, 0, 1)

    def _decode(self, items: list[tuple[int, int, int, bool]]) -> None:
        """Runs (token, position, sequence, whether its logits are wanted)."""
        batch = self._batch
        batch.n_tokens = len(items)
        for i, (token, position, sequence, wanted) in enumerate(items):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        code = self._lib.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode gave {code}")

    def _best(self, row: int) -> int:
        logits = self._lib.llama_get_logits_ith(self._context, row)
        return int(self._numpy.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())

    def run(self, prompts: list[list[int]], count: int) -> float:
        """See worker.Peer."""
        memory = self._lib.llama_get_memory(self._context)
        self._lib.llama_memory_clear(memory, True)
        shared = 0
        if len(prompts) > 1:
            shared = next(
                (i for i, ids in enumerate(zip(*prompts, strict=False)) if len(set(ids)) > 1),
                min(map(len, prompts)),
            )
            if shared:
                self._decode([(t, i, 0, False) for i, t in enumerate(prompts[0][:shared])])
            for sequence in range(1, len(prompts)):
                self._lib.llama_memory_seq_cp(memory, 0, sequence, 0, shared)
        own = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
            if position >= shared
        ]
        tokens = [0] * len(prompts)
        for at in range(0, len(own), BATCH):
            part = own[at : at + BATCH]
            self._decode(part)
            for row, (_, _, sequence, wanted) in enumerate(part):
                if wanted:
                    tokens[sequence] = self._best(row)
        first = time.perf_counter()
        for step in range(count - 1):
            items = [(t, len(prompts[s]) + step, s, True) for s, t in enumerate(tokens)]
            self._decode(items)
            tokens = [self._best(row) for row in range(len(prompts))]
        return first


make = LlamaCppPeer
