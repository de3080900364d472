"""Compiles the native kernels for this processor, once, into a cache; run as a module to do it ahead.

``python -m headrace_engine.kernels.build`` prints the library's path.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_SOURCES: Final = Path(__file__).parent / "cpu"
_MAIN: Final = "decoder.cpp"
_FLAGS: Final = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fno-math-errno",
    "-Wno-psabi",
)
_COMPILERS: Final = ("c++", "g++", "clang++")
_TIMEOUT_S: Final = 300.0


class NativeUnavailable(Exception):
    """The native kernels cannot be had here; the message says why."""


def default_cache_dir() -> Path:
    """``headrace`` in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def built_library(cache_dir: Path | None = None) -> Path:
    """The compiled library's path, compiling it when the cache has none for this machine.

    The name holds a hash of the sources, the flags, the compiler and the processor, so that a
    cache shared between machines is safe. Raises NativeUnavailable.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise NativeUnavailable(f"no C++ compiler found (looked for {', '.join(_COMPILERS)})")
    flags = (*_FLAGS, _tuning_flag())
    folder = (cache_dir or default_cache_dir()) / "kernels"
    library = folder / f"cpu-{_key(compiler, flags)}.so"
    if not library.exists():
        _compile(compiler, flags, library)
    return library


def _tuning_flag() -> str:
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    version = _run([compiler, "--version"])
    for part in (*flags, version, platform.machine(), _processor()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


def _processor() -> str:
    """What tells processors with different instructions apart."""
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    lines = information.read_text(errors="replace").split("\n\n", 1)[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(wanted))


def _compile(compiler: str, flags: tuple[str, ...], library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        # Beside its target, so that the rename at the end is atomic: two processes may compile
        # at once, and both end with a whole file.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            output = Path(folder) / library.name
            _run([compiler, *flags, "-o", str(output), str(_SOURCES / _MAIN)])
            output.replace(library)
    except OSError as error:
        raise NativeUnavailable(f"{library.parent} cannot be written: {error}") from error


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"{command[0]} cannot be run: {error}") from error
    if done.returncode != 0:
        raise NativeUnavailable(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def main() -> None:
    """Compiles into the folder where an engine with this environment and file would look."""
    # Only ahead of time: an engine hands its folder down.
    from headrace_kit.settings import load

    from headrace_engine.settings import EngineSettings

    folder = load(EngineSettings).cache_dir
    path = built_library(None if folder is None else Path(folder).expanduser())
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
