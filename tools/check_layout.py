"""Checks the shape of the tree: no shadowed module, no empty file, tests that mirror the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SHARED = "tests/shared/test_wire_*.py"
KERNELS = "tests/unit/headrace_engine/kernels/gpu/test_*.py"
GPU = "tests/gpu/test_*.py"
HOSTS = "tests/shared/test_hosts.py"
UNTESTED: dict[str, str] = {
    "headrace_engine/host/threads.py": HOSTS,
    "headrace_engine/kernels/gpu/adjust.py": KERNELS,
    "headrace_engine/kernels/gpu/argmax.py": KERNELS,
    "headrace_engine/kernels/gpu/embed.py": KERNELS,
    "headrace_engine/kernels/gpu/norm.py": KERNELS,
    "headrace_engine/kernels/gpu/reference.py": KERNELS,
    "headrace_engine/kernels/gpu/rope_store.py": KERNELS,
    "headrace_engine/kernels/gpu/sample.py": KERNELS,
    "headrace_engine/kernels/gpu/swiglu.py": KERNELS,
    "headrace_engine/model/cuda_weights.py": GPU,
    "headrace_transport/api_keys.py": SHARED,
    "headrace_transport/cancels.py": SHARED,
    "headrace_transport/cards.py": SHARED,
    "headrace_transport/checks.py": "tests/integration/test_redis_checks.py",
    "headrace_transport/connection.py": SHARED,
    "headrace_transport/control.py": SHARED,
    "headrace_transport/frames.py": SHARED,
    "headrace_transport/leases.py": SHARED,
    "headrace_transport/memory_broker.py": "tests/unit/headrace_transport/test_memory.py",
    "headrace_transport/memory_keys.py": SHARED,
    "headrace_transport/memory_leases.py": SHARED,
    "headrace_transport/memory_processes.py": SHARED,
    "headrace_transport/memory_requests.py": SHARED,
    "headrace_transport/processes.py": SHARED,
    "headrace_transport/requests.py": SHARED,
}
"""Modules without a unit test of their own, since they are nothing without a server or a GPU, or
are tested in groups: what tests them instead, as a pattern that must match a file."""

LOGIC_LINES = 12
"""A module with fewer lines inside functions than this is declarations; it needs no own test."""


def sources() -> list[Path]:
    """Every module of the members, without generated ones."""
    found = [*ROOT.glob("libs/*/src/**/*.py"), *ROOT.glob("services/*/src/**/*.py")]
    return sorted(path for path in found if "pb" not in path.parts)


def shadowed(paths: Iterable[Path]) -> list[str]:
    """``x.py`` beside ``x/``: Python takes one and hides the other."""
    return [
        f"{shown(path)}: a package of the same name hides it, or it hides the package"
        for path in paths
        if path.name != "__init__.py" and (path.with_suffix("") / "__init__.py").exists()
    ]


def empty(paths: Iterable[Path]) -> list[str]:
    """Files without a word."""
    return [f"{shown(path)}: is empty" for path in paths if not path.read_text().strip()]


def without_test(paths: Iterable[Path]) -> list[str]:
    """Modules with logic and no ``tests/unit/<package>/<path>/test_<module>.py``."""
    problems: list[str] = []
    for path in paths:
        inside = path.relative_to(next(p for p in path.parents if p.name == "src"))
        name = str(inside)
        expected = ROOT / "tests/unit" / inside.parent / f"test_{inside.stem.lstrip('_')}.py"
        if expected.exists():
            if name in UNTESTED:
                problems.append(f"{name}: has a test now; remove it from UNTESTED")
        elif name not in UNTESTED and logic_lines(path) >= LOGIC_LINES:
            problems.append(f"{name}: has no {shown(expected)}")
    return problems


def logic_lines(path: Path) -> int:
    """Lines inside functions, without signatures, docstrings and the dots of a protocol."""
    lines = 0
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines += sum(
                (statement.end_lineno or 0) - statement.lineno + 1
                for statement in node.body
                if not (
                    isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                )
            )
    return lines


def dead_entries() -> list[str]:
    """Entries of the allow-list whose module, or whose tests, are gone."""
    known = {str(p.relative_to(next(q for q in p.parents if q.name == "src"))) for p in sources()}
    problems: list[str] = []
    for name, tests in UNTESTED.items():
        if name not in known:
            problems.append(f"UNTESTED names {name}, which does not exist")
        if not list(ROOT.glob(tests)):
            problems.append(f"UNTESTED[{name}] names {tests}, which does not exist")
    return problems


def shown(path: Path) -> str:
    """A path as a person would write it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def main() -> int:
    """Prints what is wrong."""
    paths = sources()
    problems = [*shadowed(paths), *empty(paths), *without_test(paths), *dead_entries()]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
