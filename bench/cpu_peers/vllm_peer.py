"""vLLM's CPU build on a folder of safetensors, engine in this process, prefix caching on."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any


class VllmPeer:
    """See worker.Peer."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_CPU_KVCACHE_SPACE="2",
            VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}",
            VLLM_NO_USAGE_STATS="1",
            VLLM_LOGGING_LEVEL="ERROR",
            HF_HUB_OFFLINE="1",
        )
        vllm: Any = importlib.import_module("vllm")
        self._sampling: Any = vllm.SamplingParams
        self._prompt: Any = importlib.import_module("vllm.inputs").TokensPrompt
        self._engine: Any = vllm.LLM(
            model=model,
            dtype=dtype,
            skip_tokenizer_init=True,
            max_model_len=1280,
            max_num_seqs=32,
            max_num_batched_tokens=2048,
        ).llm_engine
        self._next = 0

    def run(self, prompts: list[list[int]], count: int) -> float:
        """See worker.Peer."""
        sampling = self._sampling(
            temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False
        )
        silent: set[str] = set()
        for prompt in prompts:
            self._next += 1
            name = str(self._next)
            silent.add(name)
            self._engine.add_request(name, self._prompt(prompt_token_ids=prompt), sampling)
        last_first = 0.0
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                # An engine may name a request its own way behind ours.
                name = str(output.request_id).split("-")[0]
                if name in silent and output.outputs[0].token_ids:
                    silent.discard(name)
                    last_first = time.perf_counter()
        return last_first


make = VllmPeer
