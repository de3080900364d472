"""``python -m support.slow_engine``: an engine whose model takes ``echo_step_ms`` to load."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.loading import LoadedModel
from headrace_engine.settings import EngineSettings
from headrace_kit.log import get_logger
from support.faulty_engine import run_with


def load_slowly(settings: EngineSettings, percent: Callable[[int], None]) -> LoadedModel:
    """Instead of a model."""
    percent(1)
    get_logger(__name__).info("slow.loading")
    time.sleep(settings.echo_step_ms / 1000)
    return LoadedModel("m", EchoExecutor(100), None)


if __name__ == "__main__":
    sys.exit(run_with(load_slowly, "support.slow_engine"))
