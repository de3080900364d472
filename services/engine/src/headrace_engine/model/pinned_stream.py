"""Copies of mapped files to a device: threads read into pinned memory, which the device fetches.

A copy of mapped pages by one thread, and then another from memory that is not pinned, would each
take longer than the bus.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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

    def send(self, data: NDArray[np.uint8], target: Tensor) -> None:
        """Queues a copy of ``data`` to the contiguous ``target`` of as many bytes."""
        source = data.reshape(-1)
        whole = target.view(-1).view(torch.uint8)
        for first in range(0, len(source), len(self._buffers[0])):
            part = source[first : first + len(self._buffers[0])]
            buffer, fetched = self._buffers[self._next], self._fetched[self._next]
            self._next = (self._next + 1) % len(self._buffers)
            if fetched is not None:
                fetched.synchronize()
            self._read(part, buffer.numpy())
            whole[first : first + len(part)].copy_(buffer[: len(part)], non_blocking=True)
            if fetched is not None:
                fetched.record()

    def _read(self, part: NDArray[np.uint8], into: NDArray[np.uint8]) -> None:
        def copy(first: int) -> None:
            last = min(first + self._share, len(part))
            np.copyto(into[first:last], part[first:last])

        for _ in self._pool.map(copy, range(0, len(part), self._share)):
            pass

    def close(self) -> None:
        """Waits until everything was fetched, and ends the threads."""
        for fetched in self._fetched:
            if fetched is not None:
                fetched.synchronize()
        self._pool.shutdown()
