"""The picture is SVG that parses, and keeps peaks."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from headrace_cli.simulate_picture import draw, thinned
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.scheduler.simulate.cost import CostModel
from headrace_engine.scheduler.simulate.simulator import Simulation, simulate
from headrace_engine.scheduler.simulate.summary import summarize
from headrace_engine.scheduler.simulate.trace import Synthetic

pytest.importorskip("drawsvg")


def test_a_simulation_is_drawn_with_its_figures() -> None:
    items = Synthetic(requests=10, prompt_tokens=40, output_tokens=5).items()
    result = simulate(items, SchedulerSettings(), CostModel())
    root = ElementTree.fromstring(draw(result, summarize(result)))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"running", "waiting", "first token"} <= set(texts)
    assert any(text.startswith("tokens_per_s") for text in texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) >= 3


def test_nothing_is_drawn_as_nothing() -> None:
    nothing = Simulation([])
    ElementTree.fromstring(draw(nothing, summarize(nothing)))


def test_thinning_keeps_the_highest() -> None:
    points = [(float(i), float(i == 1234)) for i in range(5000)]
    thin = thinned(points)
    assert len(thin) <= 800
    assert max(value for _, value in thin) == 1
    assert thinned(points[:10]) == points[:10]
