"""How numbers of a tensor are stored, and how they become float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from headrace_engine.errors import ModelRejected

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while weights are read."""


class Format(Enum):
    """Storage of a tensor on disk. Values are ``ggml_type`` numbers."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


BLOCKS: Final[dict[Format, tuple[int, int]]] = {
    Format.F32: (1, 4),
    Format.F16: (1, 2),
    Format.BF16: (1, 2),
    Format.Q4_0: (32, 18),
    Format.Q4_1: (32, 20),
    Format.Q8_0: (32, 34),
    Format.Q4_K: (256, 144),
    Format.Q5_K: (256, 176),
    Format.Q6_K: (256, 210),
}
"""Weights and bytes of one block of each format."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as the file stores it: ``data[rows, row_bytes] uint8``, mapped, not copied."""

    name: str
    origin: Path
    format: Format
    shape: tuple[int, ...]
    """Row-major; rows are every axis but the last."""
    data: NDArray[np.uint8]
    begin: int | None = None
    """Byte of ``origin`` at which ``data`` begins, where it is as it lies there."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.data.shape[1]


class Checkpoint(Protocol):
    """Tensors by name. Reading is lazy: nothing is touched before ``tensor`` is called."""

    @property
    def path(self) -> Path:
        """The file or folder it was opened from."""
        ...

    @property
    def digest(self) -> str:
        """Changes whenever a weight or the configuration does."""
        ...

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str) -> RawTensor:
        """Raises ModelRejected naming file and tensor when it is missing or truncated."""
        ...


def row_bytes(format: Format, columns: int) -> int | None:
    """Bytes of a row of ``columns`` weights, or None when they do not fill whole blocks."""
    weights, size = BLOCKS[format]
    return columns // weights * size if columns % weights == 0 else None


def as_float32(raw: RawTensor) -> NDArray[np.float32]:
    """The tensor's values in its own shape. A plain copy for float32."""
    match raw.format:
        case Format.F32:
            values = raw.data.view(np.float32).copy()
        case Format.F16:
            values = raw.data.view(np.float16).astype(np.float32)
        case Format.BF16:
            values = (raw.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        case _:
            values = dequantize(raw.data, GGMLQuantizationType(raw.format.value))
    return values.reshape(raw.shape)


def expect_shape(raw: RawTensor, shape: tuple[int, ...]) -> RawTensor:
    """Raises ModelRejected unless the tensor has ``shape``; returns it."""
    if raw.shape != shape:
        raise ModelRejected(
            f"{raw.origin}: tensor {raw.name} has shape {list(raw.shape)}, expected {list(shape)}"
        )
    return raw
