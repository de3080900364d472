"""While an engine starts no garbage is collected: what a start makes stays.

Owner    whoever starts; the collector is the process's
Writes   the interpreter's collector
Next     headrace_engine.loop.garbage

Collections look through all that was made so far, again and again, as long as more is made: a seventh of
the time that the import of torch takes.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Generator[None]:
    """No automatic collection within, by any thread; afterwards as it was."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
