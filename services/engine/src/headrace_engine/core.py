"""The engine below its intake: sized for a model, built, and not yet running."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_kit.clock import Clock

from headrace_engine.executor.thread import ExecutorThread
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loading import LoadedModel, fit
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Core:
    """The engine below intake. Its executor thread has started; ``loop.run`` needs a thread."""

    model: LoadedModel
    settings: SchedulerSettings
    door: EngineGateway
    executor: ExecutorThread
    loop: EngineLoop


def build_core(settings: EngineSettings, model: LoadedModel, clock: Clock) -> Core:
    """Sizes and builds everything below intake, and starts the executor thread.

    Raises ``ModelRejected`` where the settings do not fit the model.
    """
    numbers = fit(settings, model.executor)
    limits = executor_limits(numbers, model.executor.block_bytes(numbers.block_tokens))
    door = EngineGateway(clock)
    executor = ExecutorThread(model.executor, limits)
    executor.start()
    loop = EngineLoop(door, executor, numbers, clock, model.executor.shape)
    return Core(model, numbers, door, executor, loop)
