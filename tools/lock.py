"""Compiles ``requirements/*.txt``: pinned versions of everything but torch.

usage: lock.py [--upgrade]

``runtime.txt`` holds what the members' pyproject files ask for; ``dev.txt``, ``peers.txt``,
``images.txt``, ``charts.txt`` and ``checkov.txt`` come from the ``.in`` files beside them. Run it on
the oldest supported Python.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "requirements"
MEMBERS = (
    *("libs/contracts", "libs/kit", "libs/transport"),
    *("services/gateway", "services/engine", "services/cli"),
)
HEADER = "# Compiled by `make lock`. Do not edit.\n"


def external_dependencies() -> list[str]:
    """What the members ask of the registries, sorted and without our own packages."""
    asked: set[str] = set()
    for member in MEMBERS:
        project = tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]
        asked |= {line for line in project["dependencies"] if not line.startswith("headrace-")}
    return sorted(asked)


def compile_set(source: Path, name: str, upgrade: list[str]) -> None:
    """Writes ``requirements/<name>``; no host, index or machine path enters it."""
    target = OUT / name
    command = [sys.executable, "-m", "piptools", "compile", "--quiet", "--strip-extras"]
    command += ["--no-header", "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--no-emit-trusted-host", "--no-emit-options", "--no-annotate"]
    command += ["--allow-unsafe", "--resolver=backtracking", *upgrade]
    command += ["--output-file", str(target), str(source)]
    subprocess.run(command, check=True, cwd=OUT)
    lines = [line for line in target.read_text().splitlines() if line and line[0] not in "#-"]
    target.write_text(HEADER + "\n".join(lines) + "\n")


def main() -> int:
    """Compiles the sets in the order in which they constrain each other."""
    upgrade = ["--upgrade"] if "--upgrade" in sys.argv else []
    with tempfile.TemporaryDirectory() as scratch:
        runtime = Path(scratch) / "runtime.in"
        runtime.write_text("\n".join(external_dependencies()) + "\n")
        compile_set(runtime, "runtime.txt", upgrade)
    compile_set(OUT / "dev.in", "dev.txt", upgrade)
    compile_set(OUT / "peers.in", "peers.txt", upgrade)
    compile_set(OUT / "images.in", "images.txt", upgrade)
    compile_set(OUT / "charts.in", "charts.txt", upgrade)
    compile_set(OUT / "checkov.in", "checkov.txt", upgrade)
    return 0


if __name__ == "__main__":
    sys.exit(main())
