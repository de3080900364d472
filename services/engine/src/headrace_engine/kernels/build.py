"""Compiles the native kernels for this processor, once, into a cache; run as a module to do it ahead.

``python -m headrace_engine.kernels.build`` prints the library's path. With ``--portable`` it compiles
one library for each level of this architecture into the package, as images do: an engine takes the
best one that its processor can run, and needs no compiler and no place to write.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
_AHEAD_TIMEOUT_S: Final = 3600.0
"""Ahead of time nobody waits for an engine to start."""
_PREBUILT: Final = Path(__file__).parent / "prebuilt"


@dataclass(frozen=True, slots=True)
class Level:
    """Processors that run one portable library."""

    name: str
    flags: tuple[str, ...]
    """For the compiler."""
    needs: frozenset[str]
    """What the processor must have, by the names of /proc/cpuinfo."""


_V3: Final = frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_X86: Final = (
    Level("x86-64-v4-bf16", ("-march=x86-64-v4", "-mavx512bf16"), _V4 | {"avx512_bf16"}),
    Level("x86-64-v4", ("-march=x86-64-v4",), _V4),
    Level("x86-64-v3", ("-march=x86-64-v3",), _V3),
)
_ARM: Final = (Level("armv8-a", ("-march=armv8-a",), frozenset()),)
LEVELS: Final = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}
"""Portable libraries of an architecture, the best first."""


class NativeUnavailable(Exception):
    """The native kernels cannot be had here; the message says why."""


def default_cache_dir() -> Path:
    """``headrace`` in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def built_library(cache_dir: Path | None = None) -> Path:
    """The compiled library's path, compiling it when the cache has none for this machine.

    One that came with the package, see ``build_portable``, goes before. Otherwise the name holds a
    hash of the sources, the flags, the compiler and the processor, so that a cache shared between
    machines is safe. Raises NativeUnavailable.
    """
    if (prebuilt := prebuilt_library()) is not None:
        return prebuilt
    compiler = _compiler()
    flags = (*_FLAGS, _tuning_flag())
    folder = (cache_dir or default_cache_dir()) / "kernels"
    library = folder / f"cpu-{_key(compiler, flags)}.so"
    if not library.exists():
        _compile(compiler, flags, library)
    return library


def prebuilt_library() -> Path | None:
    """The best library in the package for this processor, or None. Stale ones are not taken."""
    if not _PREBUILT.is_dir():
        return None
    can = _abilities()
    for level in LEVELS.get(platform.machine(), ()):
        path = _prebuilt_path(level)
        if level.needs <= can and path.exists():
            return path
    return None


def build_portable() -> list[Path]:
    """Compiles one library for each level of this architecture into the package."""
    compiler = _compiler()
    levels = LEVELS.get(platform.machine(), ())

    def make(level: Level) -> Path:
        path = _prebuilt_path(level)
        _compile(compiler, (*_FLAGS, *level.flags), path, timeout_s=_AHEAD_TIMEOUT_S)
        return path

    with ThreadPoolExecutor() as threads:
        return list(threads.map(make, levels))


def _prebuilt_path(level: Level) -> Path:
    return _PREBUILT / f"cpu-{level.name}-{_digest(*_FLAGS, *level.flags)}.so"


def _compiler() -> str:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise NativeUnavailable(f"no C++ compiler found (looked for {', '.join(_COMPILERS)})")
    return compiler


def _abilities() -> frozenset[str]:
    """What this processor can do, by the names of /proc/cpuinfo."""
    return frozenset(
        name
        for line in _processor().splitlines()
        if line.startswith(("flags", "Features"))
        for name in line.partition(":")[2].split()
    )


def _tuning_flag() -> str:
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


def _digest(*parts: str) -> str:
    """Of the sources, and of what else decides the result."""
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:24]


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    version = _run([compiler, "--version"])
    return _digest(*flags, version, platform.machine(), _processor())


def _processor() -> str:
    """What tells processors with different instructions apart."""
    information = Path("/proc/cpuinfo")
    if not information.exists():
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    lines = information.read_text(errors="replace").split("\n\n", 1)[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(wanted))


def _compile(
    compiler: str, flags: tuple[str, ...], library: Path, *, timeout_s: float = _TIMEOUT_S
) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        # Beside its target, so that the rename at the end is atomic: two processes may compile
        # at once, and both end with a whole file.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            output = Path(folder) / library.name
            command = [compiler, *flags, "-o", str(output), str(_SOURCES / _MAIN)]
            _run(command, timeout_s=timeout_s)
            output.replace(library)
    except OSError as error:
        raise NativeUnavailable(f"{library.parent} cannot be written: {error}") from error


def _run(command: list[str], *, timeout_s: float = _TIMEOUT_S) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"{command[0]} cannot be run: {error}") from error
    if done.returncode != 0:
        raise NativeUnavailable(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> None:
    """Compiles into the folder where an engine with this environment and file would look."""
    parser = argparse.ArgumentParser(prog="headrace_engine.kernels.build", description=__doc__)
    parser.add_argument(
        "--portable", action="store_true", help="into the package, for any processor"
    )
    if parser.parse_args(argv).portable:
        for library in build_portable():
            sys.stdout.write(f"{library}\n")
        return
    # Only ahead of time: an engine hands its folder down.
    from headrace_kit.settings import load

    from headrace_engine.settings import EngineSettings

    folder = load(EngineSettings).cache_dir
    path = built_library(None if folder is None else Path(folder).expanduser())
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
