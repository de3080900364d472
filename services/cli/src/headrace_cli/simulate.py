"""``headrace simulate``: the shipped scheduler against a cost model, over a trace or a seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from headrace_engine.scheduler.journal_replay import Step
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.scheduler.simulate.cost import CostModel
from headrace_engine.scheduler.simulate.simulator import simulate
from headrace_engine.scheduler.simulate.summary import Column, summarize, table
from headrace_engine.scheduler.simulate.trace import Item, Synthetic, TraceRejected, read_trace
from headrace_engine.settings import EngineSettings, block_tokens

from headrace_cli import replay
from headrace_cli.errors import CommandFailed

SESSION_TOKENS: Final = 32_768
"""Context of a simulated model."""


def run(
    source: Path | Synthetic,
    *,
    changes: Sequence[str],
    fit: Path | None,
    cost: CostModel,
    as_json: bool,
    picture: Path | None,
) -> str:
    """Simulates, writes the picture if one is wanted, and returns the report. CommandFailed."""
    items = _items(source)
    settings = engine_defaults()
    if fit is not None:
        segments = replay.read(fit, partial=False)
        steps: list[Step] = []
        for segment in segments:
            steps += replay.replayed(segment, fit).steps
        cost, settings = replay.fitted(steps), segments[-1].origin.settings
    settings = replay.with_changes(replace(settings, audit=False), changes)
    simulation = simulate(items, settings, cost)
    figures = summarize(simulation)
    if picture is not None:
        from headrace_cli.simulate_picture import draw

        try:
            picture.write_text(draw(simulation, figures), encoding="utf-8")
        except OSError as error:
            raise CommandFailed(f"{picture}: {error.strerror}") from error
    if as_json:
        return json.dumps(figures)
    return f"{replay.described(cost)}\n{table([Column('', figures)])}"


def engine_defaults() -> SchedulerSettings:
    """What an engine of default settings schedules by, with a context and a pool of its own."""
    engine = EngineSettings.model_validate({})
    known = {each.name for each in fields(SchedulerSettings)} & EngineSettings.model_fields.keys()
    given: dict[str, Any] = engine.model_dump(include=known)
    given["block_tokens"] = block_tokens(engine)
    return SchedulerSettings(session_tokens=SESSION_TOKENS, **given)


def _items(source: Path | Synthetic) -> list[Item]:
    if isinstance(source, Synthetic):
        return source.items()
    try:
        with source.open(encoding="utf-8") as file:
            return read_trace(file)
    except OSError as error:
        raise CommandFailed(f"{source}: {error.strerror}") from error
    except (TraceRejected, UnicodeDecodeError) as error:
        raise CommandFailed(f"{source}: {error}") from error
