"""Where kernel tests run: on the GPU where there is one, else in Triton's interpreter.

Import this before anything that imports triton: the interpreter is chosen at that import.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

ON_GPU: bool = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

DEVICE = "cuda" if ON_GPU else "cpu"
# The interpreter computes bfloat16 wrongly, so it is tested on the device alone.
DTYPES = [torch.bfloat16, torch.float16] if ON_GPU else [torch.float32]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Normal values on the test device, the same everywhere for one seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """An output that was never written: NaN, or a value no test expects."""
    fill = float("nan") if dtype.is_floating_point else -77
    return torch.full(shape, fill, dtype=dtype, device=DEVICE)


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference, in float64."""
    expected = reference.double().cpu()
    difference = out.double().cpu() - expected
    return float((difference.square().sum() / expected.square().sum()).sqrt())


def compiled_from_here(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Gets the names of kernels that are compiled from now on. Interpreted, none is."""
    names: list[object] = []

    def note(**what: object) -> None:
        names.append(what["repr"])

    runtime: Any = pytest.importorskip("triton").knobs.runtime
    monkeypatch.setattr(runtime, "jit_post_compile_hook", note)
    return names
