"""torch by shapes alone: what a rehearsal on the "meta" device need not compute.

Owner    the process that rehearses a start
Never    is in force where anything is computed
Next     headrace_engine.executor.cuda_ahead

torch itself knows the shapes of a few operations from Python alone, and imports its compiler before it
says so, which takes longer than the whole rehearsal. They launch no kernel of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def shapes_alone() -> TorchFunctionMode:
    """A context in which such operations give a tensor of the right shape, and no more."""
    return _ShapesAlone()


def _out(*_: Any, out: Tensor, **__: Any) -> Tensor:
    return out


def _same(values: Tensor, *_: Any) -> Tensor:
    return values


def _column(values: Tensor, *_: Any, **__: Any) -> Tensor:
    return values[:, :1]


def _gathered(_values: Tensor, _dim: int, index: Tensor) -> Tensor:
    return index


def _top(values: Tensor, count: int, _dim: int) -> tuple[Tensor, Tensor]:
    return values[:, :count], values[:, :count]


_INSTEAD: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    torch.mm: _out,
    torch.addmm: _out,
    torch.index_select: _out,
    torch.arange: torch.empty,
    torch.logsumexp: _column,
    torch.gather: _gathered,
    torch.topk: _top,
    torch.Tensor.sub: _same,
}


class _ShapesAlone(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _INSTEAD.get(func, func)(*args, **(kwargs or {}))
