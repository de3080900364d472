"""Installs each member alone from its wheel and imports all of it with the network off.

An import that a member does not declare fails here, and so does work at import time. Modules
that need torch are left out where torch is not installed: it is chosen per machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from setup_env import MEMBERS

ROOT = Path(__file__).resolve().parent.parent
NEEDS_TORCH = ("headrace_engine.executor", "headrace_engine.model", "headrace_engine.kernels")

IMPORT_ALL = """
import importlib, pkgutil, socket, sys

def refuse(*arguments, **options):
    raise AssertionError("the network was used while importing")

socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = refuse
package, needs_torch = sys.argv[1], tuple(sys.argv[2:])
names = [package]
found = importlib.import_module(package)
names += [m.name for m in pkgutil.walk_packages(found.__path__, package + ".")]
imported = without_torch = 0
for name in names:
    if name.endswith(".__main__"):
        continue
    try:
        importlib.import_module(name)
        imported += 1
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "triton") or not name.startswith(needs_torch):
            raise
        without_torch += 1
left = f", {without_torch} need torch" if without_torch else ""
print(f"smoke: {package}: {imported} modules imported{left}", flush=True)
"""


def build_wheels(into: Path) -> None:
    """Builds every member with the pinned build back end."""
    members = [str(ROOT / member) for member in MEMBERS]
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(into), *members]
    subprocess.run(command, check=True)


def package_of(member: str) -> str:
    """Import name of a member's only package."""
    (package,) = (path.name for path in (ROOT / member / "src").glob("headrace_*"))
    return package


def install_and_import(member: str, wheels: Path, scratch: Path) -> None:
    """A fresh environment with this member, its declared dependencies at their pinned versions."""
    package = package_of(member)
    folder = scratch / package
    venv.create(folder, with_pip=False, symlinks=True)
    python = str(folder / "bin/python")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-qq"]
    command += ["--no-compile", "--find-links", str(wheels)]
    command += ["-c", str(ROOT / "requirements/runtime.txt"), package.replace("_", "-")]
    subprocess.run(command, check=True)
    subprocess.run([python, "-I", "-c", IMPORT_ALL, package, *NEEDS_TORCH], check=True)


def main() -> int:
    """Tries every member; the first that fails ends it."""
    with tempfile.TemporaryDirectory(prefix="headrace-smoke-") as scratch:
        wheels = Path(scratch) / "wheels"
        build_wheels(wheels)
        for member in MEMBERS:
            install_and_import(member, wheels, Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
