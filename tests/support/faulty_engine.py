"""``python -m support.faulty_engine``: an echo engine whose executor dies at a token of the prompt.

The process ends as if the device driver had taken it down: no clean-up of any kind runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from typing import Final

from headrace_engine.app import EngineProcess
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.host import child
from headrace_engine.host.child import leave
from headrace_engine.host.threads import Load
from headrace_engine.loading import LoadedModel
from headrace_engine.settings import EngineSecrets, EngineSettings
from headrace_engine.state.batch import BatchData
from headrace_engine.threads import leave_if_busy
from headrace_kit.flags import add_flags, given_flags
from headrace_kit.log import configure_logging
from headrace_kit.settings import load

POISON: Final = 666
"""A prompt token that ends the process."""
BREAK: Final = 667
"""A prompt token that makes its batch fail."""
_CHILD: Final = "child"
"""First argument of the engine's process, where io has one of its own."""
COMMAND: Final = ("-m", "support.faulty_engine", _CHILD)
"""What Python runs as that process."""


class FaultyExecutor(EchoExecutor):
    """Dies, or fails, where an echo executor would echo."""

    def submit(self, batch: BatchData) -> None:
        """Looks at the batch first."""
        if (batch.tokens == POISON).any():
            os._exit(70)
        if (batch.tokens == BREAK).any():
            raise RuntimeError("the device is lost")
        super().submit(batch)


def load_faulty(settings: EngineSettings, percent: Callable[[int], None]) -> LoadedModel:
    """Instead of a model."""
    percent(100)
    executor = FaultyExecutor(1000, step_s=settings.echo_step_ms / 1000, context_tokens=4096)
    return LoadedModel(settings.model_name or "m", executor, None)


def run_with(load_model: Load, module: str) -> int:
    """The engine's main, with another loader: of ``module``, which is what runs."""
    if sys.argv[1:2] == [_CHILD]:
        leave(child.main(sys.argv[2:], load_model))
    parser = argparse.ArgumentParser()
    add_flags(parser, EngineSettings)
    settings = load(EngineSettings, cli=given_flags(parser.parse_args()))
    configure_logging(service="engine", level=settings.log_level)
    process = EngineProcess(
        settings, EngineSecrets(), load=load_model, command=("-m", module, _CHILD)
    )
    with asyncio.Runner() as runner:
        code = runner.run(process.run())
    leave_if_busy(code)
    return code


if __name__ == "__main__":
    sys.exit(run_with(load_faulty, "support.faulty_engine"))
