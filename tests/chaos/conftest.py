"""A server of the test's own, and engines whose tokens tell which attempt decided them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from support.process import Process, engine_process
from support.redis import RedisServer

Start = Callable[..., Process]


@pytest.fixture
def start(own_server: RedisServer, tmp_path: Path) -> Generator[Start]:
    """Starts engines whose tokens tell the attempt that decided them; ends them afterwards."""
    started: list[Process] = []

    def one(*arguments: str, module: str = "headrace_engine") -> Process:
        process = engine_process(
            tmp_path / f"engine-{len(started)}",
            own_server.url,
            *("--echo-mode", "attempt", "--echo-step-ms", "4", "--lease-ms", "1500"),
            *arguments,
            module=module,
        )
        started.append(process)
        return process

    yield one
    for process in started:
        process.stop()
