"""The decoder on the native kernels: weights packed once, then one call a pass."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace_engine.errors import ModelRejected
from headrace_engine.kernels.native import (
    LANES,
    Kind,
    NativeLibrary,
    PackedLinear,
    address,
    numbers,
    padded,
)
from headrace_engine.model.config import ModelConfig, rope_frequencies, rope_table
from headrace_engine.model.decoder import CacheLayout, DecoderLimits, Dtype, ForwardInputs
from headrace_engine.model.layers import Layer, Matrix, Weights
from headrace_engine.model.loader.formats import Format, Progress, RawTensor, as_float32

_READ_NATIVELY: Final = frozenset(
    {Format.F32, Format.F16, Format.BF16, Format.Q4_0, Format.Q4_1, Format.Q8_0}
)
_PACKED_KINDS: Final = (
    (frozenset({Format.Q4_0, Format.Q4_1}), Kind.Q4),
    (frozenset({Format.Q8_0}), Kind.Q8),
    (frozenset({Format.BF16}), Kind.BF16),
)


def unsupported_reason(config: ModelConfig) -> str | None:
    """Why the native kernels cannot run this model, or None when they can."""
    if config.head_dim % LANES:
        return f"heads of {config.head_dim} dimensions, not a multiple of {LANES}"
    return None


class NativeDecoder:
    """See Decoder. Owns the library's threads."""

    def __init__(
        self,
        library: NativeLibrary,
        weights: Weights,
        dtype: Dtype,
        progress: Progress | None = None,
    ) -> None:
        """Reads and packs every weight. Raises ModelRejected when ``packed`` finds none to keep."""
        self._library = library
        self._config = weights.config
        self._dtype: Dtype = dtype
        self._rope_factors = weights.rope_factors
        self._done, self._total, self._progress = 0, weights.stored_bytes, progress
        if dtype == "packed":
            _check_packed(weights)
        self._embedding = self._linear(weights.embedding)
        tied = weights.output is weights.embedding
        self._output = self._embedding if tied else self._linear(weights.output)
        self._final_norm = weights.final_norm
        self._layers = [_NativeLayer(self, layer) for layer in weights.layers]
        self._decoder: int | None = None

    def describe(self) -> dict[str, str | int]:
        """See Decoder."""
        return {
            "kernels": "native",
            "dtype": self._dtype,
            "threads": self._library.threads,
            "bf16_dot_products": str(self._library.dots_bf16).lower(),
        }

    def start(self, limits: DecoderLimits, layout: CacheLayout, region: NDArray[np.uint8]) -> None:
        """See Decoder. Raises ValueError for blocks that are not whole groups of 16 tokens."""
        if layout.block_tokens % LANES:
            raise ValueError(
                f"block_tokens is {layout.block_tokens}; native kernels need a multiple of {LANES}"
            )
        self._free()
        self._decoder = self._create()
        self._region = region
        frequencies = rope_frequencies(self._config, self._rope_factors)
        self._rope = rope_table(frequencies, limits.positions)
        width = padded(self._config.vocabulary)
        self._logits = np.zeros((limits.outputs, width), np.float32)
        self._limits = limits
        self._library.calls.hr_decoder_start(
            self._handle,
            limits.tokens,
            limits.outputs,
            address(region),
            layout.block_tokens,
            layout.item_bytes,
            layout.key_items,
            layout.layer_items,
            address(self._rope),
        )

    def run(self, inputs: ForwardInputs) -> NDArray[np.float32]:
        """See Decoder."""
        # The kernels trust what they are given: a number out of range would write anywhere.
        assert len(inputs.tokens) <= self._limits.tokens
        assert len(inputs.outputs) <= self._limits.outputs
        if len(inputs.tokens):
            assert int(inputs.tokens.min()) >= 0
            assert int(inputs.tokens.max()) < self._config.vocabulary
            ends = inputs.begins + np.diff(inputs.offsets)
            assert int(ends.max()) <= self._limits.positions
            self._library.calls.hr_decoder_run(
                self._handle,
                address(inputs.tokens),
                address(inputs.offsets),
                address(inputs.begins),
                address(inputs.blocks),
                address(inputs.block_starts),
                address(inputs.store_from),
                len(inputs.begins),
                address(inputs.outputs),
                len(inputs.outputs),
                address(self._logits),
                self._logits.shape[1],
            )
        return self._logits[: len(inputs.outputs), : self._config.vocabulary]

    def close(self) -> None:
        """See Decoder."""
        self._free()
        self._library.close()

    def linear(self, matrix: Matrix) -> PackedLinear:
        """For the layers: the matrix in panels."""
        return self._linear(matrix)

    def alternating(self, first: Matrix, second: Matrix) -> PackedLinear:
        """For the layers: panels of two matrices in turns, so that one tile holds both halves."""
        kind = self._kind(Matrix((*first.parts, *second.parts)))
        # A whole panel of each for every 16 outputs.
        outputs = 2 * -(-first.outputs // LANES) * LANES
        linear = PackedLinear(self._library, kind, outputs, first.inputs)
        for phase, matrix in enumerate((first, second)):
            (part,) = matrix.parts
            self._pack(linear, part, first_panel=phase, panel_stride=2)
        return linear

    @property
    def _handle(self) -> int:
        assert self._decoder is not None, "the decoder is not started"
        return self._decoder

    def _free(self) -> None:
        if self._decoder is not None:
            self._library.calls.hr_decoder_destroy(self._decoder)
            self._decoder = None
        self._region = np.zeros(0, np.uint8)
        self._rope = self._logits = np.zeros((0, 0), np.float32)

    def _create(self) -> int:
        config = self._config
        sizes = np.array(
            [
                config.layers,
                config.hidden,
                config.intermediate,
                config.heads,
                config.kv_heads,
                config.head_dim,
                config.vocabulary,
            ],
            np.int32,
        )
        # Named, because an address does not keep its array alive.
        embedding, output = numbers(self._embedding.descriptor), numbers(self._output.descriptor)
        layers = numbers([number for layer in self._layers for number in layer.descriptor])
        handle: int = self._library.calls.hr_decoder_create(
            self._library.pool,
            address(sizes),
            config.norm_epsilon,
            address(embedding),
            address(output),
            address(self._final_norm),
            address(layers),
        )
        return handle

    def _linear(self, matrix: Matrix) -> PackedLinear:
        linear = PackedLinear(self._library, self._kind(matrix), matrix.outputs, matrix.inputs)
        panel = 0
        for part in matrix.parts:
            assert panel == 0 or part.shape[0] % LANES == 0 or part is matrix.parts[-1]
            self._pack(linear, part, first_panel=panel)
            panel += -(-part.shape[0] // LANES)
        return linear

    def _kind(self, matrix: Matrix) -> Kind:
        match self._dtype:
            case "float32":
                return Kind.F32
            case "bfloat16":
                return Kind.BF16
            case "packed":
                for formats, kind in _PACKED_KINDS:
                    if matrix.formats <= formats:
                        return kind
                return Kind.F32

    def _pack(
        self, linear: PackedLinear, part: RawTensor, *, first_panel: int, panel_stride: int = 1
    ) -> None:
        format, rows = part.format, part.data
        if format not in _READ_NATIVELY:
            rows = as_float32(part).view(np.uint8)
            format = Format.F32
        rows = np.ascontiguousarray(rows)
        linear.pack(format.value, rows, first_panel=first_panel, panel_stride=panel_stride)
        self._done += part.data.nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


class _NativeLayer:
    def __init__(self, decoder: NativeDecoder, layer: Layer) -> None:
        self._attention_norm = layer.attention_norm
        self._mlp_norm = layer.mlp_norm
        self._query_norm = layer.query_norm
        self._key_norm = layer.key_norm
        qkv = decoder.linear(layer.qkv)
        if layer.qkv_bias is not None:
            qkv.set_bias(layer.qkv_bias)
        self._linears = (
            qkv,
            decoder.linear(layer.attention_output),
            decoder.alternating(layer.gate, layer.up),
            decoder.linear(layer.down),
        )

    @property
    def descriptor(self) -> list[int]:
        """Four norms, then the linears, as the library reads them."""
        norms = (self._attention_norm, self._mlp_norm, self._query_norm, self._key_norm)
        found = [0 if norm is None else address(norm) for norm in norms]
        for linear in self._linears:
            found += linear.descriptor
        return found


def _check_packed(weights: Weights) -> None:
    matrices = [
        matrix
        for layer in weights.layers
        for matrix in (layer.qkv, layer.attention_output, layer.gate, layer.up, layer.down)
    ]
    kept = _PACKED_KINDS[0][0] | _PACKED_KINDS[1][0]
    if not any(matrix.formats <= kept for matrix in matrices):
        part = matrices[0].parts[0]
        raise ModelRejected(
            f"{part.origin}: packed needs weights stored as Q4_0, Q4_1 or Q8_0; tensor {part.name}"
            f" is {part.format.name}"
        )
