"""What every test run shares."""

from __future__ import annotations

import structlog
from hypothesis import settings

# Timings on a shared machine are noise: no test fails for being slow on one example.
settings.register_profile("headrace", deadline=None, print_blob=True)
settings.load_profile("headrace")

# Plain lines: the default form draws every local variable of a traceback, which takes seconds.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ]
)
