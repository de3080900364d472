"""The native kernels as Python sees them: typed, validated, the only caller of the library.

Shapes, layouts, reduction orders and tolerances stand at the head of each file in ``cpu/``.
"""

from __future__ import annotations

import ctypes
import mmap
from ctypes import c_float, c_int32, c_int64, c_uint32, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace_engine.kernels.build import NativeUnavailable, built_library

GROUP: Final = 32
"""Inputs of a linear are padded to whole groups, and rows of its input are zero there."""
LANES: Final = 16
_ALIGNMENT_BYTES: Final = 64
_HUGE_PAGE_BYTES: Final = 2 << 20
_CHUNK_BYTES: Final = 32 << 20
_INTERFACE: Final = 2

_SIGNATURES: Final[dict[str, tuple[object, tuple[object, ...]]]] = {
    "hr_interface": (c_int32, ()),
    "hr_dots_bf16": (c_int32, ()),
    "hr_pool_create": (c_void_p, (c_int32,)),
    "hr_pool_destroy": (None, (c_void_p,)),
    "hr_panels_bytes": (c_int64, (c_int32, c_int32, c_int32)),
    "hr_pack": (
        None,
        (
            c_void_p,
            c_int32,
            c_int32,
            c_void_p,
            c_int64,
            c_int32,
            c_int32,
            c_void_p,
            c_int32,
            c_int32,
        ),
    ),
    "hr_linear": (None, (c_void_p, c_void_p, c_int32, c_void_p, c_int32, c_void_p, c_int32)),
    "hr_decoder_create": (
        c_void_p,
        (c_void_p, c_void_p, c_float, c_void_p, c_void_p, c_void_p, c_void_p),
    ),
    "hr_decoder_destroy": (None, (c_void_p,)),
    "hr_decoder_start": (
        None,
        (c_void_p, c_int32, c_int32, c_void_p, c_int32, c_int32, c_int64, c_int64, c_void_p),
    ),
    "hr_decoder_run": (
        None,
        (
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
            c_int32,
            c_void_p,
            c_int32,
            c_void_p,
            c_int32,
        ),
    ),
    "hr_greedy": (None, (c_void_p, c_void_p, c_int64, c_int32, c_int32, c_void_p, c_void_p)),
    "hr_gumbel": (None, (c_void_p, c_uint32, c_uint32, c_int32, c_void_p)),
}


class Kind(IntEnum):
    """How a linear's weights are held. Numbers as in ``cpu/linear.h``."""

    F32 = 0
    BF16 = 1
    Q4 = 2
    Q8 = 3


class NativeLibrary:
    """The loaded library and its threads. Calls release the interpreter's lock."""

    def __init__(self, threads: int, cache_dir: Path | None = None) -> None:
        """Compiles it if need be. Raises NativeUnavailable."""
        path = built_library(cache_dir)
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeUnavailable(f"{path} cannot be loaded: {error}") from error
        for name, (result, arguments) in _SIGNATURES.items():
            # By attribute: an item would be a new function each time, without its types.
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        if library.hr_interface() != _INTERFACE:
            raise NativeUnavailable(f"{path} has another interface than this version expects")
        self.threads = threads
        self.calls = library
        self.dots_bf16 = bool(library.hr_dots_bf16())
        """Whether bf16 weights are multiplied by bf16 inputs, in the processor's own unit."""
        self.memory = PanelMemory()
        self._pool: int | None = None

    @property
    def pool(self) -> int:
        """Handle of the threads, which begin when it is first asked for."""
        if self._pool is None:
            self._pool = int(self.calls.hr_pool_create(self.threads))
        return self._pool

    def close(self) -> None:
        """Ends the threads. Whoever asks for the pool again begins new ones."""
        if self._pool is not None:
            self.calls.hr_pool_destroy(self._pool)
            self._pool = None

    def greedy(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Index of the largest of each row, and whether every number of the row is finite."""
        rows, vocabulary = _rows_of(logits)
        tokens = np.empty(rows, np.int32)
        finite = np.empty(rows, np.bool_)
        stride = logits.strides[0] // logits.itemsize
        self.calls.hr_greedy(
            self.pool,
            address(logits),
            stride,
            rows,
            vocabulary,
            address(tokens),
            address(finite),
        )
        return tokens, finite

    def gumbel(self, key: tuple[int, int], count: int) -> NDArray[np.float32]:
        """``float32[count]`` noise of token ids ``0 .. count`` under a key of two words."""
        noise = np.empty(count, np.float32)
        self.calls.hr_gumbel(self.pool, key[0], key[1], count, address(noise))
        return noise


class PackedLinear:
    """Panels of one linear, filled part by part."""

    def __init__(self, library: NativeLibrary, kind: Kind, outputs: int, inputs: int) -> None:
        self._library = library
        self.kind = kind
        self.outputs = outputs
        self.inputs = inputs
        size = int(library.calls.hr_panels_bytes(kind, outputs, inputs))
        self.panels = library.memory.take(size)
        self._bias: NDArray[np.float32] | None = None

    def pack(
        self,
        format: int,
        rows: NDArray[np.uint8],
        *,
        first_panel: int = 0,
        panel_stride: int = 1,
    ) -> None:
        """Row ``i`` becomes output ``16 * (panel_stride * (i // 16) + first_panel) + i % 16``.

        ``rows[row, bytes] uint8`` as stored in ``format`` (a ``ggml_type`` number).
        """
        assert rows.flags.c_contiguous
        last_panel = (len(rows) - 1) // LANES * panel_stride + first_panel
        assert last_panel < -(-self.outputs // LANES), "rows do not fit the linear"
        self._library.calls.hr_pack(
            self._library.pool,
            self.kind,
            format,
            address(rows),
            rows.shape[1],
            len(rows),
            self.inputs,
            address(self.panels),
            first_panel,
            panel_stride,
        )

    def set_bias(self, bias: NDArray[np.float32]) -> None:
        """``float32[outputs]``, added to every result."""
        assert bias.shape == (self.outputs,)
        self._bias = np.zeros(padded(self.outputs), np.float32)
        self._bias[: self.outputs] = bias

    @property
    def descriptor(self) -> list[int]:
        """What the library is given: kind, outputs, inputs, panels, bias."""
        bias = 0 if self._bias is None else address(self._bias)
        return [int(self.kind), self.outputs, self.inputs, address(self.panels), bias]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """``x[rows, inputs]`` times the weights, plus the bias: for tests and measurements."""
        wide = np.zeros((len(x), padded(self.inputs)), np.float32)
        wide[:, : self.inputs] = x
        y = np.zeros((len(x), padded(self.outputs)), np.float32)
        descriptor = numbers(self.descriptor)
        self._library.calls.hr_linear(
            self._library.pool,
            address(descriptor),
            len(x),
            address(wide),
            wide.shape[1],
            address(y),
            y.shape[1],
        )
        return y[:, : self.outputs]


def padded(count: int) -> int:
    """``count`` up to a whole number of 32: strides of rows the library reads and writes."""
    return -(-count // GROUP) * GROUP


def numbers(values: list[int]) -> NDArray[np.int64]:
    """A descriptor, or several, as the library reads them."""
    return np.array(values, np.int64)


def address(array: NDArray[np.generic]) -> int:
    """Where the array's bytes lie. The caller keeps the array alive for as long as it is used."""
    return array.ctypes.data


class PanelMemory:
    """Memory for panels, zero at first, handed out in pieces that begin on a cache line.

    It lies on huge pages where the system gives them: a decode step walks through all weights,
    and processors fetch ahead within a page only. A piece keeps its part of the memory alive.
    """

    def __init__(self) -> None:
        self._free = np.zeros(0, np.uint8)

    def take(self, size: int) -> NDArray[np.uint8]:
        """``uint8[size]``."""
        if size > len(self._free):
            self._free = _huge_pages(max(size, _CHUNK_BYTES))
        piece = self._free[:size]
        self._free = self._free[-(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES :]
        return piece


def _huge_pages(size: int) -> NDArray[np.uint8]:
    """At least ``size`` bytes from the start of a huge page to the end of one."""
    size = -(-size // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    # Shared memory, which is Python's default, gets no huge pages.
    memory = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    pages = np.frombuffer(memory, np.uint8)
    skip = -address(pages) % _HUGE_PAGE_BYTES
    return pages[skip : skip + size]


def _rows_of(array: NDArray[np.float32]) -> tuple[int, int]:
    assert array.ndim == 2
    assert array.strides[1] == array.itemsize
    return array.shape[0], array.shape[1]
