"""Alerts and dashboards: Prometheus understands them, they name declared metrics, and they fire."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from chartgen.alerts import ALERTS
from chartgen.dashboards import BOARDS
from chartgen.metrics import declared, problems
from containers.cache import ROOT
from containers.chart_tools import program
from support.chart import CHART, CI_FILES, one, rendered, tools

ALERTS_FILE = CHART / "files/alerts.yaml"
CPU = next(file for file in CI_FILES if file.name == "cpu-values.yaml")


def promtool(*arguments: str | Path) -> str:
    """Its output, and that it found nothing wrong."""
    command = [str(tools() / "promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_takes_the_alerts() -> None:
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool("check", "rules", ALERTS_FILE)


def test_alerts_fire_when_they_should_and_not_before() -> None:
    said = promtool("test", "rules", Path(__file__).with_name("alerts.test.yaml"))
    assert "SUCCESS" in said


def test_the_operators_rules_are_the_same_as_the_file() -> None:
    spec = one(rendered(CPU), "PrometheusRule", "rel-headrace")["spec"]
    assert spec == yaml.safe_load(ALERTS_FILE.read_text())


def test_every_panel_is_an_expression_that_prometheus_understands(tmp_path: Path) -> None:
    boards = [json.loads(file.read_text()) for file in (CHART / "files/dashboards").glob("*.json")]
    assert len(boards) == len(BOARDS)
    expressions = [
        target["expr"]
        for board in boards
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]
    assert len(expressions) > 50
    rules = [
        {"record": f"panel:{number}", "expr": filled(expr)}
        for number, expr in enumerate(expressions)
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", file)
    assert not [each for expr in expressions for each in problems(expr)]


READ_BOARDS = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
register_default_plugins()
boards = [Dashboard.from_json(board) for board in json.load(sys.stdin)]
print(JSONEncoder().encode(boards))
"""


def test_grafana_s_own_types_read_the_boards_and_nothing_is_lost() -> None:
    tools()
    files = sorted((CHART / "files/dashboards").glob("*.json"))
    boards = [json.loads(file.read_text()) for file in files]
    unknown = {**boards[0], "refesh": "1m"}
    done = subprocess.run(
        [program("charts", "python"), "-c", READ_BOARDS],
        input=json.dumps([*boards, unknown]),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *kept, of_unknown = json.loads(done.stdout)
    assert [difference(*pair) for pair in zip(boards, kept, strict=True)] == [""] * len(boards)
    assert difference(unknown, of_unknown) == ".refesh"


def difference(given: Any, kept: Any, place: str = "") -> str:
    """The first place of what was given that was not kept as it was, or nothing."""
    if isinstance(given, dict) and isinstance(kept, dict):
        back = cast("dict[str, Any]", kept)
        for key, value in cast("dict[str, Any]", given).items():
            if found := difference(value, back.get(key), f"{place}.{key}"):
                return found
        return ""
    if isinstance(given, list) and isinstance(kept, list):
        pairs = zip(cast("list[Any]", given), cast("list[Any]", kept), strict=True)
        for index, (one_given, one_kept) in enumerate(pairs):
            if found := difference(one_given, one_kept, f"{place}[{index}]"):
                return found
        return ""
    return "" if given == kept else place


def filled(expr: str) -> str:
    """With Grafana's variables filled in."""
    return expr.replace("$__rate_interval", "1m").replace("$namespace", "a")


def test_every_alert_is_explained_to_who_gets_it() -> None:
    guide = (ROOT / "docs/guides/troubleshooting.md").read_text()
    rows = "".join(re.findall(r"^\|[^|]*", guide, re.MULTILINE))
    assert set(re.findall(r"`(Headrace[A-Z]\w+)`", rows)) == {alert.name for alert in ALERTS}


def test_most_of_what_is_measured_is_on_a_board() -> None:
    shown = " ".join(expr for board in BOARDS for _, expr in board.expressions)
    missing = [name for name in declared() if not re.search(rf"\b{name}(_bucket)?\b", shown)]
    assert len(missing) < len(declared()) * 0.3, missing


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("rate(headrace_gateway_request_total[5m])", "is not declared"),
        ("headrace_gateway_request_seconds", "is not declared"),
        ('headrace_gateway_cancels_total{reason="x"}', "has no label reason"),
    ],
)
def test_a_name_that_nobody_declares_is_found(expr: str, words: str) -> None:
    assert words in " ".join(problems(expr))


def test_dashboards_reach_the_cluster_whole() -> None:
    for board in BOARDS:
        made = one(rendered(CPU), "ConfigMap", f"rel-headrace-{board.uid}")
        assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
        (content,) = made["data"].values()
        assert json.loads(content)["uid"] == board.uid
