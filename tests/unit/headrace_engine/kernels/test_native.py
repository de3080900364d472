"""Native kernels against their plain twins."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantization
from gguf import dequantize, quantize
from headrace_engine.executor.sampler import NumpySampling, noise_key
from headrace_engine.kernels.native import Kind, NativeLibrary, PackedLinear, PanelMemory
from numpy.typing import NDArray

if shutil.which("c++") is None and shutil.which("g++") is None:
    pytest.skip("needs a C++ compiler", allow_module_level=True)

Array = NDArray[np.float32]
STORED = [
    (Kind.F32, Quantization.F32),
    (Kind.F32, Quantization.F16),
    (Kind.F32, Quantization.BF16),
    (Kind.F32, Quantization.Q4_0),
    (Kind.F32, Quantization.Q4_1),
    (Kind.F32, Quantization.Q8_0),
    (Kind.BF16, Quantization.BF16),
    (Kind.Q4, Quantization.Q4_0),
    (Kind.Q4, Quantization.Q4_1),
    (Kind.Q8, Quantization.Q8_0),
]
ROWS = (1, 2, 3, 7, 13, 40)


@pytest.fixture(scope="module")
def library() -> Iterator[NativeLibrary]:
    made = NativeLibrary(threads=2)
    yield made
    made.close()


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def packed(
    library: NativeLibrary, kind: Kind, quantization: Quantization, outputs: int, inputs: int
) -> tuple[PackedLinear, Array]:
    """A linear, and the weights it holds as float32."""
    stored = quantize(random(outputs, inputs, seed=outputs), quantization)
    linear = PackedLinear(library, kind, outputs, inputs)
    linear.pack(quantization.value, np.ascontiguousarray(stored).view(np.uint8))
    return linear, dequantize(stored, quantization).reshape(outputs, inputs)


@pytest.mark.parametrize(("kind", "quantization"), STORED)
@pytest.mark.parametrize("shape", [(100, 64), (1088, 160)])
def test_a_linear_equals_the_product_with_the_stored_weights(
    kind: Kind, quantization: Quantization, shape: tuple[int, int], library: NativeLibrary
) -> None:
    linear, weights = packed(library, kind, quantization, *shape)
    bias = random(shape[0], seed=9)
    linear.set_bias(bias)
    rounds = kind is Kind.BF16 and library.dots_bf16
    for rows in ROWS:
        x = random(rows, shape[1], seed=rows)
        exact = x.astype(np.float64) @ weights.T.astype(np.float64) + bias
        size = np.abs(x) @ np.abs(weights).T + np.abs(bias)
        tolerance = (2e-6 if not rounds else 1e-2) * np.sqrt(shape[1]) * size.max()
        assert np.abs(linear(x) - exact).max() < tolerance


@pytest.mark.rule("executor.batch-invariant")
@pytest.mark.parametrize(("kind", "quantization"), STORED[5:])
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    kind: Kind, quantization: Quantization, library: NativeLibrary
) -> None:
    linear, _ = packed(library, kind, quantization, 1088, 160)
    x = random(40, 160)
    together = linear(x)
    for rows in ROWS:
        assert np.array_equal(linear(x[:rows]), together[:rows])
        assert np.array_equal(linear(x[-rows:]), together[-rows:])


def test_inputs_that_fill_no_group_are_padded(library: NativeLibrary) -> None:
    linear, weights = packed(library, Kind.F32, Quantization.F32, 50, 45)
    x = random(5, 45)
    assert np.allclose(linear(x), x @ weights.T, atol=1e-4)


def test_parts_and_strides_place_rows_by_panels(library: NativeLibrary) -> None:
    first, second = random(32, 32, seed=1), random(32, 32, seed=2)
    linear = PackedLinear(library, Kind.F32, 64, 32)
    linear.pack(0, first.view(np.uint8), first_panel=0, panel_stride=2)
    linear.pack(0, second.view(np.uint8), first_panel=1, panel_stride=2)
    x = random(3, 32, seed=3)
    out = linear(x).reshape(3, 2, 2, 16)
    assert np.allclose(out[:, :, 0].reshape(3, 32), x @ first.T, atol=1e-5)
    assert np.allclose(out[:, :, 1].reshape(3, 32), x @ second.T, atol=1e-5)


def test_greedy_equals_its_twin(library: NativeLibrary) -> None:
    logits = random(6, 1003)
    logits[0, [5, 900, 1002]] = 50
    logits[1, 1002] = 60
    logits[2, 500] = np.nan
    logits[3, 1001] = np.inf
    logits[4, 17] = -np.inf
    tokens, finite = library.greedy(logits)
    expected, expected_finite = NumpySampling().greedy(logits)
    assert finite.tolist() == expected_finite.tolist() == [True, True, False, False, False, True]
    assert tokens[finite].tolist() == expected[finite].tolist()
    wide = np.full((3, 2000), 99, np.float32)
    wide[:, :1003] = logits[[0, 1, 5]]
    assert library.greedy(wide[:, :1003])[0].tolist() == expected[[0, 1, 5]].tolist()


def test_noise_equals_its_twin(library: NativeLibrary) -> None:
    for index in range(5):
        key = noise_key(123, 0, index)
        native = library.gumbel(key, 10_007)
        assert np.allclose(native, NumpySampling().gumbel(key, 10_007), rtol=1e-5, atol=1e-5)


def test_many_short_loops_share_their_tasks_without_losing_one(library: NativeLibrary) -> None:
    linear, weights = packed(library, Kind.F32, Quantization.F32, 640, 32)
    x = random(1, 32)
    exact = x @ weights.T
    for _ in range(3000):
        assert np.allclose(linear(x), exact, atol=1e-4)


def test_pieces_of_panel_memory_are_zero_aligned_and_apart() -> None:
    memory = PanelMemory()
    pieces = [memory.take(size) for size in (1, 100, 4096, 40 << 20, 7)]
    for number, piece in enumerate(pieces):
        assert piece.ctypes.data % 64 == 0
        assert not piece.any()
        piece[:] = number + 1
    assert [len(piece) for piece in pieces] == [1, 100, 4096, 40 << 20, 7]
    assert all((piece == number + 1).all() for number, piece in enumerate(pieces))
