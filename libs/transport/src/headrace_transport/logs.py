"""Appends to resume logs: what a log holds already is left out of an entry."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from headrace_contracts.pb.queue_pb2 import LogEntry

from headrace_transport.interface import Logged

Append: TypeAlias = tuple[str, int, LogEntry]
"""Request, attempt, entry."""


async def append_all(
    append: Callable[[str, Sequence[Append]], Awaitable[Sequence[Logged]]],
    engine: str,
    entries: Sequence[Append],
) -> Sequence[Logged]:
    """Appends; entries that overlap their log are cut and appended again, once."""
    logged = list(await append(engine, entries))
    again: dict[int, Append] = {}
    for i, (request, attempt, entry) in enumerate(entries):
        if logged[i].ours:
            rest = beyond(entry, logged[i].lengths)
            if rest is not None:
                again[i] = (request, attempt, rest)
    if again:
        for i, outcome in zip(again, await append(engine, list(again.values())), strict=True):
            logged[i] = outcome
    return logged


def beyond(entry: LogEntry, lengths: Sequence[int]) -> LogEntry | None:
    """What of an entry lies beyond ``lengths`` tokens per choice; None: nothing, or a gap.

    A terminal row of a choice stays with its row, and is lost with a row that is held already:
    ``finish`` brings it.
    """
    rest = LogEntry(version=entry.version, attempt=entry.attempt, frame_id=entry.frame_id)
    grown = list(lengths)
    rows: dict[int, tuple[int, int]] = {}
    at = 0
    for row, choice in enumerate(entry.choices):
        first, count = entry.firsts[row], entry.counts[row]
        if choice >= len(grown) or first > grown[choice]:
            return None
        held = min(grown[choice] - first, count)
        if held < count:
            rows[row] = (len(rest.choices), held)
            rest.choices.append(choice)
            rest.firsts.append(first + held)
            rest.counts.append(count - held)
            rest.tokens.extend(entry.tokens[at + held : at + count])
            grown[choice] = first + count
        at += count
    _copy_side_columns(entry, rest, rows)
    return rest if rest.choices else None


def _copy_side_columns(entry: LogEntry, rest: LogEntry, rows: dict[int, tuple[int, int]]) -> None:
    for finish in entry.finishes:
        if finish.row in rows:
            copy = rest.finishes.add()
            copy.CopyFrom(finish)
            copy.row = rows[finish.row][0]
    for logprobs in entry.logprobs:
        if logprobs.row in rows:
            row, held = rows[logprobs.row]
            copied = rest.logprobs.add(row=row, width=logprobs.width)
            copied.chosen.extend(logprobs.chosen[held:])
            copied.top_ids.extend(logprobs.top_ids[held * logprobs.width :])
            copied.top_values.extend(logprobs.top_values[held * logprobs.width :])
