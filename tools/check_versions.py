"""Checks that wheels, their pins on each other, chart and changelog carry one version."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
SEMANTIC = re.compile(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?")


def problems_in(root: Path) -> list[str]:
    """What disagrees below ``root``."""
    members = sorted([*root.glob("libs/*/pyproject.toml"), *root.glob("services/*/pyproject.toml")])
    projects = {path: tomllib.loads(path.read_text())["project"] for path in members}
    versions = {project["version"] for project in projects.values()}
    if len(versions) != 1:
        return [
            f"{path.relative_to(root)}: version {project['version']}"
            for path, project in projects.items()
        ]
    (version,) = versions
    problems = [] if SEMANTIC.fullmatch(version) else [f"{version!r} is not a semantic version"]
    for path, project in projects.items():
        for line in project["dependencies"]:
            if line.startswith("headrace-") and not line.endswith(f"=={version}"):
                problems.append(f"{path.relative_to(root)}: {line} is not =={version}")
    for chart in root.glob("charts/*/Chart.yaml"):
        fields = yaml.safe_load(chart.read_text())
        for key in ("version", "appVersion"):
            if str(fields.get(key)) != version:
                problems.append(f"{chart.relative_to(root)}: {key} is not {version}")
    if not re.search(rf"^## \[{re.escape(version)}\]", (root / "CHANGELOG.md").read_text(), re.M):
        problems.append(f"CHANGELOG.md has no section [{version}]")
    return problems


def main() -> int:
    """Prints what disagrees."""
    problems = problems_in(ROOT)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
