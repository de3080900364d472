"""Graphs of steps: captured one after the other, and on the device before they first run.

Owner    executor thread
Writes   graphs
Never    waits for the device
Next     headrace_engine.executor.cuda
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress

import torch
from headrace_kit.log import get_logger

log = get_logger(__name__)


@contextmanager
def captured(pool: torch.cuda._POOL_HANDLE) -> Generator[torch.cuda.CUDAGraph]:  # pyright: ignore[reportPrivateUsage]
    """A graph of what is launched within, on the current stream.

    ``torch.cuda.graph`` does more before each: it waits for the device and gives back memory that is
    kept, pinned memory too.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool)
    try:
        yield graph
    except BaseException:
        with suppress(RuntimeError):  # says no more than that the capture is broken
            graph.capture_end()
        raise
    graph.capture_end()


def upload(graphs: Iterable[torch.cuda.CUDAGraph], stream: torch.cuda.Stream) -> None:
    """Brings graphs to the device, which their first replays would do else. Nothing runs."""
    driver = ctypes.CDLL("libcuda.so.1")
    for graph in graphs:
        # The runtime's graph is the driver's.
        executable = ctypes.c_void_p(graph.raw_cuda_graph_exec())
        code = driver.cuGraphUpload(executable, ctypes.c_void_p(stream.cuda_stream))
        if code:  # the first replay does it then, or says why not
            log.warning("graphs.not_uploaded", code=code)
            return
