"""Blame: whose sequences the engine thread worked on when something raised.

Owner    engine thread
Writes   nothing
Never    blames anybody for an error that no work on a sequence raised
Rules    loop.failed-batch-ends-all
Next     headrace_engine.loop.lifecycle
"""

from __future__ import annotations

from traceback import walk_tb
from typing import Final

from headrace_engine.cache.block import SequenceBlocks
from headrace_engine.scheduler.commit import Chunk
from headrace_engine.state.sequence import Sequence

NAMES: Final = {"Sequence": "sequence", "SequenceBlocks": "holder", "Chunk": "chunk"}
"""By type, what every function of the core calls the one it works on. Others that it looks at have
other names, and are not blamed."""


def at_work(error: BaseException) -> set[int]:
    """Numbers of the sequences that the functions which raised worked on.

    Read from their variables, so that no pass pays for it. A loop that has gone past a sequence may
    name it too: all of them may be to blame, and none for sure.
    """
    return {
        number
        for frame, _ in walk_tb(error.__traceback__)
        for name in NAMES.values()
        if (number := _number(frame.f_locals.get(name))) is not None
    }


def _number(value: object) -> int | None:
    if isinstance(value, Chunk):
        return value.sequence.number
    if isinstance(value, Sequence | SequenceBlocks):
        return value.number
    return None
