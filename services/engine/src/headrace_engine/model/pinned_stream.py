"""Copies of files to a device: threads read into pinned memory, which the device fetches.

One thread that copies mapped pages, and then another copy from memory that is not pinned, would each
take longer than the bus. The files are read and not mapped: to give mapped pages back takes as long again
as a third of the copy.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.formats import RawTensor

_COMPARED: Final = 4096
"""Bytes of each tensor that are looked at in the mapped file, too, which stays the one that was opened."""


class PinnedStream:
    """Copies in order. One thread sends; ``close`` waits for the last copy."""

    def __init__(
        self, device: torch.device, *, piece: int = 64 << 20, pieces: int = 3, threads: int = 8
    ) -> None:
        """``piece`` bytes of pinned memory, ``pieces`` times."""
        pinned = device.type == "cuda"
        self._buffers = [
            torch.empty(piece, dtype=torch.uint8, pin_memory=pinned) for _ in range(pieces)
        ]
        self._fetched = [torch.cuda.Event() if pinned else None for _ in range(pieces)]
        self._next = 0
        self._pool = ThreadPoolExecutor(threads, "weights")
        self._share = -(-piece // threads)
        self._files: dict[Path, int] = {}
        """Descriptors, by path."""

    def send(self, raw: RawTensor, target: Tensor) -> None:
        """Queues a copy of all of ``raw`` to the contiguous ``target`` of as many bytes. Raises
        ModelRejected where its file cannot be read any more, or is another one by now."""
        whole = target.view(-1).view(torch.uint8)
        for first in range(0, raw.data.nbytes, len(self._buffers[0])):
            buffer, fetched = self._buffers[self._next], self._fetched[self._next]
            self._next = (self._next + 1) % len(self._buffers)
            if fetched is not None:
                fetched.synchronize()
            size = min(len(buffer), raw.data.nbytes - first)
            self._read(raw, first, buffer.numpy()[:size])
            whole[first : first + size].copy_(buffer[:size], non_blocking=True)
            if fetched is not None:
                fetched.record()

    def _read(self, raw: RawTensor, first: int, into: NDArray[np.uint8]) -> None:
        """Bytes of ``raw`` from ``first`` on, by all threads."""
        parts = [into[at : at + self._share] for at in range(0, len(into), self._share)]
        begins = range(first, first + len(into), self._share)
        if raw.begin is None:
            stored = raw.data.reshape(-1)

            def copy(part: NDArray[np.uint8], begin: int) -> None:
                np.copyto(part, stored[begin : begin + len(part)])
        else:
            file, origin = self._file(raw), raw.begin

            def copy(part: NDArray[np.uint8], begin: int) -> None:
                _fill(part, file, origin + begin, raw)

        for _ in self._pool.map(copy, parts, begins):
            pass
        if raw.begin is not None and first == 0:
            count = min(_COMPARED, len(into))
            if not np.array_equal(into[:count], raw.data.reshape(-1)[:count]):
                raise ModelRejected(f"{raw.origin}: replaced while tensor {raw.name} was read")

    def _file(self, raw: RawTensor) -> int:
        if raw.origin not in self._files:
            try:
                self._files[raw.origin] = os.open(raw.origin, os.O_RDONLY)
            except OSError as error:
                raise ModelRejected(f"{raw.origin}: cannot be read: {error.strerror}") from error
        return self._files[raw.origin]

    def close(self) -> None:
        """Waits until everything was fetched, and ends the threads."""
        for fetched in self._fetched:
            if fetched is not None:
                fetched.synchronize()
        self._pool.shutdown()
        for file in self._files.values():
            os.close(file)


def _fill(part: NDArray[np.uint8], file: int, begin: int, raw: RawTensor) -> None:
    done = 0
    while done < len(part):
        try:
            count = os.preadv(file, [part[done:].data], begin + done)
        except OSError as error:
            raise ModelRejected(
                f"{raw.origin}: tensor {raw.name} cannot be read: {error.strerror}"
            ) from error
        if not count:
            raise ModelRejected(
                f"{raw.origin}: tensor {raw.name} is truncated: the file has become shorter"
            )
        done += count
