"""A simulation as a picture: who runs and waits over time, and how long first tokens took. SVG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace_engine.scheduler.simulate.simulator import Simulation
from headrace_engine.scheduler.simulate.summary import Figures

from headrace_cli.errors import CommandFailed

_WIDTH: Final = 900
_HEIGHT: Final = 260
_MARGIN: Final = 48
_POINTS: Final = 800
_COLORS: Final = {"running": "#2563eb", "waiting": "#dc2626", "first token": "#059669"}


def draw(simulation: Simulation, figures: Figures) -> str:
    """The picture as SVG text. Raises CommandFailed where drawsvg is not installed."""
    try:
        import drawsvg  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise CommandFailed(
            "A picture needs drawsvg.", hint="pip install 'headrace-cli[picture]'"
        ) from error
    picture: Any = drawsvg.Drawing(_WIDTH, 2 * _HEIGHT + _MARGIN)
    picture.append(drawsvg.Rectangle(0, 0, _WIDTH, 2 * _HEIGHT + _MARGIN, fill="white"))
    load = simulation.load
    end_s = max(simulation.duration_s, 1e-9)
    _panel(drawsvg, picture, 0, end_s, "sequences", {
        "running": [(t, float(running)) for t, running, _ in load],
        "waiting": [(t, float(waiting)) for t, _, waiting in load],
    })  # fmt: skip
    first = sorted(
        (o.item.arrival_s, 1000 * (o.first_token_s - o.item.arrival_s))
        for o in simulation.outcomes
        if o.first_token_s is not None
    )
    _panel(
        drawsvg, picture, _HEIGHT, end_s, "ms to first token, by arrival", {"first token": first}
    )
    parts = [f"{n} {figures[n]:.1f}" for n in ("tokens_per_s", "ttft_ms_p50", "ttft_ms_p99",
             "itl_ms_p99") if figures[n] is not None]  # fmt: skip
    picture.append(drawsvg.Text("   ".join(parts), 13, _MARGIN, 2 * _HEIGHT + 30))
    return str(picture.as_svg())


def _panel(
    drawsvg: Any,
    picture: Any,
    top: int,
    end_s: float,
    title: str,
    lines: dict[str, list[tuple[float, float]]],
) -> None:
    """One chart: a line a series, its largest value and the time written at the axes."""
    most = max((value for points in lines.values() for _, value in points), default=0.0) or 1.0
    left, right, upper, lower = _MARGIN, _WIDTH - 16, top + 36, top + _HEIGHT - 24
    picture.append(drawsvg.Text(title, 13, left, top + 22))
    for points in ((left, upper, left, lower), (left, lower, right, lower)):
        picture.append(drawsvg.Line(*points, stroke="#6b7280"))
    picture.append(drawsvg.Text(f"{most:.0f}", 11, left - 6, upper + 8, text_anchor="end"))
    picture.append(drawsvg.Text("0", 11, left - 6, lower, text_anchor="end"))
    picture.append(drawsvg.Text(f"{end_s:.1f} s", 11, right, lower + 16, text_anchor="end"))
    for place, (name, points) in enumerate(lines.items()):
        color = _COLORS[name]
        picture.append(drawsvg.Text(name, 12, right - 80 * place, top + 22, fill=color,
                                    text_anchor="end"))  # fmt: skip
        flat: list[float] = []
        for at_s, value in thinned(points):
            flat.append(round(left + (right - left) * at_s / end_s, 1))
            flat.append(round(lower - (lower - upper) * value / most, 1))
        if flat:
            picture.append(drawsvg.Lines(*flat, stroke=color, fill="none", stroke_width=1.3))


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most ``_POINTS`` of them, each the highest of its neighbours: peaks stay."""
    size = -(-len(points) // _POINTS)
    if size <= 1:
        return list(points)
    return [max(points[i : i + size], key=_value) for i in range(0, len(points), size)]


def _value(point: tuple[float, float]) -> float:
    return point[1]
