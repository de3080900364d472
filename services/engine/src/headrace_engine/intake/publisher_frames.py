"""Frames and log entries from columns: the only places that spell them.

Owner    io thread
Writes   nothing; builds
Never    makes an object per token, except where logprobs were asked for
Rules    outputs.flat
Next     headrace_engine.intake.publisher
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import Frame, LogEntry, RowFinish, RowStart, Usage
from headrace_contracts.pb.queue_pb2 import RowLogprobs as LogprobsMessage

from headrace_engine.intake.book import RowBook
from headrace_engine.intake.columns import Int64, Rows, spans
from headrace_engine.intake.held import Held
from headrace_engine.state.outputs import RowEnd, RowLogprobs, SequenceUsage


def frames_of(rows: Rows, places: Int64, book: RowBook, engine: str) -> dict[str, Frame]:
    """One frame for each gateway of ``rows``; ``places`` are their rows in the book."""
    gateways = book.gateways[places]
    first = int(gateways[0])
    if bool((gateways == first).all()):
        return {book.gateway_names[first]: _frame(rows, places, None, book, engine)}
    frames: dict[str, Frame] = {}
    for gateway in np.unique(gateways).tolist():
        inside = np.flatnonzero(gateways == gateway)
        frames[book.gateway_names[gateway]] = _frame(rows, places, inside, book, engine)
    return frames


def _frame(rows: Rows, places: Int64, inside: Int64 | None, book: RowBook, engine: str) -> Frame:
    at = places
    if inside is None:
        firsts, counts, tokens = rows.firsts, rows.counts, rows.tokens
    else:
        offsets = np.cumsum(rows.counts, dtype=np.int64) - rows.counts
        firsts, counts = rows.firsts[inside], rows.counts[inside]
        tokens = rows.tokens[spans(offsets[inside], counts)]
        at = places[inside]
    frame = Frame(
        version=WIRE_VERSION,
        engine=engine,
        pass_id=rows.pass_id,
        slots=book.slots[at].tolist(),
        attempts=book.attempts[at].tolist(),
        firsts=firsts.tolist(),
        counts=counts.tolist(),
        tokens=tokens.tolist(),
        logged=book.logged[at].tolist(),
    )
    if not (rows.ends or rows.starts or rows.logprobs):
        return frame  # most of them
    position = np.full(len(places), -1, dtype=np.int64)
    position[slice(None) if inside is None else inside] = np.arange(len(at))
    frame.finishes.extend(
        row_finish(end, int(position[row])) for row, end in rows.ends if position[row] >= 0
    )
    frame.starts.extend(
        RowStart(
            row=int(position[row]),
            prompt_tokens=start.prompt_tokens,
            cached_tokens=start.cached_tokens,
            engine_queue_us=_microseconds(start.queue_s),
        )
        for row, start in rows.starts
        if position[row] >= 0
    )
    parts: dict[int, list[RowLogprobs]] = {}
    for row, item in rows.logprobs:
        if position[row] >= 0:
            parts.setdefault(int(position[row]), []).append(item)
    frame.logprobs.extend(logprobs_message(row, items) for row, items in parts.items())
    return frame


def logprobs_message(row: int, items: Sequence[RowLogprobs]) -> LogprobsMessage:
    """The logprobs of consecutive tokens of one row."""
    return LogprobsMessage(
        row=row,
        width=items[0].top_ids.shape[1],
        chosen=np.concatenate([item.chosen for item in items]).tolist(),
        top_ids=np.concatenate([item.top_ids.ravel() for item in items]).tolist(),
        top_values=np.concatenate([item.top_values.ravel() for item in items]).tolist(),
    )


def last_logprobs(items: Sequence[RowLogprobs], tokens: int) -> list[RowLogprobs]:
    """Those of ``items`` that belong to the last ``tokens`` tokens."""
    kept: list[RowLogprobs] = []
    for item in reversed(items):
        count = min(tokens, len(item.chosen))
        if count:
            first = len(item.chosen) - count
            kept.append(
                RowLogprobs(
                    item.row, item.chosen[first:], item.top_ids[first:], item.top_values[first:]
                )
            )
        tokens -= count
    return kept[::-1]


def row_finish(end: RowEnd, row: int) -> RowFinish:
    """The terminal status of ``row``."""
    return RowFinish(
        row=row,
        reason=f"FINISH_REASON_{end.reason.name}",
        code=f"CODE_{end.code.name}" if end.code is not None else None,
        message=end.message,
        usage=usage_message([end.usage]),
    )


def usage_message(usages: Iterable[SequenceUsage]) -> Usage:
    """What several choices of one request cost together: the prompt once, their output summed."""
    total = Usage()
    for usage in usages:
        total.prompt_tokens = max(total.prompt_tokens, usage.prompt_tokens)
        total.cached_tokens = max(total.cached_tokens, usage.cached_tokens)
        total.completion_tokens += usage.completion_tokens
        total.engine_queue_us = max(total.engine_queue_us, _microseconds(usage.queue_s))
        total.prefill_us += _microseconds(usage.prefill_s)
        total.decode_us += _microseconds(usage.decode_s)
        total.preemptions += usage.preemptions
    return total


def log_entry(held: Held, rows: Sequence[int], book: RowBook, frame_id: str) -> LogEntry:
    """What the resume log lacks of a request whose ``rows`` are these, one for each choice."""
    entry = LogEntry(version=WIRE_VERSION, attempt=held.attempt, frame_id=frame_id)
    if not held.logged_prompt:
        entry.prompt_tokens = len(held.record.prompt)
    for choice, row in enumerate(rows):
        tokens = book.unlogged(row)
        ended = choice in held.unlogged_ends
        if not len(tokens) and not ended:
            continue
        place = len(entry.choices)
        entry.choices.append(choice)
        entry.firsts.append(int(book.logged[row]))
        entry.counts.append(len(tokens))
        entry.tokens.extend(tokens.tolist())
        items = held.unlogged_logprobs.get(choice)
        if items:
            entry.logprobs.append(logprobs_message(place, items))
        if ended:
            finish = entry.finishes.add()
            finish.CopyFrom(held.ends[choice])
            finish.row = place
    return entry


def unspent(prompt_tokens: int, completion_tokens: int = 0) -> SequenceUsage:
    """The usage of a choice that no pass of this engine ran."""
    return SequenceUsage(prompt_tokens, completion_tokens, 0, 0.0, 0.0, 0.0, 0)


def _microseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e6))
