"""Whether an engine holds nothing any more."""

from __future__ import annotations

import time

from support.figures import engine_metrics
from support.served import ServedStack

IDLE_WITHIN_S = 20.0


def blocks_at_hand(stack: ServedStack) -> float:
    """Free blocks and those whose content nobody holds."""
    metrics = engine_metrics(stack)
    return metrics["headrace_engine_blocks_free"] + metrics["headrace_engine_blocks_cached"]


def check_idle(stack: ServedStack) -> None:
    """Waits until nothing runs or waits and every block is at hand; fails with what is left."""
    end = time.monotonic() + IDLE_WITHIN_S
    while True:
        metrics = engine_metrics(stack)
        held = {
            name: metrics[f"headrace_engine_{name}"]
            for name in (
                "sequences_running",
                "sequences_waiting",
                "sequences_retiring",
                "requests_held",
                "blocks",
                "blocks_free",
                "blocks_cached",
            )
        }
        blocks = held.pop("blocks")
        at_hand = held.pop("blocks_free") + held.pop("blocks_cached")
        if not any(held.values()) and at_hand == blocks:
            return
        assert time.monotonic() < end, (held, at_hand, blocks)
        time.sleep(0.1)
