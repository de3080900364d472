"""Chooses Triton's interpreter, where there is no GPU, before any test module imports triton."""

from __future__ import annotations

from support.gpu import DEVICE

__all__ = ["DEVICE"]
