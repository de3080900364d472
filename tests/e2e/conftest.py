"""One served stack for all end-to-end tests: two gateways, one engine, the default model."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from support import smollm2
from support.api import Api
from support.served import STACK_VARIABLE, ServedStack, StartStack, served_stack

ORIGIN = "https://ui.example"
"""An origin whose pages may call the session's stack."""


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServedStack]:
    """``headrace serve`` on free ports, in float32; or the one that ``STACK_VARIABLE`` names."""
    if running := os.environ.get(STACK_VARIABLE):
        yield ServedStack.from_json(Path(running).read_text())
        return
    smollm2.model_path()
    with served_stack(
        tmp_path_factory.mktemp("stack"),
        ["--gateways=2"],
        {"HEADRACE_GATEWAY_CORS_ORIGINS": ORIGIN},
    ) as served:
        yield served


@pytest.fixture
def api(stack: ServedStack) -> Generator[Api]:
    """The session's stack, through its first gateway, with its own key."""
    with Api(stack) as made:
        yield made


@pytest.fixture
def start(tmp_path: Path) -> Generator[StartStack]:
    """Starts stacks with a test's own arguments and environment, and ends them after it."""
    with ExitStack() as running:

        def begin(*arguments: str, environ: Mapping[str, str] | None = None) -> ServedStack:
            folder = tmp_path / f"stack-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return running.enter_context(served_stack(folder, arguments, environ))

        yield begin
