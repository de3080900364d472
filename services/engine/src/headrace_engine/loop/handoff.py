"""Handoff: what a pass tells the outside leaves before the next pass is planned, where there is time.

Owner    engine thread
Writes   nothing
Never    delays a pass for which the executor may have to wait
Rules    loop.outputs-first
Next     headrace_engine.loop.validate
"""

from __future__ import annotations

import time
from collections.abc import Callable

UNHURRIED_S = 0.005
"""Who waited as long as this for a batch, while another was ready to run, is ahead of the device."""
NAP_S = 0.0003
"""Long enough for the signal thread and the io thread after it to send a frame on its way."""


def give_way(
    waited_s: float, *, runs_on: bool, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Lets the threads that bring outputs out go first. The interpreter would change threads by
    itself only after 5 ms, which is longer than it takes to plan a pass: they came after it.

    ``waited_s``: seconds that the loop waited for the batch that is told of. ``runs_on``: the
    executor has another.
    """
    if runs_on and waited_s >= UNHURRIED_S:
        sleep(NAP_S)
