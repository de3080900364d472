"""What a model is, in numbers: read from ``config.json`` or GGUF metadata, never guessed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """RoPE scaling of Llama 3.1 and later: long wavelengths are stretched, short ones kept."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """RoPE positions divided by ``factor``."""

    factor: float


RopeScaling = Llama3Scaling | LinearScaling


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only model of the llama family.

    Invariants
        heads % kv_heads == 0
        head_dim % 2 == 0
    """

    name: str
    architecture: str
    vocabulary: int
    context_tokens: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_output: bool
    qkv_bias: bool
    qk_norm: bool
    """Queries and keys are normed head by head before they are rotated."""
    eos_token_ids: tuple[int, ...]

    @property
    def qkv_width(self) -> int:
        """Columns of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


def rope_frequencies(
    config: ModelConfig, factors: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """``float32[head_dim // 2]`` radians per position; ``factors`` divide them (GGUF's rope_freqs)."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    base = np.float32(config.rope_theta) ** exponents
    frequencies = (np.float32(1.0) / base).astype(np.float32)
    if factors is not None:
        return (frequencies / factors).astype(np.float32)
    match config.rope_scaling:
        case None:
            return frequencies
        case LinearScaling(factor=factor):
            return (frequencies / np.float32(factor)).astype(np.float32)
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)


def _llama3(frequencies: NDArray[np.float32], scaling: Llama3Scaling) -> NDArray[np.float32]:
    wavelengths = 2 * math.pi / frequencies
    context = scaling.original_context_tokens
    smooth = (context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth = np.clip(smooth, 0.0, 1.0)
    blended = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    return blended.astype(np.float32)


def rope_table(frequencies: NDArray[np.float32], positions: int) -> NDArray[np.float32]:
    """``float32[positions, 2, head_dim // 2]``: cosines, then sines, of each position."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies[None, :]
    return np.ascontiguousarray(np.stack([np.cos(angles), np.sin(angles)], axis=1))
