"""Packed: requests, cancels and outputs as bytes, for a mailbox that lies between two processes.

Owner    whoever calls; functions only
Writes   nothing; builds
Never    pickles; makes an object per token
Rules    outputs.flat
Next     headrace_engine.state.pipe

A message is a header, a text and a body. Columns travel in the body as they lie in memory. What is
rare (starts, ends, a request's fields) is JSON in the text, which is empty for most passes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Final

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from numpy.typing import NDArray

from headrace_engine.state.inbound import Cancel
from headrace_engine.state.outputs import (
    PassOutputs,
    RowEnd,
    RowLogprobs,
    RowStarted,
    SequenceUsage,
)
from headrace_engine.state.request import MediaSpan, Request, RequestHandle, Sampling, Tokens

_HEADER: Final = struct.Struct("<III")
"""Kind; bytes of the text; bytes of the body."""
_OUTPUTS: Final = struct.Struct("<qII")
"""Pass; rows; tokens."""


class Kind(IntEnum):
    """What a message says, and in which direction it goes."""

    START = 1
    """To the engine: its settings. The first of all."""
    PUSH = 2
    CANCEL = 3
    CLOSE = 4
    LOADING = 16
    """From the engine: percent of the weights."""
    READY = 17
    """What it serves. Nothing is pushed before."""
    REFUSED = 18
    """It will not start with these settings or this model."""
    OUTPUTS = 19
    ENDED = 20
    """The engine thread has ended, and why. The last of all."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it came."""

    kind: Kind
    text: bytes = b""
    """JSON, or empty."""
    body: bytes = b""


def pack(kind: Kind, head: object = None, *body: bytes) -> bytes:
    """A message of ``head``, which must be what JSON can say; None: it has no text."""
    text = b"" if head is None else json.dumps(head, default=_plain).encode()
    size = sum(len(part) for part in body)
    return b"".join((_HEADER.pack(kind, len(text), size), text, *body))


class Unpacker:
    """Messages out of bytes that come in pieces. One for each direction."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that ``data`` completes, in their order."""
        self._bytes += data
        messages: list[Message] = []
        at = 0
        while len(self._bytes) - at >= _HEADER.size:
            kind, text, body = _HEADER.unpack_from(self._bytes, at)
            first = at + _HEADER.size
            end = first + text + body
            if end > len(self._bytes):
                break
            messages.append(
                Message(
                    Kind(kind),
                    bytes(self._bytes[first : first + text]),
                    bytes(self._bytes[first + text : end]),
                )
            )
            at = end
        del self._bytes[:at]
        return messages


def pack_request(request: Request) -> bytes:
    """A PUSH."""
    ids = [request.prompt, *request.generated]
    sampling = {field.name: getattr(request.sampling, field.name) for field in fields(Sampling)}
    head = {
        "id": request.id,
        "handle": request.handle,
        "sampling": sampling | {"stop_token_ids": list(request.sampling.stop_token_ids)},
        "n": request.n,
        "tenant": request.tenant,
        "band": request.band,
        "cache_salt": request.cache_salt.hex(),
        "deadline_s": request.deadline_s,
        "attempt": request.attempt,
        "finished": list(request.finished),
        "media": [(span.first, span.end, span.fingerprint.hex()) for span in request.media],
        "lengths": [len(tokens) for tokens in ids],
    }
    return pack(Kind.PUSH, head, *(_int32(tokens).tobytes() for tokens in ids))


def unpack_request(message: Message) -> Request:
    """The request of a PUSH."""
    head = json.loads(message.text)
    # Copies: the engine may go on in an array that it was given, which bytes do not allow.
    lengths = head.pop("lengths")
    ids = [part.copy() for part in _split(np.frombuffer(message.body, np.int32), lengths)]
    sampling = head.pop("sampling")
    sampling["stop_token_ids"] = frozenset(sampling["stop_token_ids"])
    sampling["bias_ids"] = tuple(sampling["bias_ids"])
    sampling["bias_values"] = tuple(sampling["bias_values"])
    media = tuple(MediaSpan(first, end, bytes.fromhex(d)) for first, end, d in head.pop("media"))
    return Request(
        prompt=ids[0],
        generated=tuple(ids[1:]),
        sampling=Sampling(**sampling),
        cache_salt=bytes.fromhex(head.pop("cache_salt")),
        finished=frozenset(head.pop("finished")),
        media=media,
        **head,
    )


def pack_cancel(cancel: Cancel) -> bytes:
    """A CANCEL."""
    return pack(Kind.CANCEL, [cancel.handle, cancel.reason, cancel.choice])


def unpack_cancel(message: Message) -> Cancel:
    """The cancel of a CANCEL."""
    handle, reason, choice = json.loads(message.text)
    return Cancel(RequestHandle(handle), FinishReason(reason), choice)


def pack_outputs(outputs: PassOutputs) -> bytes:
    """An OUTPUTS."""
    columns = (
        _OUTPUTS.pack(outputs.pass_id, len(outputs.handles), len(outputs.tokens)),
        outputs.handles.astype(np.int64, copy=False).tobytes(),
        *(
            _int32(column).tobytes()
            for column in (outputs.choices, outputs.firsts, outputs.counts, outputs.tokens)
        ),
    )
    if not (outputs.ends or outputs.starts or outputs.logprobs):
        return pack(Kind.OUTPUTS, None, *columns)  # most of them
    head = {
        "ends": [
            (end.row, end.reason, end.code, end.message, end.spared, tuple(end.usage))
            for end in outputs.ends
        ],
        "starts": [tuple(start) for start in outputs.starts],
        "logprobs": [(item.row, *item.top_ids.shape) for item in outputs.logprobs],
    }
    return pack(Kind.OUTPUTS, head, *columns, *_logprob_columns(outputs.logprobs))


def unpack_outputs(message: Message) -> PassOutputs:
    """The outputs of an OUTPUTS. Its columns are views of the body."""
    pass_id, rows, tokens = _OUTPUTS.unpack_from(message.body)
    at = _OUTPUTS.size
    handles = np.frombuffer(message.body, np.int64, rows, at)
    at += handles.nbytes
    columns = np.frombuffer(message.body, np.int32, 3 * rows + tokens, at)
    at += columns.nbytes
    head = json.loads(message.text) if message.text else {"ends": (), "starts": (), "logprobs": ()}
    choices, firsts, counts, ids = _split(columns, (rows, rows, rows, tokens))
    return PassOutputs(
        pass_id=pass_id,
        handles=handles,
        choices=choices,
        firsts=firsts,
        counts=counts,
        tokens=ids,
        ends=[
            RowEnd(
                row,
                FinishReason(reason),
                SequenceUsage(*usage),
                None if code is None else Code(code),
                text,
                spared,
            )
            for row, reason, code, text, spared, usage in head["ends"]
        ],
        starts=[RowStarted(*start) for start in head["starts"]],
        logprobs=_logprobs(message.body, at, head["logprobs"]),
    )


def _logprob_columns(items: Iterable[RowLogprobs]) -> Iterable[bytes]:
    for item in items:
        yield item.chosen.astype(np.float32, copy=False).tobytes()
        yield _int32(item.top_ids).tobytes()
        yield item.top_values.astype(np.float32, copy=False).tobytes()


def _logprobs(body: bytes, at: int, shapes: Iterable[tuple[int, int, int]]) -> list[RowLogprobs]:
    items: list[RowLogprobs] = []
    for row, count, width in shapes:
        chosen = np.frombuffer(body, np.float32, count, at)
        ids = np.frombuffer(body, np.int32, count * width, at + 4 * count)
        values = np.frombuffer(body, np.float32, count * width, at + 4 * count * (1 + width))
        items.append(
            RowLogprobs(row, chosen, ids.reshape(count, width), values.reshape(count, width))
        )
        at += 4 * count * (1 + 2 * width)
    return items


def _split(ids: Tokens, lengths: Sequence[int]) -> list[Tokens]:
    return np.split(ids, np.cumsum(lengths[:-1]))


def _int32(values: NDArray[np.integer]) -> NDArray[np.int32]:
    return values.astype(np.int32, copy=False)


def _plain(value: object) -> object:
    """What JSON has no word for: numpy's numbers, which a column's values are."""
    if isinstance(value, np.integer | np.floating):
        return value.item()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    raise TypeError(f"{value!r} does not cross a process")
