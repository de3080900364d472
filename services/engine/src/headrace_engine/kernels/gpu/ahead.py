"""Compiles kernels for a card that need not be here: launches are noted, then compiled by processes.

Owner    a process that does nothing else: see ``card.pretend``
Writes   the folder of compiled kernels
Never    launches anything
Next     headrace_engine.kernels.gpu.store

What Triton makes a kernel's key of (argument types, their alignment, constants, options) comes from a
launch itself, so that a start finds what was compiled here.
"""

from __future__ import annotations

import logging
import multiprocessing
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from triton import knobs
from triton.backends.nvidia import driver as nvidia

from headrace_engine.kernels.gpu.store import counts


class Wanted(NamedTuple):
    """One launch that differs from all others in what is compiled for it."""

    kernel: Any
    """The function under ``@triton.jit``."""
    specialization: str
    """As Triton writes it down."""


class _Nothing:
    """A compiled kernel whose launch does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: Any) -> None:
        return None

    def run(self, *_: Any) -> None:
        return None


_NOTHING: Final = _Nothing()
_wanted: Final[list[Wanted]] = []
"""What the forked processes compile, by index: functions do not travel."""


def noted(run: Callable[[], None]) -> list[Wanted]:
    """What ``run`` launches, once each. Nothing is launched, or compiled."""
    seen: dict[tuple[str, str], Wanted] = {}

    def note(*, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        kernel, text = fn.jit_function, compile["specialization_data"]
        seen.setdefault((f"{fn.module}.{fn.name}", str(key)), Wanted(kernel, text))
        # The next such launch finds this, which costs a tenth of being told again.
        kernel.device_caches[compile["device"]][0][key] = _NOTHING
        return True  # says that somebody else compiles it

    knobs.runtime.jit_cache_hook = note
    try:
        run()
    finally:
        knobs.runtime.jit_cache_hook = None
        for wanted in seen.values():
            wanted.kernel.device_caches.clear()
    return list(seen.values())


def compile_all(wanted: list[Wanted], processes: int) -> tuple[int, int]:
    """Compiles into the folder that ``store.keep_kernels`` named. Returns how many were there already
    and how many were compiled."""
    _wanted[:] = wanted
    with (
        _driver_library(),
        ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool,
    ):
        helper = pool.submit(_helper)
        results = list(pool.map(_compile, range(len(wanted))))
        helper.result()
    return sum(results), len(results) - sum(results)


def _compile(index: int) -> bool:
    """Whether it was there already."""
    found = counts.found
    kernel, text = _wanted[index]
    compiled = kernel.preload(text)
    if hasattr(nvidia, "make_launcher"):  # Triton 3.6 compiles a module in C for each signature
        with suppress(ImportError):  # it is in the cache, and cannot be loaded without a driver
            nvidia.CudaLauncher(compiled.src, compiled.metadata)
    return counts.found > found


def _helper() -> None:
    """The module in C by which Triton loads and launches: compiled, then of no use here."""
    with suppress(ImportError):
        nvidia.CudaUtils()


@contextmanager
def _driver_library() -> Iterator[None]:
    """Where there is no CUDA driver a library of names stands in that modules are linked with."""
    try:
        nvidia.libcuda_dirs()
    except (AssertionError, OSError, subprocess.CalledProcessError):
        nvidia.libcuda_dirs.cache_clear()
    else:
        yield
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise RuntimeError("Triton's own module wants a C compiler and Python's headers")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "libcuda.so.1")
        # With every name that modules use, or a linker that drops what is not needed drops it.
        texts = [Path(nvidia.__file__).read_text(), Path(nvidia.dirname, "driver.c").read_text()]
        names = sorted(set(re.findall(r"\bcu[A-Z]\w*", " ".join(texts))))
        source = "".join(f"void {name}(void) {{}}\n" for name in names)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-xc", "-", "-o", library],
            input=source.encode(),
            check=True,
        )
        knobs.nvidia.libcuda_path = folder
        # It says of each module that it cannot be loaded here, which is so.
        logging.getLogger("triton.runtime.build").setLevel(logging.ERROR)
        try:
            yield
        finally:
            knobs.nvidia.libcuda_path = None
