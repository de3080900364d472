"""Validation: each mistake its own words, with the numbers; never an exception of the loop."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.state.request import MediaSpan
from support.engine import VOCABULARY, Rig, image
from support.lengths import times


@pytest.mark.rule("loop.validate-rejects-per-request")
@pytest.mark.parametrize(
    ("prompt", "fields", "code", "words"),
    [
        ([], {}, Code.INVALID_REQUEST, "no tokens"),
        ([1, VOCABULARY], {}, Code.INVALID_REQUEST, "token 97 at position 1"),
        ([1, -1], {}, Code.INVALID_REQUEST, "token -1 at position 1"),
        ([[1, 2]], {}, Code.INVALID_REQUEST, "not a list"),
        ([1], {"max_new_tokens": 0}, Code.INVALID_REQUEST, "max_new_tokens is 0"),
        ([1], {"min_new_tokens": -1}, Code.INVALID_REQUEST, "min_new_tokens is -1"),
        ([1], {"min_new_tokens": 5}, Code.INVALID_REQUEST, "min_new_tokens is 5"),
        ([1], {"temperature": -0.1}, Code.INVALID_REQUEST, "temperature is -0.1"),
        (
            [1],
            {"temperature": float("nan")},
            Code.INVALID_REQUEST,
            "temperature is nan, not a finite",
        ),
        ([1], {"top_p": 1.5}, Code.INVALID_REQUEST, "top_p is 1.5"),
        ([1], {"min_p": -1.0}, Code.INVALID_REQUEST, "min_p is -1"),
        ([1], {"top_k": -1}, Code.INVALID_REQUEST, "top_k is -1"),
        ([1], {"top_k": 2**63}, Code.INVALID_REQUEST, f"top_k is {2**63}"),
        ([1], {"max_new_tokens": 2**63}, Code.INVALID_REQUEST, f"max_new_tokens is {2**63}"),
        ([1], {"presence_penalty": float("inf")}, Code.INVALID_REQUEST, "presence_penalty"),
        ([1], {"frequency_penalty": float("nan")}, Code.INVALID_REQUEST, "frequency_penalty"),
        ([1], {"presence_penalty": 2.5}, Code.INVALID_REQUEST, "between -2 and 2"),
        ([1], {"repetition_penalty": 0.0}, Code.INVALID_REQUEST, "repetition_penalty is 0"),
        ([1], {"repetition_penalty": -1.0}, Code.INVALID_REQUEST, "repetition_penalty is -1"),
        ([1], {"logprobs": 21}, Code.INVALID_REQUEST, "logprobs is 21"),
        (
            [1],
            {"stop_token_ids": frozenset([97])},
            Code.INVALID_REQUEST,
            "id of stop_token_ids is 97",
        ),
        ([1], {"stop_token_ids": frozenset(range(65))}, Code.INVALID_REQUEST, "is 65"),
        ([1], {"bias_ids": (97,), "bias_values": (1.0,)}, Code.INVALID_REQUEST, "is 97"),
        ([1], {"bias_ids": (1,), "bias_values": ()}, Code.INVALID_REQUEST, "1 ids and 0 values"),
        (
            [1],
            {"bias_ids": (1,), "bias_values": (float("nan"),)},
            Code.INVALID_REQUEST,
            "logit_bias",
        ),
        (
            [1],
            {"bias_ids": (1,) * 1025, "bias_values": (1.0,) * 1025},
            Code.INVALID_REQUEST,
            "1025",
        ),
        ([1], {"n": 0}, Code.INVALID_REQUEST, "n is 0"),
        ([1], {"n": 129}, Code.INVALID_REQUEST, "n is 129"),
        ([1], {"n": 2, "generated": [[1]]}, Code.INVALID_REQUEST, "1 choices"),
        ([1], {"generated": [[97]]}, Code.INVALID_REQUEST, "generated tokens of choice 0"),
        ([1], {"n": 2, "finished": frozenset([2])}, Code.INVALID_REQUEST, "finished choice is 2"),
        ([1], {"band": -1}, Code.INVALID_REQUEST, "band is -1, not at least 0"),
        ([1], {"deadline_s": math.nan}, Code.INVALID_REQUEST, "deadline is nan, not a finite"),
        ([1], {"deadline_s": math.inf}, Code.INVALID_REQUEST, "deadline is inf, not a finite"),
        ([1] * 64, {}, Code.CONTEXT_LENGTH_EXCEEDED, "64 tokens"),
    ],
)
def test_each_mistake_ends_its_request_alone(
    prompt: Any, fields: dict[str, Any], code: Code, words: str
) -> None:
    rig = Rig()
    good = rig.push([1, 2, 3], 2)
    bad = rig.push(prompt, **fields)
    rig.run(20)
    end = rig.choice(bad).end
    assert end is not None
    assert end.reason is FinishReason.ERROR
    assert end.code is code
    assert words in end.message
    rig.assert_true(good)
    assert rig.reason(good) is FinishReason.LENGTH
    rig.assert_idle()


def test_a_refused_request_ends_every_choice() -> None:
    rig = Rig()
    handle = rig.push([], n=3)
    rig.run()
    assert [rig.reason(handle, c) for c in range(3)] == [FinishReason.ERROR] * 3


@pytest.mark.parametrize("length", [62, 63])
def test_the_longest_prompt_that_leaves_room_for_a_token_is_taken(length: int) -> None:
    rig = Rig(pool_blocks=20)
    handle = rig.push([1] * length, 10)
    rig.run()
    assert len(rig.tokens(handle)) == 64 - length
    end = rig.choice(handle).end
    assert end is not None
    assert "64 tokens that one may have" in end.message
    rig.assert_idle()


@pytest.mark.rule("loop.validate-rejects-per-request")
@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(3, 3, b"")], "item 0 stands at 3 to 3"),
        ([(-1, 2, b"")], "item 0 stands at -1 to 2"),
        ([(2, 9, b"")], "prompt's end at 8"),
        ([(2, 4, b""), (3, 5, b"")], "item 1 stands at 3 to 5"),
        ([(4, 5, b""), (1, 2, b"")], "item 1"),
        ([(2, 4, b"\1" * 31)], "has 31 bytes, not 32"),
    ],
)
def test_media_items_have_places_of_their_own_inside_the_prompt(
    spans: list[tuple[int, int, bytes]], message: str
) -> None:
    rig = Rig()
    bad = rig.push([1] * 8, 1, media=tuple(MediaSpan(*span) for span in spans))
    good = rig.push([1] * 8, 1, media=(MediaSpan(0, 3, b"\1" * 32), MediaSpan(3, 8, b"")))
    rig.run()
    end = rig.choice(bad).end
    assert end is not None
    assert end.code is Code.INVALID_REQUEST
    assert message in end.message
    rig.assert_true(good)


@pytest.mark.rule("loop.validate-rejects-per-request")
@pytest.mark.rule("request.one-terminal-status")
def test_whatever_a_request_holds_the_loop_goes_on_and_each_choice_has_one_end() -> None:
    rng = random.Random(3)
    integers = [-(2**63), -1, 0, 1, 2, 50, 4097, 2**31, 2**63]
    floats = [math.nan, math.inf, -math.inf, -1.0, 0.0, 1.0, 1e30]
    tokens = [-1, 0, 96, 97, 2**31 - 1]

    def some(values: Iterable[str], among: Sequence[Any]) -> dict[str, Any]:
        return {name: rng.choice(among) for name in values if rng.random() < 0.1}

    good = 0
    for _ in range(times(50)):
        rig = Rig(pool_blocks=8, session_tokens=32, phases=rng.choice([1, 2]))
        for _ in range(4):
            fields = some(("min_new_tokens", "top_k", "seed", "logprobs", "n", "band"), integers)
            fields |= some(("temperature", "top_p", "min_p", "presence_penalty"), floats)
            fields |= some(("repetition_penalty", "frequency_penalty", "deadline_s"), floats)
            fields |= some(("stop_token_ids",), [frozenset([token]) for token in tokens])
            fields |= some(("bias_ids",), [(token,) for token in tokens])
            fields |= some(("bias_values",), [(), (1.0,), (math.nan,), (1.0, 2.0)])
            fields |= some(("generated",), [[[token] * 3] for token in tokens])
            fields |= some(("finished",), [frozenset([0]), frozenset([-1]), frozenset([5])])
            spans = [(-1, 2), (0, 0), (2, 60), (1, 3)]
            media = [(MediaSpan(*span, image(i)),) for i, span in enumerate(spans)]
            fields |= some(("media",), media)
            prompt = [rng.choice([3, 3, 3, *tokens]) for _ in range(rng.choice([0, 1, 5, 31, 40]))]
            rig.push(prompt, rng.choice([5, 5, 5, *integers]), **fields)
        rig.run(2000)
        for handle, request in rig.requests.items():
            choices = range(request.n) if 0 < request.n <= 4096 else range(1)
            for choice in choices:
                end = rig.choice(handle, choice).end
                assert end is not None or choice in request.finished
                good += end is not None and end.code is None
        rig.assert_idle()
    assert good > 15, "hardly one was right"
