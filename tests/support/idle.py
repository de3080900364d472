"""Whether an engine holds nothing any more."""

from __future__ import annotations

from support.figures import engine_metrics
from support.served import ServedStack
from support.waiting import wait_until


def blocks_at_hand(stack: ServedStack) -> float:
    """Free blocks and those whose content nobody holds."""
    metrics = engine_metrics(stack)
    return metrics["headrace_engine_blocks_free"] + metrics["headrace_engine_blocks_cached"]


def check_idle(stack: ServedStack) -> None:
    """Waits until nothing runs or waits and every block is at hand; fails with what is left."""

    def left() -> str:
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
        idle = not any(held.values()) and at_hand == blocks
        return "" if idle else f"{held}, {at_hand} of {blocks} blocks at hand"

    wait_until(lambda: not left(), left, every_s=0.1)
