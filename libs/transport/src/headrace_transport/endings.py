"""Ends that no engine decides: cancelled or expired in the queue, dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import CancelMark, Frame, LogEntry, RowFinish, Usage


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request ends without being run further."""

    reason: FinishReason
    code: Code | None = None
    message: str = ""
    dead_letter: str = ""
    """Why it goes to the dead letters; empty: it does not."""


EXPIRED = Ending(
    FinishReason.DEADLINE, Code.DEADLINE_EXCEEDED, "the deadline passed before the request ran"
)


def reason_of(mark: CancelMark) -> FinishReason:
    """Why a mark ends what it names. A mark carries no version: a reason that is not known here, or
    none, still says that somebody wants it over.
    """
    try:
        return FinishReason(mark.reason)
    except ValueError:
        return FinishReason.CANCELLED


def ending_of(mark: CancelMark) -> Ending:
    """What a mark on a whole request makes of it."""
    reason = reason_of(mark)
    if reason is FinishReason.DEADLINE:
        return EXPIRED
    return Ending(reason, Code.CANCELLED if reason is FinishReason.CANCELLED else None)


_SEVERITY = (
    FinishReason.STOP,
    FinishReason.LENGTH,
    FinishReason.DEADLINE,
    FinishReason.CANCELLED,
    FinishReason.ERROR,
)


def worst(reasons: Iterable[FinishReason]) -> FinishReason:
    """One reason for what has several choices: an error before a cancel before an end."""
    return max(reasons, key=_SEVERITY.index)


def finish_row(row: int, ending: Ending, usage: Usage) -> RowFinish:
    """A terminal row."""
    return RowFinish(
        row=row,
        reason=f"FINISH_REASON_{ending.reason.name}",
        code=f"CODE_{ending.code.name}" if ending.code is not None else None,
        message=ending.message,
        usage=usage,
    )


def terminal_frame(
    *, slot: int, attempt: int, lengths: Sequence[int], ending: Ending, prompt_tokens: int
) -> Frame:
    """A frame that ends every choice; ``lengths`` are the choices' generated tokens."""
    frame = Frame(version=WIRE_VERSION)
    for choice, length in enumerate(lengths):
        frame.slots.append(slot + choice)
        frame.attempts.append(attempt)
        frame.firsts.append(length)
        frame.counts.append(0)
        frame.logged.append(length)
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=length)
        frame.finishes.append(finish_row(choice, ending, usage))
    return frame


def terminal_entry(frame: Frame, *, slot: int, attempt: int) -> LogEntry:
    """The log entry that says what a terminal frame says."""
    entry = LogEntry(version=WIRE_VERSION, attempt=attempt)
    entry.choices.extend(row - slot for row in frame.slots)
    entry.firsts.extend(frame.firsts)
    entry.counts.extend(frame.counts)
    for finish in frame.finishes:
        entry.finishes.append(finish)
    return entry


def total_usage(finishes: Sequence[RowFinish], *, prompt_tokens: int) -> Usage:
    """Usage of a request: the prompt once, what was generated over all choices."""
    usage = Usage(prompt_tokens=prompt_tokens)
    for finish in finishes:
        row = finish.usage
        usage.completion_tokens += row.completion_tokens
        usage.cached_tokens = max(usage.cached_tokens, row.cached_tokens)
        usage.engine_queue_us = max(usage.engine_queue_us, row.engine_queue_us)
        usage.prefill_us += row.prefill_us
        usage.decode_us += row.decode_us
        usage.preemptions += row.preemptions
    return usage
