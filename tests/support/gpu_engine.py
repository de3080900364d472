"""The offline engine on the GPU, for a folder that has weights and no tokenizer."""

from __future__ import annotations

from pathlib import Path

from headrace_engine.api import Engine
from headrace_engine.executor.cuda import CudaExecutor
from headrace_engine.loading import LoadedModel, Percent
from headrace_engine.settings import EngineSettings
from support.waiting import wait_until


def gpu_engine(folder: Path, **settings: object) -> Engine:
    """An engine that runs. Close it."""

    def load(wanted: EngineSettings, _: Percent) -> LoadedModel:
        executor = CudaExecutor.load(str(folder), context_tokens=wanted.context_tokens)
        return LoadedModel("tiny", executor, None)

    fields = {"executor": "cuda", "block_tokens": 16, "echo_tokenizer": False} | settings
    return Engine(settings=EngineSettings.model_validate(fields), load=load)


def wait_until_idle(engine: Engine) -> None:
    """Fails where something still runs after a generous while."""

    def idle() -> bool:
        now = engine.get_schedule_metrics()
        return now.running == now.waiting == now.retiring == 0

    wait_until(idle, lambda: str(engine.get_schedule_metrics()), every_s=0.01)
