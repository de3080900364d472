"""`transformers` on a folder of safetensors: static batches of at most 8, as it has no scheduler."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache


class TransformersPeer:
    """See worker.Peer."""

    def __init__(self, model: str, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        auto: Any = AutoModelForCausalLM
        self._model = auto.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    def run(self, prompts: list[list[int]], count: int) -> float:
        """See worker.Peer."""
        first = 0.0
        for at in range(0, len(prompts), 8):
            ids = torch.as_tensor(prompts[at : at + 8])
            with torch.inference_mode():
                cache: Any = DynamicCache()
                for step in range(count):
                    out = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                    ids = out.logits[:, -1:].argmax(-1)
                    if step == 0:
                        first = time.perf_counter()
        return first


make = TransformersPeer
