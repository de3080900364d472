"""Summary: a simulation as a few numbers, to be printed, compared, or drawn.

Owner    nobody; functions of their arguments
Writes   nothing
Never    prints
Rules    simulate.conserves
Next     none
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from headrace_engine.scheduler.simulate.simulator import Simulation

Figures = dict[str, float | None]
"""By name, with the unit in it. None: there was nothing to measure."""

_SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


def summarize(simulation: Simulation) -> Figures:
    """The figures of one simulation."""
    outcomes, counters = simulation.outcomes, simulation.counters
    tokens = sum(outcome.tokens for outcome in outcomes)
    first_s = [
        outcome.first_token_s - outcome.item.arrival_s
        for outcome in outcomes
        if outcome.first_token_s is not None
    ]
    duration_s = simulation.duration_s
    figures: Figures = {
        "requests": len(outcomes),
        "finished": _count(simulation, "length"),
        "cancelled": _count(simulation, "cancelled"),
        "refused": _count(simulation, "refused"),
        "out_of_memory": _count(simulation, "out_of_memory"),
        "tokens_out": tokens,
        "duration_s": duration_s,
        "tokens_per_s": tokens / duration_s if duration_s else None,
        "device_busy_share": simulation.busy_s / duration_s if duration_s else None,
    }
    figures |= _percentiles("ttft_ms", first_s)
    figures |= _percentiles("itl_ms", simulation.gaps_s.tolist())
    figures |= {
        "passes": simulation.passes,
        "cached_tokens": counters.cached_tokens,
        "cache_hit_share": counters.cached_tokens / counters.prompt_tokens
        if counters.prompt_tokens
        else None,
        "recomputed_tokens": counters.recomputed_tokens,
        "preemptions": counters.preemptions,
        "evictions": counters.evictions,
        "deferrals": counters.deferrals,
        "fairness_index": fairness(simulation.served),
    }
    return figures


def fairness(served: Mapping[str, float]) -> float | None:
    """Jain's index of what tenants got by weight while they competed: 1 is fair, 1/n one for all.

    None when no two tenants ever had to wait at once.
    """
    values = np.array(list(served.values()))
    if len(values) < 2 or not values.any():
        return None
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


@dataclass(frozen=True, slots=True)
class Column:
    """One simulation in a table."""

    title: str
    figures: Figures


def table(columns: Iterable[Column]) -> str:
    """Figures side by side, and behind two of them by how much the second differs."""
    columns = list(columns)
    names = list(columns[0].figures)
    width = max(map(len, names))
    lines = [" " * width + "".join(f"{column.title:>16}" for column in columns)]
    if len(columns) == 2:
        lines[0] += f"{'difference':>12}"
    for name in names:
        values = [column.figures[name] for column in columns]
        line = f"{name:{width}}" + "".join(f"{_shown(value):>16}" for value in values)
        if len(values) == 2:
            line += f"{_difference(*values):>12}"
        lines.append(line)
    return "\n".join(lines)


def _count(simulation: Simulation, end: str) -> int:
    return sum(outcome.end == end for outcome in simulation.outcomes)


def _percentiles(name: str, seconds: list[float]) -> Figures:
    if not seconds:
        return {f"{name}_{label}": None for label, _ in _SHARES}
    values = np.quantile(np.array(seconds), [share for _, share in _SHARES]) * 1000
    return {f"{name}_{label}": float(v) for (label, _), v in zip(_SHARES, values, strict=True)}


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def _difference(before: float | None, after: float | None) -> str:
    if before is None or after is None or before == after:
        return "" if before == after else "-"
    return f"{(after - before) / before:+.1%}" if before else f"{after - before:+g}"
