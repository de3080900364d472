"""One request as this gateway sees it: its tokens in order, the text they make, its end.

A session takes rows from frames and from the resume log in any order, any number of times,
and of any attempt; what it keeps is each choice's tokens in order, once. Readers
(``headrace_gateway.inference.running``) follow it at their own pace, so a slow one costs
no memory beyond the request's own tokens. Next: headrace_gateway.inference.running
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Final, Protocol

from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb.queue_pb2 import LogEntry, RequestRecord, RowLogprobs

from headrace_gateway.errors import GatewayError

MISSING_LOGPROB: Final = -9999.0
"""Stands for a logprob that got lost with its frame; JSON has no NaN."""
FramePosition = tuple[int, int]
"""A frame id, comparable."""


class TextPiece(Protocol):
    """What some tokens added to the text."""

    @property
    def text(self) -> str: ...

    @property
    def stopped_at(self) -> int | None:
        """Generated tokens of the choice, when a stop string ended it."""
        ...


class ChoiceText(Protocol):
    """Turns one choice's tokens into text, and finds stop strings in it."""

    def push(self, token_ids: Sequence[int], *, final: bool = False) -> TextPiece: ...


class Outcome(Flag):
    """What a row did to its session."""

    NONE = 0
    NEWS = auto()
    """Readers have something to read."""
    BEHIND = auto()
    """Earlier tokens are missing: they have to be fetched before this row counts."""
    STOPPED = auto()
    """A stop string was found: the engine has to be told."""
    STALE = auto()
    """Of an attempt that has been fenced off."""
    DUPLICATE = auto()
    """All of it was known."""
    BEGAN = auto()
    """The request's first sign of life from an engine."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Logprobs of one token, compact: what the readers make of it is larger."""

    chosen: float
    ids: array[int]
    values: array[float]


class Choice:
    """Tokens of one choice, in order, and the text they make.

    Invariants
        len(pieces) == len(tokens), and len(candidates) in (0, len(tokens))
        finish is not None  implies  tokens never changes again
    """

    __slots__ = (
        "_hidden",
        "_text",
        "candidates",
        "code",
        "engine_done",
        "finish",
        "first_at",
        "last_at",
        "logged",
        "marked_at",
        "message",
        "pieces",
        "stop_string",
        "tail",
        "tokens",
    )

    def __init__(self, text: ChoiceText, *, logprobs: bool, hidden: frozenset[int]) -> None:
        self._text = text
        self._hidden = hidden
        self.tokens: array[int] = array("I")
        self.pieces: list[str] = []
        """Text that each token made known; "" while a character or a stop may be incomplete."""
        self.candidates: list[Candidates] | None = [] if logprobs else None
        self.tail = ""
        """Text that the end made known."""
        self.finish: FinishReason | None = None
        self.code: Code | None = None
        self.message = ""
        self.stop_string = False
        """Whether a stop string ended it: the last tokens then have no text of their own."""
        self.engine_done = False
        """Whether its engine has told its end."""
        self.logged = 0
        """Tokens that the resume log holds."""
        self.marked_at = 0.0
        """Monotonic seconds at which the engine was last told to stop it."""
        self.first_at: float | None = None
        """Monotonic seconds at which the first token came."""
        self.last_at = 0.0

    def extend(
        self, tokens: Sequence[int], logprobs: RowLogprobs | None, skip: int, now: float
    ) -> Outcome:
        """Adds ``tokens[skip:]``, which continue what is there."""
        if self.first_at is None:
            self.first_at = now
        self.last_at = now
        for row in range(skip, len(tokens)):
            token = tokens[row]
            # the engine ends a choice at a stop token, so this one is the last
            piece = self._text.push((token,), final=token in self._hidden)
            self.tokens.append(token)
            self.pieces.append(piece.text)
            if self.candidates is not None:
                self.candidates.append(_candidates(logprobs, row))
            if piece.stopped_at is not None:
                self.finish = FinishReason.STOP
                self.stop_string = True
                return Outcome.NEWS | Outcome.STOPPED
        return Outcome.NEWS

    def end(self, reason: FinishReason, code: Code | None = None, message: str = "") -> None:
        """Ends the choice, once: text that was held back comes out."""
        if self.finish is not None:
            return
        last = self._text.push((), final=True)
        self.tail = last.text
        self.stop_string = last.stopped_at is not None
        self.finish = FinishReason.STOP if self.stop_string else reason
        self.code = code
        self.message = message


class Session:
    """One record's life at this gateway: ``n`` choices at slots ``slot .. slot + n - 1``."""

    def __init__(
        self,
        record: RequestRecord,
        *,
        choice_text: Callable[[], ChoiceText],
        prompt_tokens: int,
        now: float,
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        """``prompt_tokens`` of the record, which is without its prompt in a resumed stream.

        ``hidden``: stop tokens whose text is not shown.
        """
        self.record = record
        self.hidden = hidden
        self.prompt_tokens = prompt_tokens
        self.attempt = record.attempt
        """The highest seen; rows of a lower one are stale."""
        logprobs = record.sampling.HasField("logprobs")
        self.choices = [
            Choice(choice_text(), logprobs=logprobs, hidden=hidden) for _ in range(record.n)
        ]
        self.cached_tokens = 0
        self.engine_queue_s: float | None = None
        self.began_at: float | None = None
        self.failure: GatewayError | None = None
        """Ends the whole call at its readers."""
        self.behind = False
        """Whether a row came whose predecessors are missing."""
        self.attach_wanted = False
        """Whether its rows still go elsewhere: it was taken up here before an engine had it."""
        self.last_sign = now
        """Monotonic seconds at which anything was last heard of it."""
        self.next_check = now
        """Monotonic seconds at which the server is asked what became of it, if still silent."""
        self.checks = 0
        """Times it was asked since the last sign."""
        self.submitted = False
        """Whether the server has accepted it; before, nothing about it can be missing."""
        self.no_engine_since: float | None = None
        self.log_after = "0-0"
        """Entry of the resume log up to which it was read."""
        self.ended_at: float | None = None
        """Monotonic seconds at which its last choice ended here."""
        self.resumable = True
        """False where the prompt is unknown, so that it cannot be submitted again."""
        self.listeners: set[Callable[[], None]] = set()
        self._pins: deque[tuple[FramePosition, int, int]] = deque()

    @property
    def id(self) -> str:
        """Id of the record."""
        return self.record.id

    @property
    def ended(self) -> bool:
        """Whether every choice has its end here, or the whole has failed."""
        return self.failure is not None or all(c.finish is not None for c in self.choices)

    @property
    def engine_done(self) -> bool:
        """Whether no more rows are to be expected."""
        return all(choice.engine_done for choice in self.choices)

    @property
    def first_missing(self) -> int:
        """Index from which on some open choice lacks tokens."""
        return min((len(c.tokens) for c in self.choices if c.finish is None), default=0)

    def fence(self, attempt: int) -> None:
        """From here on, rows of lower attempts are stale."""
        self.attempt = max(self.attempt, attempt)

    def take_row(
        self,
        index: int,
        *,
        attempt: int,
        first: int,
        tokens: Sequence[int],
        logged: int,
        now: float,
        pin: FramePosition | None = None,
        logprobs: RowLogprobs | None = None,
    ) -> Outcome:
        """Takes one row of choice ``index``. Nothing changes when it is stale or early."""
        if attempt < self.attempt:
            return Outcome.STALE
        self.attempt = attempt
        self.last_sign = now
        self.no_engine_since = None
        outcome = Outcome.NONE
        if self.began_at is None:
            self.began_at = now
            outcome = Outcome.BEGAN
        choice = self.choices[index]
        choice.logged = max(choice.logged, logged)
        have = len(choice.tokens)
        if first > have and choice.finish is None:
            if not self.behind:
                self.next_check = now
            self.behind = True
            return outcome | Outcome.BEHIND
        self.checks = 0
        skip = have - first
        if choice.finish is not None or skip >= len(tokens):
            return outcome | (Outcome.DUPLICATE if tokens else Outcome.NONE)
        self.behind = False
        news = choice.extend(tokens, logprobs, skip, now)
        if pin is not None and choice.logged < len(choice.tokens):
            self._pins.append((pin, index, len(choice.tokens)))
        return news if outcome is Outcome.NONE else outcome | news

    def take_finish(
        self, index: int, reason: FinishReason, code: Code | None, message: str
    ) -> Outcome:
        """Takes the engine's end of choice ``index``. Call it only after a row that was in time."""
        choice = self.choices[index]
        choice.engine_done = True
        if choice.finish is not None:
            return Outcome.NONE
        choice.end(reason, code, message)
        return Outcome.NEWS

    def take_log(self, entry: LogEntry, *, now: float) -> Outcome:
        """Takes an entry of the resume log. The log is the truth: no attempt of it is stale."""
        outcome = Outcome.NONE
        logprobs = {row.row: row for row in entry.logprobs}
        finishes = {row.row: row for row in entry.finishes}
        offset = 0
        for row, (index, first, count) in enumerate(
            zip(entry.choices, entry.firsts, entry.counts, strict=True)
        ):
            tokens = entry.tokens[offset : offset + count]
            offset += count
            if index >= len(self.choices):
                continue
            outcome |= self.take_row(
                index,
                attempt=max(self.attempt, entry.attempt),
                first=first,
                tokens=tokens,
                logged=first + count,
                now=now,
                logprobs=logprobs.get(row),
            )
            finish = finishes.get(row)
            if finish is not None and first <= len(self.choices[index].tokens):
                self.cached_tokens = max(self.cached_tokens, finish.usage.cached_tokens)
                outcome |= self.take_finish(
                    index, FinishReason(finish.reason), code_of(finish.code), finish.message
                )
        return outcome

    def end_here(self, reason: FinishReason, now: float) -> None:
        """Ends what is open, without waiting for the engine."""
        for choice in self.choices:
            choice.end(reason)
        self._pins.clear()
        self.close(now)

    def fail(self, error: GatewayError, now: float) -> None:
        """Ends the whole call at its readers with an error, once."""
        if not self.ended:
            self.failure = error
        self._pins.clear()
        self.close(now)

    def close(self, now: float) -> None:
        """Notes the end, once, and wakes the readers."""
        if self.ended and self.ended_at is None:
            self.ended_at = now
        self.wake()

    def wake(self) -> None:
        """Tells the readers that there is something to read."""
        for listener in tuple(self.listeners):
            listener()

    def oldest_pin(self) -> FramePosition | None:
        """The oldest frame that holds tokens of an open choice which the log does not hold yet."""
        while self._pins:
            position, index, end = self._pins[0]
            choice = self.choices[index]
            if choice.logged < end and not choice.engine_done:
                return position
            self._pins.popleft()
        return None


def code_of(number: int) -> Code | None:
    """A code from the wire; an unknown one of a newer engine is an internal error."""
    if not number:
        return None
    try:
        return Code(number)
    except ValueError:
        return Code.INTERNAL


def _candidates(logprobs: RowLogprobs | None, row: int) -> Candidates:
    if logprobs is None or row >= len(logprobs.chosen):
        return Candidates(MISSING_LOGPROB, array("I"), array("f"))
    first, end = row * logprobs.width, (row + 1) * logprobs.width
    return Candidates(
        logprobs.chosen[row],
        array("I", logprobs.top_ids[first:end]),
        array("f", logprobs.top_values[first:end]),
    )
