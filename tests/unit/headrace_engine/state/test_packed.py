"""What crosses to io crosses a process: packed, sent in pieces, and the same afterwards."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.outputs import PassOutputs, RowLogprobs
from headrace_engine.state.packed import (
    Kind,
    Message,
    Unpacker,
    pack,
    pack_cancel,
    pack_outputs,
    pack_request,
    unpack_cancel,
    unpack_outputs,
    unpack_request,
)
from headrace_engine.state.request import MediaSpan, Request, RequestHandle, Sampling, Tokens
from support.engine import Rig


def same(one: Any, other: Any) -> bool:
    """Equal in every field, arrays included."""
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if type(one) is np.ndarray:
        return bool(one.dtype == other.dtype and np.array_equal(one, other))
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def one(data: bytes) -> Message:
    """The one message of ``data``."""
    [message] = Unpacker().feed(data)
    return message


def owned(request: Request) -> list[Tokens]:
    """Its arrays."""
    return [request.prompt, *request.generated]


FULL = Request(
    id="r\u00fc\ud800",
    handle=RequestHandle(1 << 40),
    prompt=np.array([1, 2, 1 << 30], np.int32),
    sampling=Sampling(
        max_new_tokens=9,
        min_new_tokens=1,
        temperature=0.1,
        top_k=3,
        top_p=0.9,
        min_p=0.05,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        repetition_penalty=1.1,
        bias_ids=(4, 5),
        bias_values=(1.5, -2.0),
        seed=(1 << 64) - 1,
        stop_token_ids=frozenset({7, 8}),
        logprobs=2,
    ),
    n=2,
    tenant="t",
    band=0,
    cache_salt=b"\x00\xff",
    deadline_s=1234.56789,
    attempt=3,
    generated=(np.array([5], np.int32), np.zeros(0, np.int32)),
    finished=frozenset({1}),
    media=(MediaSpan(0, 1, b"\x01" * 32), MediaSpan(1, 2, b"")),
)


@pytest.mark.rule("outputs.flat")
def test_a_request_with_everything_set_arrives_as_it_was() -> None:
    default = Request("r", RequestHandle(1), np.array([1], np.int32), Sampling(1))
    for part, plain in ((FULL, default), (FULL.sampling, default.sampling)):
        for field in fields(part):  # a new field that is not set here would not be tested
            assert not same(getattr(part, field.name), getattr(plain, field.name)), field.name

    for request in (FULL, default):
        arrived = unpack_request(one(pack_request(request)))
        assert same(arrived, request)
        # The engine owns what it is given, and may write into it.
        assert all(ids.flags.writeable and ids.base is None for ids in owned(arrived))


@pytest.mark.parametrize("choice", [None, 0, 3])
def test_a_cancel_arrives_as_it_was(choice: int | None) -> None:
    cancel = Cancel(RequestHandle(5), FinishReason.STOP, choice)

    assert unpack_cancel(one(pack_cancel(cancel))) == cancel


@pytest.mark.rule("outputs.flat")
def test_outputs_of_an_engine_arrive_as_they_were() -> None:
    rig = Rig(phases=2)
    told: list[PassOutputs] = []
    hear = rig.hear

    def remember(outputs: PassOutputs) -> None:
        told.append(outputs)
        hear(outputs)

    rig.hear = remember
    rig.push([1, 2, 3, 4, 5], 6, n=2)
    cut = rig.push([1, 2, 3, 4, 6], 9)
    rig.step()
    rig.cancel(rig.requests[cut].handle)
    rig.run()
    assert any(outputs.ends for outputs in told)
    assert any(outputs.starts for outputs in told)
    with_logprobs = replace(told[-1], logprobs=[logprobs(0, 1, 3), logprobs(1, 2, 0)])

    for outputs in (*told, *map(bare, told), with_logprobs):
        assert same(unpack_outputs(one(pack_outputs(outputs))), outputs)


def logprobs(row: int, count: int, width: int) -> RowLogprobs:
    """Values that differ in every place."""
    numbers = np.arange(count * width).reshape(count, width)
    chosen = np.arange(count, dtype=np.float32)
    return RowLogprobs(row, chosen, numbers.astype(np.int32), (numbers / 7).astype(np.float32))


def bare(outputs: PassOutputs) -> PassOutputs:
    """Without what is rare."""
    return replace(outputs, ends=[], starts=[], logprobs=[])


def test_an_end_with_a_code_and_numbers_of_numpy_arrives_as_plain_ones() -> None:
    rig = Rig()
    told: list[PassOutputs] = []

    def remember(outputs: PassOutputs) -> None:
        told.append(outputs)

    rig.hear = remember
    rig.push([1, 2], 1)
    rig.run()
    last = told[-1]
    [end] = last.ends
    usage = end.usage._replace(completion_tokens=np.int64(4), decode_s=np.float32(0.5))  # pyright: ignore[reportArgumentType]
    end = end._replace(code=Code.ENGINE_FAILED, message="why", spared=True, usage=usage)

    [arrived] = unpack_outputs(one(pack_outputs(replace(last, ends=[end])))).ends

    assert arrived == end
    assert type(arrived.usage.completion_tokens) is int
    assert arrived.code is Code.ENGINE_FAILED
    assert arrived.spared
    assert type(arrived.reason) is FinishReason


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_messages_that_come_in_pieces_come_out_whole_and_in_order(size: int) -> None:
    data = b"".join(pack(Kind.LOADING, i, bytes(i)) for i in range(40)) + pack(Kind.CLOSE)
    unpacker = Unpacker()
    messages: list[Message] = []
    for at in range(0, len(data), size):
        messages += unpacker.feed(data[at : at + size])

    assert [message.text for message in messages] == [*(b"%d" % i for i in range(40)), b""]
    assert [len(message.body) for message in messages] == [*range(40), 0]
    assert messages[-1].kind is Kind.CLOSE


def test_what_json_cannot_say_does_not_cross() -> None:
    with pytest.raises(TypeError, match="does not cross"):
        pack(Kind.START, object())
