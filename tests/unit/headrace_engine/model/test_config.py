"""Rotation frequencies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from headrace_engine.model.config import (
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    rope_frequencies,
    rope_table,
)

CONFIG = ModelConfig(
    name="m",
    architecture="llama",
    vocabulary=10,
    context_tokens=100,
    layers=1,
    hidden=32,
    intermediate=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    norm_epsilon=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    tied_output=True,
    qkv_bias=False,
    qk_norm=False,
    eos_token_ids=(),
)


def test_frequencies_fall_from_one_by_equal_factors() -> None:
    assert np.allclose(rope_frequencies(CONFIG), [1, 0.1, 0.01, 0.001])


def test_linear_scaling_and_stored_factors_divide() -> None:
    linear = rope_frequencies(replace(CONFIG, rope_scaling=LinearScaling(4.0)))
    assert np.allclose(linear, [0.25, 0.025, 0.0025, 0.00025])
    factors = np.array([1, 1, 2, 8], np.float32)
    assert np.allclose(rope_frequencies(CONFIG, factors), [1, 0.1, 0.005, 0.000125])


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    scaling = Llama3Scaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context_tokens=64
    )
    found = rope_frequencies(replace(CONFIG, rope_scaling=scaling))
    # Wavelengths 6, 63, 628 and 6283 of 64 positions: kept, in between, stretched, stretched.
    assert np.isclose(found[0], 1.0)
    assert 0.1 / 8 < found[1] < 0.1
    assert np.allclose(found[2:], [0.01 / 8, 0.001 / 8])


def test_a_table_holds_cosines_then_sines() -> None:
    table = rope_table(rope_frequencies(CONFIG), 5)
    assert table.shape == (5, 2, 4)
    assert np.allclose(table[3, 0], np.cos([3, 0.3, 0.03, 0.003]))
    assert np.allclose(table[3, 1], np.sin([3, 0.3, 0.03, 0.003]))


def test_qkv_width_counts_queries_keys_and_values() -> None:
    assert CONFIG.qkv_width == (4 + 2 + 2) * 8
