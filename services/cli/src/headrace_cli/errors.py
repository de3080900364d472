"""What the command line tells a person went wrong, and how to mend it."""

from __future__ import annotations


class CommandFailed(Exception):
    """Ends the command with exit code 1; the message is for the person, on standard error.

    ``hint`` says what to do about it.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def no_stack(option: str, variables: str) -> CommandFailed:
    """What a command says that has nothing to talk to."""
    return CommandFailed(
        f"No stack runs here, and no {option} names another.",
        hint=f"Start one with `headrace serve`, or set {variables}.",
    )
