"""Ranges and lengths of a call, exact at their edges; and how long to stay away."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_gateway.errors import ContextLengthExceeded, InvalidRequest, PromptNeverFits
from headrace_gateway.inference.admission import (
    DrainRate,
    check_salt,
    choices,
    fit,
    plan_sampling,
)
from headrace_gateway.inference.calls import SamplingCall
from hypothesis import given
from hypothesis import strategies as st
from support.wire import CONTEXT, END, call, toy_card

VOCABULARY = toy_card().vocabulary
NAN, INFINITY = float("nan"), float("inf")


def planned(**fields: Any) -> Any:
    """The wire's sampling fields of a call with these fields."""
    return plan_sampling(call("x", sampling=SamplingCall(**fields)), toy_card())


RANGES: list[tuple[str, list[Any], list[Any]]] = [
    ("temperature", [0, 0.5, 2], [-0.1, 2.01, NAN, INFINITY, -INFINITY]),
    ("top_p", [1e-9, 0.5, 1], [0, -0.1, 1.01, NAN]),
    ("min_p", [0, 1], [-0.1, 1.1, NAN]),
    ("top_k", [-1, 0, 1, 10**6], [-2, -(10**30)]),
    ("presence_penalty", [-2, 0, 2], [-2.1, 2.1, 9, NAN]),
    ("frequency_penalty", [-2, 0, 2], [-2.1, 2.1, NAN]),
    ("repetition_penalty", [0.1, 1, 2], [0, -1, 2.1, NAN]),
    ("max_tokens", [1, 10**12], [0, -1, 2**63, 10**4000]),
    ("min_tokens", [0, CONTEXT], [-1, CONTEXT + 1]),
    ("logprobs", [0, 20], [-1, 21, 2 * 10**9]),
    ("logit_bias", [{0: -100}, {VOCABULARY - 1: 100}], [{VOCABULARY: 5}, {-3: 5}, {7: 1000}]),
    ("logit_bias", [{}], [{7: NAN}, {7: -100.5}, dict.fromkeys(range(5000), 1.0)]),
    ("stop_token_ids", [(), (VOCABULARY - 1,)], [(VOCABULARY,), (-1,), (1,) * 65]),
    ("stop", [(), ("a",) * 4, ("x" * 1024,)], [("",), ("a", ""), ("a",) * 5, ("x" * 1025,)]),
    ("seed", [0, -1, 2**63, 2**64 - 1, -(10**40)], []),
]


@pytest.mark.parametrize(("field", "good", "bad"), RANGES)
def test_every_range_is_exact_and_names_its_parameter(
    field: str, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        planned(**{field: value})
    for value in bad:
        with pytest.raises(InvalidRequest) as caught:
            planned(**{field: value})
        assert caught.value.param == field
        assert len(caught.value.message) < 200


def test_choices_are_1_to_128() -> None:
    assert choices(SamplingCall()) == 1
    assert choices(SamplingCall(n=128)) == 128
    for bad in (0, -1, 129, 5_000_000):
        with pytest.raises(InvalidRequest) as caught:
            choices(SamplingCall(n=bad))
        assert caught.value.param == "n"


def test_top_logprobs_go_by_the_name_that_the_route_gives_them() -> None:
    chat = call("x", sampling=SamplingCall(logprobs=21))
    with pytest.raises(InvalidRequest) as caught:
        plan_sampling(
            type(chat)(
                kind="chat",
                model=chat.model,
                prompts=chat.prompts,
                sampling=chat.sampling,
                caller=chat.caller,
                request_id=chat.request_id,
            ),
            toy_card(),
        )
    assert caught.value.param == "top_logprobs"


@pytest.mark.parametrize("temperature", [0, 1e-9, 1e-5, 1e-4, 9e-4])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    assert planned(temperature=temperature).temperature == 0


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        planned(min_tokens=9, max_tokens=3)
    assert caught.value.param == "min_tokens"
    planned(min_tokens=3, max_tokens=3)


def test_the_models_end_tokens_stop_unless_they_are_ignored() -> None:
    assert list(planned().stop_token_ids) == [END]
    assert list(planned(stop_token_ids=(3,)).stop_token_ids) == [3, END]
    assert list(planned(ignore_eos=True).stop_token_ids) == []


def test_the_models_author_has_a_say_where_the_caller_has_none() -> None:
    card = toy_card(temperature=0.25, top_p=0.5, top_k=7)
    by_card = plan_sampling(call("x", sampling=SamplingCall()), card)
    assert (by_card.temperature, by_card.top_p, by_card.top_k) == (0.25, 0.5, 7)
    asked = SamplingCall(temperature=1.0, top_p=1.0, top_k=0)
    by_caller = plan_sampling(call("x", sampling=asked), card)
    assert (by_caller.temperature, by_caller.top_p, by_caller.top_k) == (1, 1, 0)


def test_every_call_has_a_seed_and_the_callers_is_kept() -> None:
    assert planned().seed != planned().seed
    assert planned(seed=42).seed == 42
    assert planned(seed=-1).seed == 2**64 - 1


@given(st.integers(1, CONTEXT + 2), st.integers(1, CONTEXT + 2))
def test_prompt_and_output_fit_exactly_when_their_sum_is_at_most_the_context(
    prompt: int, output: int
) -> None:
    sampling = SamplingCall(max_tokens=output)
    if prompt + output <= CONTEXT:
        assert fit([7] * prompt, sampling, toy_card(), cap=None, param="prompt") == output
        return
    with pytest.raises(ContextLengthExceeded) as caught:
        fit([7] * prompt, sampling, toy_card(), cap=None, param="prompt")
    assert str(CONTEXT) in caught.value.message
    assert str(prompt + output) in caught.value.message
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("sent", [2**31, 4 * 10**9, 2**63 - 1])
def test_too_many_tokens_are_told_as_they_were_sent(sent: int) -> None:
    sampling = SamplingCall(max_tokens=sent)
    planned(max_tokens=sent)
    with pytest.raises(ContextLengthExceeded, match=f" 2 in the prompt and {sent} for the output"):
        fit([7] * 2, sampling, toy_card(), cap=None, param="prompt")
    with pytest.raises(InvalidRequest, match=f"at most 5 here, not {sent}"):
        fit([7] * 2, sampling, toy_card(), cap=5, param="prompt")


def test_open_output_takes_what_the_context_or_the_operator_leaves() -> None:
    sampling = SamplingCall(max_tokens=None)
    assert fit([7] * 100, sampling, toy_card(), cap=None, param="prompt") == CONTEXT - 100
    assert fit([7] * 100, sampling, toy_card(), cap=5, param="prompt") == 5
    with pytest.raises(InvalidRequest) as caught:
        fit([7], SamplingCall(max_tokens=6), toy_card(), cap=5, param="prompt")
    assert caught.value.param == "max_tokens"


def test_min_tokens_have_to_fit_too() -> None:
    sampling = SamplingCall(max_tokens=None, min_tokens=30)
    assert fit([7] * (CONTEXT - 30), sampling, toy_card(), cap=None, param="prompt") == 30
    with pytest.raises(ContextLengthExceeded):
        fit([7] * (CONTEXT - 29), sampling, toy_card(), cap=None, param="prompt")


def test_a_prompt_that_can_never_fit_the_pool_is_refused_with_both_numbers() -> None:
    card = toy_card(pool_tokens=40)
    fit([7] * 39, SamplingCall(max_tokens=1), card, cap=None, param="prompt")
    with pytest.raises(PromptNeverFits) as caught:
        fit([7] * 40, SamplingCall(max_tokens=1), card, cap=None, param="prompt")
    assert "has 40 tokens" in caught.value.message
    assert "holds 40" in caught.value.message


def test_an_answer_may_be_longer_than_the_pool_it_ends_in() -> None:
    assert (
        fit([7] * 30, SamplingCall(max_tokens=20), toy_card(pool_tokens=40), cap=None, param="p")
        == 20
    )


@pytest.mark.parametrize("prompt", [[], [-1], [VOCABULARY], [1, 10**12], [1, 10**5000]])
def test_prompts_without_tokens_or_with_unknown_ones_are_refused(prompt: list[int]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fit(prompt, SamplingCall(), toy_card(), cap=None, param="prompt")
    assert caught.value.param == "prompt"


def test_a_salt_is_short() -> None:
    check_salt(b"s" * 256)
    with pytest.raises(InvalidRequest):
        check_salt(b"s" * 257)


def test_advice_follows_the_rate_at_which_requests_begin() -> None:
    rate = DrainRate()
    for second in range(0, 20, 2):
        rate.began(float(second))
    assert rate.advise(18.0) == 2


def test_those_refused_together_are_told_to_come_back_one_after_the_other() -> None:
    rate = DrainRate()
    for second in range(0, 20, 2):
        rate.began(float(second))
    assert [rate.advise(18.0) for _ in range(3)] == [2, 4, 6]


def test_advice_grows_while_nothing_begins_and_stays_within_1_and_120() -> None:
    rate = DrainRate()
    assert rate.advise(0.0) == 1
    rate = DrainRate()
    rate.began(0.0)
    assert rate.advise(25.0) == 25
    assert rate.advise(10_000.0) == 120
    rate = DrainRate()
    for tick in range(100):
        rate.began(tick / 100)
    assert rate.advise(1.0) == 1
