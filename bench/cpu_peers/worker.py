"""Runs one peer for bench/cpu.py, in the peer's own environment; speaks lines of JSON.

usage: worker.py NAME MODEL DTYPE THREADS

Writes ``{"ready": seconds}`` (from the start of loading to the first token), then for each line
``{"prompts": [[id, ...], ...], "count": n}`` the times of `n` greedy tokens for every prompt, all
submitted at once: ``{"last_first": s, "end": s, "cpu": s}``. Imports nothing of Headrace.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any, Protocol


class Peer(Protocol):
    """What the module of a peer makes of a model."""

    def run(self, prompts: list[list[int]], count: int) -> float:
        """Generates; returns the ``perf_counter`` at which every prompt had its first token."""
        ...


def main() -> None:
    """See the module."""
    name, model, dtype, threads = sys.argv[1:]
    # Libraries print to standard output as they like: the lines of this protocol go elsewhere.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    begin = time.perf_counter()
    module: Any = importlib.import_module(name)
    peer: Peer = module.make(model, dtype, int(threads))
    peer.run([list(range(20, 60))], 2)
    print(json.dumps({"ready": time.perf_counter() - begin}), file=answers)
    for line in sys.stdin:
        asked = json.loads(line)
        begin, cpu = time.perf_counter(), time.process_time()
        last_first = peer.run(asked["prompts"], asked["count"])
        end = time.perf_counter()
        times = {
            "last_first": last_first - begin,
            "end": end - begin,
            "cpu": time.process_time() - cpu,
        }
        print(json.dumps(times), file=answers)


if __name__ == "__main__":
    main()
