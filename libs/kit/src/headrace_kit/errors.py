"""Errors of the kit: each means that the process is wrongly set up or wrongly written.

KitError
├── SettingsError     the operator changes an environment variable, a file or a flag
└── AffinityError     an object was touched by a thread that does not own it
"""

from __future__ import annotations


class KitError(Exception):
    """Root of what the kit raises on purpose."""


class SettingsError(KitError):
    """A setting is unknown, malformed, out of bounds or missing.

    ``str()`` is one line a problem, each naming where the value came from. No secret is in it.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class AffinityError(KitError):
    """An object was touched by a thread that does not own it."""
