"""Sampling: exactness, statistics, and independence of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from headrace_engine.executor.sampler import (
    NumpySampling,
    Sampler,
    filtered,
    gumbel,
    most_likely,
    noise_key,
)
from headrace_engine.state.batch import BatchOutput, SlotStart
from numpy.typing import NDArray
from support.batch import slot_sampling

VOCABULARY = 50
Row = NDArray[np.float32]


def logits_of(seed: int = 0, rows: int = 1, spread: float = 2.0) -> Row:
    random = np.random.default_rng(seed)
    return (spread * random.standard_normal((rows, VOCABULARY))).astype(np.float32)


def sampler(*starts: SlotStart) -> Sampler:
    made = Sampler(16, VOCABULARY, NumpySampling())
    for start in starts:
        made.start(start)
    return made


def start(
    slot: int = 0, tokens: tuple[int, ...] = (1, 2), prompt: int = 2, choice: int = 0, **fields: Any
) -> SlotStart:
    return SlotStart(slot, np.array(tokens, np.int32), prompt, choice, slot_sampling(**fields))


def sample(
    made: Sampler, logits: Row, index: int = 0, slots: tuple[int, ...] = (0,)
) -> BatchOutput:
    return made.sample(np.array(slots, np.int32), np.full(len(slots), index, np.int32), logits)


def draws(logits: Row, count: int, **fields: Any) -> Row:
    """Frequencies of ``count`` samples of one row, each at another index."""
    made = sampler(start(temperature=fields.pop("temperature", 1.0), **fields))
    tokens = [int(sample(made, logits, index).tokens[0]) for index in range(count)]
    return (np.bincount(tokens, minlength=VOCABULARY) / count).astype(np.float32)


def kept(scaled: Row, top_k: int, top_p: float, min_p: float) -> list[int]:
    ids = filtered(scaled, top_k, top_p, min_p)
    assert ids is not None
    return ids.tolist()


def softmax(logits: Row) -> Row:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def test_greedy_takes_the_most_likely_and_the_first_of_equals() -> None:
    logits = logits_of()
    made = sampler(start())
    assert sample(made, logits).tokens[0] == logits[0].argmax()
    logits[0, [7, 3, 30]] = 99
    assert sample(made, logits).tokens[0] == 3
    assert made.last_tokens[0] == 3


def test_frequencies_follow_the_probabilities() -> None:
    logits = logits_of(spread=1.5)
    found = draws(logits, 6000, temperature=0.8)
    expected = softmax(logits[0] / np.float32(0.8))
    assert np.abs(found - expected).max() < 0.025


def test_top_k_keeps_k_tokens_in_their_proportion() -> None:
    logits = logits_of()
    found = draws(logits, 3000, top_k=3)
    largest = np.argsort(-logits[0])[:3]
    assert set(np.flatnonzero(found)) <= set(largest)
    assert np.abs(found[largest] - softmax(logits[0][largest])).max() < 0.035


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    assert kept(logits, 0, 0.5, 0.0) == [0]
    assert kept(logits, 0, 0.51, 0.0) == [0, 1]
    assert kept(logits, 0, 0.95, 0.0) == [0, 1, 2]
    assert kept(logits, 0, 1e-9, 0.0) == [0]
    assert kept(logits, 2, 0.9, 0.0) == [0, 1]
    assert kept(logits, 0, 1.0, 0.25) == [0, 1, 2]
    assert filtered(logits, 0, 1.0, 0.0) is None
    assert filtered(logits, 4, 1.0, 0.0) is None


def test_top_p_over_a_flat_vocabulary_looks_beyond_the_first_tokens() -> None:
    flat = np.zeros(5000, np.float32)
    assert kept(flat, 0, 0.9, 0.0) == list(range(4500))


@pytest.mark.parametrize("temperature", [9e-6, 1e-40, 1e-50])
def test_a_temperature_that_nothing_can_be_divided_by_takes_the_most_likely(
    temperature: float,
) -> None:
    logits = logits_of(rows=4)
    filters: list[dict[str, Any]] = [{}, {"min_p": 0.5}, {"top_p": 0.5}, {"top_k": 3, "min_p": 1.0}]
    made = sampler(*[start(i, temperature=temperature, **one) for i, one in enumerate(filters)])
    output = sample(made, logits, slots=(0, 1, 2, 3))
    assert output.tokens.tolist() == logits.argmax(1).tolist()
    assert not output.failed.any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_fails_alone_where_penalties_leave_no_number(temperature: float) -> None:
    fields: dict[str, Any] = {"temperature": temperature, "min_p": 0.1, "tokens": range(50)}
    made = sampler(start(0, repetition_penalty=1e-40, **fields), start(1, **fields))
    output = sample(made, logits_of(rows=2), slots=(0, 1))
    assert output.failed.tolist() == [True, False]
    assert output.tokens[0] == 0


def test_a_bias_beyond_what_can_be_divided_decides() -> None:
    made = sampler(start(temperature=0.1, min_p=0.5, bias_ids=(3,), bias_values=(2e38,)))
    assert sample(made, logits_of()).tokens[0] == 3


def test_the_same_seed_gives_the_same_token_and_another_one_another() -> None:
    logits = logits_of(spread=0.1)
    tokens = {
        name: [int(sample(sampler(s), logits, index).tokens[0]) for index in range(20)]
        for name, s in {
            "first": start(temperature=1.0, seed=5),
            "again": start(temperature=1.0, seed=5),
            "seed": start(temperature=1.0, seed=6),
            "choice": start(temperature=1.0, seed=5, choice=1),
        }.items()
    }
    assert tokens["first"] == tokens["again"]
    assert tokens["first"] != tokens["seed"]
    assert tokens["first"] != tokens["choice"]
    assert len(set(tokens["first"])) > 5


@pytest.mark.rule("sampling.batch-invariant")
def test_a_token_is_the_same_alone_and_in_a_batch() -> None:
    rows = logits_of(rows=8, spread=0.5)
    fields: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "presence_penalty": 0.5, "seed": 3}
    alone = sampler(start(5, **fields))
    crowded = sampler(*(start(slot, seed=slot, temperature=2.0) for slot in range(8)))
    crowded.start(start(5, **fields))
    for index in range(10):
        one = sample(alone, rows[5:6], index, slots=(5,)).tokens[0]
        many = sample(crowded, rows, index, slots=tuple(range(8))).tokens[5]
        assert one == many


def test_stop_tokens_are_banned_until_the_least_number_of_tokens() -> None:
    logits = logits_of()
    logits[0, 4] = 100
    made = sampler(start(stop_token_ids=frozenset({4}), min_new_tokens=2))
    second = int(np.argsort(-logits[0])[1])
    assert [int(sample(made, logits, index).tokens[0]) for index in range(3)] == [second, second, 4]


def test_bias_moves_logits() -> None:
    logits = logits_of()
    made = sampler(start(bias_ids=(9, int(logits.argmax())), bias_values=(50.0, -100.0)))
    assert sample(made, logits).tokens[0] == 9


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, 1] = 1.0
    logits[0, 7] = 0.9
    # Token 1 is in the prompt: not penalized until it was generated.
    made = sampler(start(presence_penalty=0.5))
    assert [int(sample(made, logits, i).tokens[0]) for i in range(4)] == [1, 7, 1, 1]
    made = sampler(start(frequency_penalty=0.08))
    assert [int(sample(made, logits, i).tokens[0]) for i in range(5)] == [1, 1, 7, 1, 7]


def test_repetition_counts_the_prompt_too() -> None:
    logits = np.full((1, VOCABULARY), -5.0, np.float32)
    logits[0, 1] = 2.0
    logits[0, 7] = 1.5
    assert sample(sampler(start(repetition_penalty=2.0)), logits).tokens[0] == 7
    logits[0, [1, 7]] = -1.0, -1.5
    assert sample(sampler(start(repetition_penalty=2.0)), logits).tokens[0] == 7


def test_a_sequence_that_enters_a_slot_again_counts_what_it_had_generated() -> None:
    logits = np.zeros((1, VOCABULARY), np.float32)
    logits[0, 1], logits[0, 7] = 1.0, 0.9
    made = sampler(start(tokens=(5, 1, 1), prompt=1, frequency_penalty=0.06))
    assert sample(made, logits, 2).tokens[0] == 7
    made.start(start(tokens=(5,), prompt=1, frequency_penalty=0.06))
    assert sample(made, logits, 0).tokens[0] == 1


def test_logprobs_come_from_raw_logits() -> None:
    logits = logits_of(rows=2)
    made = sampler(
        start(0, temperature=0.3, logprobs=3, bias_ids=(11,), bias_values=(100.0,)), start(1)
    )
    output = sample(made, logits, slots=(0, 1))
    raw = np.log(softmax(logits[0]))
    assert output.chosen_logprobs is not None
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    assert output.tokens[0] == 11
    assert output.chosen_logprobs[0] == pytest.approx(raw[11], abs=1e-5)
    assert output.top_ids[0].tolist() == np.argsort(-raw)[:3].tolist()
    assert np.allclose(output.top_logprobs[0], np.sort(raw)[::-1][:3], atol=1e-5)


def test_logprobs_are_no_more_than_there_are_tokens() -> None:
    made = Sampler(1, 5, NumpySampling())
    made.start(start(logprobs=20))
    logits = np.array([[0.0, 3.0, 1.0, 4.0, 2.0]], np.float32)
    output = sample(made, logits)
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    assert output.top_ids.tolist() == [[3, 1, 4, 2, 0]]
    assert np.exp(output.top_logprobs).sum() == pytest.approx(1.0)


def test_no_logprobs_are_computed_when_nobody_asks() -> None:
    output = sample(sampler(start()), logits_of())
    assert output.chosen_logprobs is None
    assert output.top_ids is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_fails_alone(bad: float) -> None:
    logits = logits_of(rows=3)
    logits[1, 20] = bad
    made = sampler(*(start(slot, temperature=1.0, logprobs=2) for slot in range(3)))
    output = sample(made, logits, slots=(0, 1, 2))
    assert output.failed.tolist() == [False, True, False]
    clean = logits.copy()
    clean[1] = 0
    again = sampler(*(start(slot, temperature=1.0, logprobs=2) for slot in range(3)))
    expected = sample(again, clean, slots=(0, 1, 2))
    assert output.tokens[[0, 2]].tolist() == expected.tokens[[0, 2]].tolist()


def test_noise_has_the_mean_and_spread_of_a_gumbel_distribution() -> None:
    noise = gumbel(np.arange(200_000, dtype=np.uint32), noise_key(1, 0, 0))
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.std() == pytest.approx(np.pi / np.sqrt(6), abs=0.01)
    assert np.isfinite(noise).all()


def test_noise_of_neighbouring_samples_is_unrelated() -> None:
    ids = np.arange(20_000, dtype=np.uint32)
    keys = [noise_key(7, 0, 0), noise_key(7, 0, 1), noise_key(7, 1, 0), noise_key(8, 0, 0)]
    noise = np.stack([gumbel(ids, key) for key in keys])
    related = np.corrcoef(noise) - np.eye(4)
    assert np.abs(related).max() < 0.04


def test_noise_keys_are_what_they_were() -> None:
    # A request that moves to another engine, or version, must go on with the same noise.
    assert noise_key(0, 0, 0) == noise_key(1 << 64, 0, 0)
    assert noise_key(42, 1, 7) == (0x163EE034, 0x20C80CD9)


def test_most_likely_orders_equal_values_by_index() -> None:
    values = np.array([1, 3, 3, 2, 3], np.float32)
    assert most_likely(values, 2).tolist() == [1, 2]
    assert most_likely(values, 9).tolist() == [1, 2, 4, 3, 0]
    assert most_likely(values, 0).tolist() == []
