"""The decoder in plain torch: the twin that the native one is tested against."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace_engine.kernels import reference
from headrace_engine.model.config import rope_frequencies, rope_table
from headrace_engine.model.decoder import (
    LANES,
    CacheLayout,
    DecoderLimits,
    Dtype,
    ForwardInputs,
)
from headrace_engine.model.layers import Layer, Matrix, Vector, Weights
from headrace_engine.model.loader.formats import Progress

_TORCH_DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    # Torch has no linear over these blocks: they are expanded, which costs memory, not accuracy.
    "packed": torch.float32,
}


class TorchDecoder:
    """See Decoder. Gathers each row's KV out of its blocks, so it is slow and simple."""

    def __init__(self, weights: Weights, dtype: Dtype, progress: Progress | None = None) -> None:
        self._config = weights.config
        self._dtype = dtype
        self._weights = weights
        self._torch_dtype = _TORCH_DTYPES[dtype]
        self._done, self._total, self._progress = 0, weights.stored_bytes, progress
        self._embedding = self._tensor(weights.embedding)
        tied = weights.output is weights.embedding
        self._output = self._embedding if tied else self._tensor(weights.output)
        self._final_norm = torch.as_tensor(weights.final_norm)
        self._layers = [_TorchLayer(self, layer) for layer in weights.layers]

    def describe(self) -> dict[str, str | int]:
        """See Decoder."""
        return {"kernels": "torch", "dtype": self._dtype, "threads": torch.get_num_threads()}

    def start(self, limits: DecoderLimits, layout: CacheLayout, region: NDArray[np.uint8]) -> None:
        """See Decoder."""
        self._layout = layout
        kv = torch.float32 if layout.kv_dtype == "float32" else torch.bfloat16
        self._region = torch.as_tensor(region).view(kv)
        frequencies = rope_frequencies(self._config, self._weights.rope_factors)
        self._rope = torch.as_tensor(rope_table(frequencies, limits.positions))

    @torch.inference_mode()
    def run(self, inputs: ForwardInputs) -> NDArray[np.float32]:
        """See Decoder."""
        lengths = np.diff(inputs.offsets)
        starts = np.repeat(inputs.begins - inputs.offsets[:-1], lengths)
        positions = torch.as_tensor(starts + np.arange(len(inputs.tokens), dtype=np.int32))
        cosines, sines = self._rope[positions.long()].unbind(1)
        x = self._embedding[torch.as_tensor(inputs.tokens).long()].float()
        for index, layer in enumerate(self._layers):
            x = x + self._attention(index, layer, x, inputs, cosines, sines)
            hidden = reference.rms_norm(x, layer.mlp_norm, self._config.norm_epsilon)
            gate = reference.linear(hidden, layer.gate)
            up = reference.linear(hidden, layer.up)
            x = x + reference.linear(reference.silu_mul(gate, up), layer.down)
        x = x[torch.as_tensor(inputs.outputs).long()]
        x = reference.rms_norm(x, self._final_norm, self._config.norm_epsilon)
        return reference.linear(x, self._output).numpy()

    def close(self) -> None:
        """See Decoder."""
        self._region = self._rope = torch.empty(0)

    def matrix(self, matrix: Matrix) -> Tensor:
        """For the layers: the matrix as torch holds it."""
        return self._tensor(matrix)

    def _tensor(self, matrix: Matrix) -> Tensor:
        tensor = torch.as_tensor(matrix.as_float32()).to(self._torch_dtype)
        self._done += matrix.stored_bytes
        if self._progress is not None:
            self._progress(self._done, self._total)
        return tensor

    def _attention(
        self,
        index: int,
        layer: _TorchLayer,
        x: Tensor,
        inputs: ForwardInputs,
        cosines: Tensor,
        sines: Tensor,
    ) -> Tensor:
        config = self._config
        hidden = reference.rms_norm(x, layer.attention_norm, config.norm_epsilon)
        qkv = reference.linear(hidden, layer.qkv, layer.qkv_bias)
        qkv = qkv.view(len(x), config.heads + 2 * config.kv_heads, config.head_dim)
        value_head = config.heads + config.kv_heads
        query, key = qkv[:, : config.heads], qkv[:, config.heads : value_head]
        if layer.query_norm is not None and layer.key_norm is not None:
            query = reference.rms_norm(query, layer.query_norm, config.norm_epsilon)
            key = reference.rms_norm(key, layer.key_norm, config.norm_epsilon)
        query = reference.rope(query, cosines, sines)
        key = reference.rope(key, cosines, sines)
        value = qkv[:, value_head:]
        rows = [
            slice(int(first), int(end))
            for first, end in zip(inputs.offsets[:-1], inputs.offsets[1:], strict=True)
        ]
        for row, tokens in enumerate(rows):
            self._store(index, inputs, row, key[tokens], value[tokens])
        out = torch.empty_like(query)
        for row, tokens in enumerate(rows):
            end = int(inputs.begins[row]) + tokens.stop - tokens.start
            keys, values = self._gather(index, inputs, row, end)
            out[tokens] = reference.attention(query[tokens], keys, values, int(inputs.begins[row]))
        return reference.linear(out.reshape(len(x), -1), layer.attention_output)

    def _layer_views(self, index: int, offset: int) -> tuple[Tensor, Tensor]:
        """One layer's keys and values in the block at byte ``offset``, as views."""
        layout = self._layout
        first = offset // layout.item_bytes + index * layout.layer_items
        keys = self._region[first : first + layout.key_items]
        values = self._region[first + layout.key_items : first + layout.layer_items]
        return (
            keys.view(layout.kv_heads, layout.lane_groups, layout.head_dim, LANES),
            values.view(layout.kv_heads, layout.block_tokens, layout.head_dim),
        )

    def _store(
        self, index: int, inputs: ForwardInputs, row: int, key: Tensor, value: Tensor
    ) -> None:
        size = self._layout.block_tokens
        begin, first_block = int(inputs.begins[row]), int(inputs.block_starts[row])
        position = max(begin, int(inputs.store_from[row]))
        end = begin + len(key)
        while position < end:
            block, inside = divmod(position, size)
            stop = min(end, (block + 1) * size)
            keys, values = self._layer_views(index, int(inputs.blocks[first_block + block]))
            tokens = slice(position - begin, stop - begin)
            lanes = torch.arange(inside, inside + stop - position)
            # Advanced indices on both sides of a slice put their axis first: [token, kv_head, dim].
            keys[:, lanes // LANES, :, lanes % LANES] = key[tokens].to(keys.dtype)
            values[:, inside : inside + stop - position] = (
                value[tokens].transpose(0, 1).to(values.dtype)
            )
            position = stop

    def _gather(
        self, index: int, inputs: ForwardInputs, row: int, end: int
    ) -> tuple[Tensor, Tensor]:
        """``float32[end, kv_heads, head_dim]`` keys and values of positions ``0 .. end``."""
        layout = self._layout
        first = int(inputs.block_starts[row])
        count = -(-end // layout.block_tokens)
        pairs = [
            self._layer_views(index, int(offset)) for offset in inputs.blocks[first : first + count]
        ]
        keys = torch.stack([pair[0] for pair in pairs]).float()
        keys = keys.permute(0, 2, 4, 1, 3).reshape(count, -1, layout.kv_heads, layout.head_dim)
        keys = keys[:, : layout.block_tokens].reshape(-1, layout.kv_heads, layout.head_dim)
        values = torch.stack([pair[1] for pair in pairs]).float()
        values = values.transpose(1, 2).reshape(-1, layout.kv_heads, layout.head_dim)
        return keys[:end], values[:end]


class _TorchLayer:
    def __init__(self, decoder: TorchDecoder, layer: Layer) -> None:
        self.attention_norm = torch.as_tensor(layer.attention_norm)
        self.qkv = decoder.matrix(layer.qkv)
        self.qkv_bias = _optional(layer.qkv_bias)
        self.query_norm = _optional(layer.query_norm)
        self.key_norm = _optional(layer.key_norm)
        self.attention_output = decoder.matrix(layer.attention_output)
        self.mlp_norm = torch.as_tensor(layer.mlp_norm)
        self.gate = decoder.matrix(layer.gate)
        self.up = decoder.matrix(layer.up)
        self.down = decoder.matrix(layer.down)


def _optional(vector: Vector | None) -> Tensor | None:
    return None if vector is None else torch.as_tensor(vector)
