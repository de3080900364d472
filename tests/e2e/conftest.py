"""The served stack: one for the whole run, and others made to measure."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path

import pytest
from support.api import Api
from support.stack import Stack, StartStack, start_stack

ORIGIN = "https://ui.example"


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    """The default model in float32 behind one gateway, as ``headrace serve`` starts it."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("stack")
    running = start_stack(
        folder / "state", "--quiet", env={"HEADRACE_GATEWAY_CORS_ORIGINS": ORIGIN}
    )
    yield running
    assert running.stop() == 0, running.output()


@pytest.fixture
def api(stack: Stack) -> Generator[Api]:
    """The stack's own key at its first gateway."""
    client = Api(stack)
    yield client
    client.client.close()


@pytest.fixture
def start(tmp_path: Path) -> Generator[StartStack]:
    """Starts stacks with arguments and environment of the test's own; ends them after it."""
    running: list[Stack] = []

    def begin(*args: str, env: Mapping[str, str] | None = None) -> Stack:
        made = start_stack(tmp_path / f"state-{len(running)}", "--quiet", *args, env=env)
        running.append(made)
        return made

    yield begin
    for made in running:
        made.stop()
