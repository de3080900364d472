"""Weights of a decoder on a CUDA device, q/k/v and gate/up fused, streamed from the mapped files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from headrace_engine.model.config import ModelConfig, rope_frequencies, rope_table
from headrace_engine.model.layers import Matrix, Weights
from headrace_engine.model.loader.formats import Format, Progress, RawTensor, as_float32
from headrace_engine.model.pinned_stream import PinnedStream


@dataclass(frozen=True, slots=True)
class CudaLayer:
    """One transformer layer; matrices are ``[outputs, inputs]``."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class CudaWeights:
    """Everything the decoder reads, on one device, in one float type."""

    config: ModelConfig
    embedding: Tensor
    output: Tensor
    final_norm: Tensor
    rope: Tensor
    """float32[positions, 2, head_dim / 2]: cosines, then sines."""
    layers: tuple[CudaLayer, ...]

    @property
    def size(self) -> int:
        """Bytes on the device."""
        tensors = [self.embedding, self.final_norm, self.rope]
        if self.output is not self.embedding:
            tensors.append(self.output)
        for layer in self.layers:
            tensors += [layer.attention_norm, layer.qkv, layer.attention_output, layer.mlp_norm]
            tensors += [layer.gate_up, layer.down]
            tensors += [
                t for t in (layer.qkv_bias, layer.query_norm, layer.key_norm) if t is not None
            ]
        return sum(tensor.nbytes for tensor in tensors)


def load_weights(
    weights: Weights,
    device: torch.device,
    dtype: torch.dtype,
    positions: int,
    progress: Progress | None = None,
) -> CudaWeights:
    """Copies every tensor from its file to the device."""
    mover = _Mover(device, dtype, weights.stored_bytes, progress)
    try:
        return _moved(weights, mover, device, positions)
    finally:
        mover.close()


def _moved(weights: Weights, mover: _Mover, device: torch.device, positions: int) -> CudaWeights:
    config = weights.config
    embedding = mover.matrix(weights.embedding)
    tied = weights.output is weights.embedding
    frequencies = rope_frequencies(config, weights.rope_factors)
    layers = tuple(
        CudaLayer(
            attention_norm=mover.vector(layer.attention_norm),
            qkv=mover.matrix(layer.qkv),
            qkv_bias=None if layer.qkv_bias is None else mover.vector(layer.qkv_bias),
            query_norm=None if layer.query_norm is None else mover.vector(layer.query_norm),
            key_norm=None if layer.key_norm is None else mover.vector(layer.key_norm),
            attention_output=mover.matrix(layer.attention_output),
            mlp_norm=mover.vector(layer.mlp_norm),
            gate_up=mover.matrix(Matrix(layer.gate.parts + layer.up.parts)),
            down=mover.matrix(layer.down),
        )
        for layer in weights.layers
    )
    return CudaWeights(
        config=config,
        embedding=embedding,
        output=embedding if tied else mover.matrix(weights.output),
        final_norm=mover.vector(weights.final_norm),
        rope=torch.as_tensor(rope_table(frequencies, positions)).to(device),
        layers=layers,
    )


def described_weights(config: ModelConfig, dtype: torch.dtype, positions: int) -> CudaWeights:
    """Shapes alone, on torch's "meta" device: what launches look like, without a file or a card."""

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    hidden, wide, head_dim = config.hidden, config.intermediate, config.head_dim
    layer = CudaLayer(
        attention_norm=empty(hidden),
        qkv=empty(config.qkv_width, hidden),
        qkv_bias=empty(config.qkv_width) if config.qkv_bias else None,
        query_norm=empty(head_dim) if config.qk_norm else None,
        key_norm=empty(head_dim) if config.qk_norm else None,
        attention_output=empty(hidden, config.heads * head_dim),
        mlp_norm=empty(hidden),
        gate_up=empty(2 * wide, hidden),
        down=empty(hidden, wide),
    )
    embedding = empty(config.vocabulary, hidden)
    return CudaWeights(
        config=config,
        embedding=embedding,
        output=embedding if config.tied_output else empty(config.vocabulary, hidden),
        final_norm=empty(hidden),
        rope=empty(positions, 2, head_dim // 2, dtype=torch.float32),
        # Every layer launches the same; two show what comes between them.
        layers=(layer,) * min(2, config.layers),
    )


class _Mover:
    def __init__(
        self, device: torch.device, dtype: torch.dtype, total: int, progress: Progress | None
    ) -> None:
        self._device = device
        self._dtype = dtype
        self._done, self._total, self._progress = 0, total, progress
        self._stream = PinnedStream(device) if device.type == "cuda" else None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def vector(self, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values)).to(self._device, self._dtype)

    def matrix(self, matrix: Matrix) -> Tensor:
        shape = (matrix.outputs, matrix.inputs)
        whole = torch.empty(shape, dtype=self._dtype, device=self._device)
        first = 0
        for part in matrix.parts:
            rows = part.shape[0]
            target = whole[first : first + rows]
            if self._stream is not None and _KINDS.get(part.format) == self._dtype:
                self._stream.send(part, target)
            else:
                target.copy_(_tensor(part).view(rows, -1))
            first += rows
            self._done += part.data.nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)
        return whole


_KINDS: Final = {
    Format.BF16: torch.bfloat16,
    Format.F16: torch.float16,
    Format.F32: torch.float32,
}
"""Formats that are stored as torch holds them."""


def _tensor(raw: RawTensor) -> Tensor:
    """The stored values as torch sees them; other formats are expanded to float32."""
    match raw.format:
        case Format.BF16:
            return torch.as_tensor(raw.data.copy().view(np.int16)).view(torch.bfloat16)
        case Format.F16:
            return torch.as_tensor(raw.data.copy().view(np.float16))
        case Format.F32:
            return torch.as_tensor(raw.data.copy().view(np.float32))
        case _:
            return torch.as_tensor(as_float32(raw))
