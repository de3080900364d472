"""The weights of a decoder, checked against its configuration, still as the file stores them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace_engine.errors import ModelRejected
from headrace_engine.model.config import ModelConfig
from headrace_engine.model.loader.formats import (
    Checkpoint,
    Format,
    RawTensor,
    as_float32,
    expect_shape,
)

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of one or more stored tensors, one below the other: ``[outputs, inputs]``."""

    parts: tuple[RawTensor, ...]

    @property
    def outputs(self) -> int:
        """Rows: values it produces."""
        return sum(part.shape[0] for part in self.parts)

    @property
    def inputs(self) -> int:
        """Columns: values it reads."""
        return self.parts[0].shape[1]

    @property
    def formats(self) -> frozenset[Format]:
        """How the parts are stored."""
        return frozenset(part.format for part in self.parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk."""
        return sum(part.data.nbytes for part in self.parts)

    def as_float32(self) -> NDArray[np.float32]:
        """``float32[outputs, inputs]``."""
        return np.concatenate([as_float32(part) for part in self.parts])


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one transformer layer."""

    attention_norm: Vector
    """float32[hidden]."""
    qkv: Matrix
    """Queries, then keys, then values: [(heads + 2 * kv_heads) * head_dim, hidden]."""
    qkv_bias: Vector | None
    query_norm: Vector | None
    """float32[head_dim]."""
    key_norm: Vector | None
    """float32[head_dim]."""
    attention_output: Matrix
    """[hidden, heads * head_dim]."""
    mlp_norm: Vector
    gate: Matrix
    """[intermediate, hidden]."""
    up: Matrix
    """[intermediate, hidden]."""
    down: Matrix
    """[hidden, intermediate]."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Everything a decoder is made of."""

    config: ModelConfig
    embedding: Matrix
    """[vocabulary, hidden]."""
    output: Matrix
    """[vocabulary, hidden]; the embedding itself where they are tied."""
    final_norm: Vector
    rope_factors: Vector | None
    """float32[head_dim // 2], divide the rotation frequencies."""
    layers: tuple[Layer, ...]

    @property
    def stored_bytes(self) -> int:
        """Bytes of all matrices on disk."""
        total = self.embedding.stored_bytes
        if self.output is not self.embedding:
            total += self.output.stored_bytes
        for layer in self.layers:
            for matrix in (layer.qkv, layer.attention_output, layer.gate, layer.up, layer.down):
                total += matrix.stored_bytes
        return total


def read_weights(
    config: ModelConfig, checkpoint: Checkpoint, names: Mapping[str, str], *, interleaved: bool
) -> Weights:
    """Finds every tensor and checks its shape; reads norms and biases, maps the matrices.

    ``interleaved``: rows of Q and K are stored pair by pair, as GGUF llama files have them.
    Raises ModelRejected naming file and tensor.
    """
    beyond = names["attention_norm"].format(config.layers)
    if beyond in checkpoint:
        raise ModelRejected(
            f"{config.name}: has a tensor {beyond}, but its configuration says {config.layers} layers"
        )
    source = _Source(config, checkpoint, names, interleaved=interleaved)
    embedding = source.matrix("embedding", config.vocabulary, config.hidden)
    tied = config.tied_output
    return Weights(
        config=config,
        embedding=embedding,
        output=embedding if tied else source.matrix("output", config.vocabulary, config.hidden),
        final_norm=source.vector("final_norm", config.hidden),
        rope_factors=source.optional("rope_factors", config.head_dim // 2),
        layers=tuple(source.layer(index) for index in range(config.layers)),
    )


class _Source:
    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        names: Mapping[str, str],
        *,
        interleaved: bool,
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._names = names
        self._interleaved = interleaved

    def layer(self, index: int) -> Layer:
        config = self._config
        hidden, wide = config.hidden, config.intermediate
        q_width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        query = self._raw("query", (q_width, hidden), index)
        key = self._raw("key", (kv_width, hidden), index)
        value = self._raw("value", (kv_width, hidden), index)
        bias = None
        if config.qkv_bias:
            bias = np.concatenate(
                [
                    self._straight_vector(self.vector("query_bias", q_width, index)),
                    self._straight_vector(self.vector("key_bias", kv_width, index)),
                    self.vector("value_bias", kv_width, index),
                ]
            )
        return Layer(
            attention_norm=self.vector("attention_norm", hidden, index),
            qkv=Matrix((self._straight(query), self._straight(key), value)),
            qkv_bias=bias,
            query_norm=self._head_norm("query_norm", index),
            key_norm=self._head_norm("key_norm", index),
            attention_output=self.matrix("attention_output", hidden, q_width, index),
            mlp_norm=self.vector("mlp_norm", hidden, index),
            gate=self.matrix("gate", wide, hidden, index),
            up=self.matrix("up", wide, hidden, index),
            down=self.matrix("down", hidden, wide, index),
        )

    def matrix(self, role: str, outputs: int, inputs: int, layer: int = 0) -> Matrix:
        return Matrix((self._raw(role, (outputs, inputs), layer),))

    def vector(self, role: str, size: int, layer: int = 0) -> Vector:
        return as_float32(self._raw(role, (size,), layer))

    def optional(self, role: str, size: int) -> Vector | None:
        name = self._names.get(role)
        return self.vector(role, size) if name is not None and name in self._checkpoint else None

    def _head_norm(self, role: str, layer: int) -> Vector | None:
        if not self._config.qk_norm:
            return None
        return self.vector(role, self._config.head_dim, layer)

    def _raw(self, role: str, shape: tuple[int, ...], layer: int) -> RawTensor:
        return expect_shape(self._checkpoint.tensor(self._names[role].format(layer)), shape)

    def _straight(self, raw: RawTensor) -> RawTensor:
        if not self._interleaved:
            return raw
        order = _straight_order(raw.shape[0], self._config.head_dim)
        return RawTensor(raw.name, raw.origin, raw.format, raw.shape, raw.data[order])

    def _straight_vector(self, vector: Vector) -> Vector:
        if not self._interleaved:
            return vector
        return vector[_straight_order(len(vector), self._config.head_dim)]


def _straight_order(rows: int, head_dim: int) -> NDArray[np.int64]:
    """Where to take each row from so that a head's first half holds the first of each pair."""
    if rows % head_dim:
        raise ModelRejected(f"{rows} rows do not make heads of {head_dim} dimensions")
    pairs = np.arange(rows).reshape(-1, head_dim // 2, 2)
    return pairs.swapaxes(1, 2).reshape(-1)
