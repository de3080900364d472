"""Graphs are captured one after the other, and brought to the device, as far as can be told without one."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from headrace_engine.executor import cuda_graphs
from structlog.testing import capture_logs

pytestmark = pytest.mark.torch


class Graph:
    """What of a graph of torch's is used."""

    def __init__(self, broken: bool = False) -> None:
        self.calls: list[Any] = []
        self.broken = broken

    def capture_begin(self, pool: object) -> None:
        self.calls.append(pool)

    def capture_end(self) -> None:
        self.calls.append("end")
        if self.broken:
            raise RuntimeError("the capture is broken")

    def raw_cuda_graph_exec(self) -> int:
        return 1 << 40  # an address: does not fit in an int of C


class Stream:
    """What of a stream is used."""

    cuda_stream = 1 << 41


class Driver:
    """The one call of the driver's."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.uploaded: list[tuple[int | None, int | None]] = []

    def cuGraphUpload(self, graph: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        self.uploaded.append((graph.value, stream.value))
        return self.code


def test_a_capture_ends_whatever_happens_within(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Graph] = []

    def make() -> Graph:
        made.append(Graph(broken=bool(made)))
        return made[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", make)
    pool: Any = "pool"
    with cuda_graphs.captured(pool):
        assert made[0].calls == ["pool"]
    # What went wrong first is told: memory that is used up, say.
    with pytest.raises(torch.OutOfMemoryError), cuda_graphs.captured(pool):
        raise torch.OutOfMemoryError
    assert [graph.calls for graph in made] == [["pool", "end"], ["pool", "end"]]


@pytest.mark.parametrize(("code", "calls"), [(0, 2), (2, 1)])
def test_graphs_are_uploaded_and_what_the_driver_refuses_is_told(
    code: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(code)
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": driver}.__getitem__)
    graphs: Any = [Graph(), Graph()]
    stream: Any = Stream()
    with capture_logs() as logs:
        cuda_graphs.upload(graphs, stream)
    assert driver.uploaded == [(1 << 40, 1 << 41)] * calls
    assert [log["event"] for log in logs] == ["graphs.not_uploaded"] * (code > 0)
