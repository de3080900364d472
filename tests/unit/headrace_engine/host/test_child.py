"""The engine's process by itself: what it leaves with."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from headrace_engine.host.messages import pack_start
from headrace_engine.settings import EngineSettings
from headrace_engine.state.packed import Kind, Unpacker, pack
from headrace_engine.state.shared_cell import shared_memory
from headrace_kit.process import FAILED, OK
from support.faulty_engine import COMMAND
from support.hosts import LIMIT_S

SETTINGS = EngineSettings(executor="echo", cache_blocks=64, model_name="m", log_level="error")


@pytest.mark.rule("threads.two-processes")
@pytest.mark.parametrize(("closes", "code"), [(True, OK), (False, FAILED)])
def test_it_leaves_with_a_failure_where_io_is_gone_and_not_where_io_closes_it(
    closes: bool, code: int
) -> None:
    tests = next(path for path in Path(__file__).parents if path.name == "tests")
    memory = shared_memory()
    io, theirs = socket.socketpair()
    io.settimeout(LIMIT_S)
    child = subprocess.Popen(
        [sys.executable, *COMMAND, str(theirs.fileno()), str(memory)],
        pass_fds=(theirs.fileno(), memory),
        env={**os.environ, "PYTHONPATH": str(tests)},
    )
    try:
        os.close(memory)
        theirs.close()
        io.sendall(pack_start(SETTINGS, "e-1"))
        unpacker = Unpacker()
        while Kind.READY not in [message.kind for message in unpacker.feed(io.recv(1 << 16))]:
            pass
        if closes:
            io.sendall(pack(Kind.CLOSE))
        else:
            io.close()

        assert child.wait(LIMIT_S) == code
    finally:
        io.close()
        child.kill()
        child.wait()
