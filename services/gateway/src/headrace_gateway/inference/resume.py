"""Taking up a stream again: here, or at a gateway that has never seen the request.

What the resume log cannot know (stop strings, the number of prompts) travels in the record's
``edge`` note, which the server keeps with the request's state. Next:
headrace_gateway.inference.recovery
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from math import inf
from typing import Final, cast

from headrace_contracts.pb.queue_pb2 import RequestRecord, Sampling
from headrace_transport.interface import RequestState

from headrace_gateway.errors import InvalidRequest
from headrace_gateway.inference.catalog import Model
from headrace_gateway.inference.running import OpenCall
from headrace_gateway.inference.session import ChoiceText, Session

NOTE_VERSION: Final = 1
MAX_CURSORS: Final = 16_384


@dataclass(frozen=True, slots=True)
class EdgeNote:
    """What another gateway needs in order to deliver a request."""

    kind: str
    prompts: int
    """Records that the call made; record i of several is ``<id>.<i>``."""
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    min_tokens: int
    include_stop: bool
    logprobs: int | None
    traceparent: str = ""
    """Of the span that a resumed stream's points at."""
    grace_s: float = 0.0
    """How long it goes on without a reader, at least, at whichever gateway it is."""

    def encode(self) -> bytes:
        """As it travels."""
        return json.dumps({"version": NOTE_VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, note: bytes) -> EdgeNote | None:
        """None: written by a version that this one does not know."""
        try:
            read = json.loads(note)
        except ValueError:
            return None
        if not isinstance(read, dict):
            return None
        found = cast("dict[str, object]", read)
        if found.get("version") != NOTE_VERSION:
            return None
        names = {field.name for field in fields(cls)}
        needed = {field.name for field in fields(cls) if field.default is MISSING}
        kept = {name: value for name, value in found.items() if name in names}
        if not kept.keys() >= needed:
            return None
        for name in ("stop", "stop_token_ids"):
            listed = kept[name]
            if not isinstance(listed, list):
                return None
            kept[name] = tuple(cast("list[object]", listed))
        kept["grace_s"] = _seconds(kept.get("grace_s"))
        return cls(**kept)  # type: ignore[arg-type]

    def choice_text(self, model: Model) -> Callable[[], ChoiceText]:
        """Makes the text of one choice of this request."""
        return lambda: model.text.choice(
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            min_tokens=self.min_tokens,
            include_stop=self.include_stop,
        )

    @property
    def hidden(self) -> frozenset[int]:
        """Stop tokens whose text is not shown."""
        return frozenset(() if self.include_stop else self.stop_token_ids)


def _seconds(value: object) -> float:
    """A time that was noted; 0 where that is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0.0
    return value if 0 <= value < inf else 0.0


def record_ids(call_id: str, prompts: int) -> list[str]:
    """Ids of the records of a call."""
    return [call_id] if prompts == 1 else [f"{call_id}.{i}" for i in range(prompts)]


def resumed_session(
    record_id: str, model: Model, note: EdgeNote, state: RequestState, *, now: float
) -> Session:
    """A session that knows nothing yet of what was delivered: the log and an attach tell it."""
    sampling = Sampling(stop_token_ids=note.stop_token_ids)
    if note.logprobs is not None:
        sampling.logprobs = note.logprobs
    record = RequestRecord(
        id=record_id, model=state.model, n=state.n, attempt=state.attempt, sampling=sampling
    )
    session = Session(
        record,
        choice_text=note.choice_text(model),
        prompt_tokens=state.prompt_tokens,
        now=now,
        hidden=note.hidden,
    )
    session.submitted = True
    session.attach_wanted = True
    session.resumable = False
    return session


def parse_cursor(after: str) -> Sequence[int]:
    """``""``, ``"12"`` (every choice) or ``"12,9"`` (per choice) as numbers.

    Raises ``InvalidRequest``.
    """
    parts = after.split(",") if after else []
    if len(parts) > MAX_CURSORS or not all(
        part.isascii() and part.isdigit() and len(part) < 10 for part in parts
    ):
        raise InvalidRequest(
            "after must be a number of tokens, or one number per choice: 12 or 12,9.",
            param="after",
        )
    return [int(part) for part in parts]


def check_cursor(cursor: Sequence[int], call: OpenCall) -> None:
    """Refuses a cursor that this call cannot have given. Raises ``InvalidRequest``.

    What lies ahead of a call that goes on may be what another gateway delivered already; behind
    a known end there is nothing.
    """
    choices = [choice for session in call.sessions for choice in session.choices]
    if len(cursor) not in (0, 1, len(choices)):
        raise InvalidRequest(
            f"after has {len(cursor)} numbers, but the call has {len(choices)} choices.",
            param="after",
        )
    if not call.ended or any(session.failure for session in call.sessions):
        return
    if any(choice.code is not None for choice in choices):
        return  # its last tokens can be lost
    lengths = [len(choice.tokens) for choice in choices]
    ends = [max(lengths)] if len(cursor) == 1 else lengths
    for position, end in zip(cursor, ends, strict=False):
        if position > end:
            raise InvalidRequest(
                f"after is {position}, but the call ended after {end} tokens.", param="after"
            )


def place(cursor: Sequence[int]) -> Callable[[int], int]:
    """The position in choice ``index`` that a cursor means."""
    if not cursor:
        return lambda index: 0
    if len(cursor) == 1:
        return lambda index: cursor[0]
    return lambda index: cursor[index] if index < len(cursor) else 0
