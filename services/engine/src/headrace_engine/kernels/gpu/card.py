"""The card that kernels are compiled for: the one that is here, or one that is pretended.

Ahead of time there is none. A driver stands in then that knows an architecture and nothing else, and
tensors lie on torch's "meta" device, which has shapes and no bytes. torch and triton are imported when
they are asked for: who only wants to know the card need not wait for them.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

PREBUILT: Final = Path(__file__).parents[1] / "prebuilt" / "triton"
"""Compiled kernels that came with the package, as in an image."""
_SHARED_MEMORY: Final = {
    (8, 0): 163 << 10,
    (8, 6): 99 << 10,
    (8, 7): 163 << 10,
    (8, 9): 99 << 10,
    (9, 0): 227 << 10,
    (10, 0): 227 << 10,
    (10, 3): 227 << 10,
    (11, 0): 227 << 10,
    (12, 0): 99 << 10,
    (12, 1): 99 << 10,
}
"""Most bytes of a program, by capability. Source: NVIDIA's CUDA programming guide, compute capabilities."""
_UNKNOWN_SHARED_MEMORY: Final = 99 << 10
"""As the least of those."""
_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _PROCESSORS = 75, 76, 16
"""Attributes of a device, as cuda.h numbers them."""


class Card(NamedTuple):
    """All of a card that the choice of kernels depends on."""

    major: int
    minor: int
    processors: int
    """Multiprocessors."""

    @property
    def capability(self) -> tuple[int, int]:
        """As torch has it: (9, 0) is sm_90."""
        return self.major, self.minor

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}:{self.processors}"


_pretended: Final[list[Card]] = []
"""At most one; for the whole process."""


def parse_card(text: str) -> Card:
    """The card that ``sm_90:132`` names: architecture and multiprocessors. Raises ValueError."""
    match = re.fullmatch(r"sm_(\d+)(\d):(\d+)", text)
    if match is None or int(match[3]) < 1:
        raise ValueError(f"{text!r} is not a card: expected sm_90:132, say")
    return Card(int(match[1]), int(match[2]), int(match[3]))


def find_card() -> Card | None:
    """The first CUDA device, asked of the driver itself; None where there is none. Takes no memory."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    values: list[int] = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _PROCESSORS):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(value.value)
    return Card(*values)


def pretend(card: Card) -> None:
    """From here on this process compiles for ``card`` and launches nothing.

    Before any module with a kernel is imported: what these choose by the card is chosen then.
    """
    from triton.runtime import driver

    _pretended[:] = [card]
    driver.set_active(cast(Any, _StandIn(card)))


def capability() -> tuple[int, int]:
    """Of the card that kernels are for; (0, 0) where they run in the interpreter."""
    import torch

    if _pretended:
        return _pretended[0].capability
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


def shared_memory() -> int:
    """Bytes that one program may have of it. By the capability alone, so that a card that is named
    and the one that is here give the same kernels."""
    return _SHARED_MEMORY.get(capability(), _UNKNOWN_SHARED_MEMORY)


def processors_of(device: Any) -> int:
    """Multiprocessors of a torch device, which may be the pretended one."""
    import torch

    if device.type == "meta" and _pretended:
        return _pretended[0].processors
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


class _StandIn:
    """What of Triton's driver is asked while nothing is launched."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self._card.major * 10 + self._card.minor, 32)
