"""Compiles kernels for a card that need not be here: launches are noted, and processes compile them.

Owner    a process that does nothing else: see ``card.pretend``
Writes   the folder of compiled kernels
Never    launches anything
Next     headrace_engine.kernels.gpu.store

What Triton makes a kernel's key of (argument types, their alignment, constants, options) comes from a
launch itself, so that a start finds what was compiled here. A kernel is compiled from the moment at
which it is first launched, while other launches are still to come.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import triton.compiler.code_generator  # noqa: F401 - once, for all processes that are forked
from triton import knobs
from triton.backends.nvidia import driver as nvidia

from headrace_engine.errors import ModelRejected
from headrace_engine.kernels.gpu.card import PREBUILT
from headrace_engine.kernels.gpu.store import counts, kernel_folder, module_file


class Wanted(NamedTuple):
    """One launch that differs from all others in what is compiled for it."""

    kernel: Any
    """The function under ``@triton.jit``."""
    specialization: str
    """As Triton writes it down."""

    @property
    def place(self) -> tuple[str, str]:
        """Module and name of ``kernel``, by which another process finds it: functions do not travel."""
        function = self.kernel.fn
        return function.__module__, function.__qualname__


class _Nothing:
    """A compiled kernel whose launch does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *_: Any) -> None:
        return None

    def run(self, *_: Any) -> None:
        return None


_NOTHING: Final = _Nothing()


def noted(run: Callable[[], None], first: Callable[[Wanted], object] | None = None) -> list[Wanted]:
    """What ``run`` launches, once each. Nothing is launched, or compiled.

    ``first`` is told of each at its first launch.
    """
    seen: dict[tuple[str, str], Wanted] = {}

    def note(*, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        kernel, text = fn.jit_function, compile["specialization_data"]
        name = f"{fn.module}.{fn.name}", str(key)
        if name not in seen:
            seen[name] = Wanted(kernel, text)
            if first is not None:
                first(seen[name])
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


def compile_launches(run: Callable[[], None], processes: int) -> tuple[int, int]:
    """Compiles what ``run`` launches into the folder that ``store.keep_kernels`` named. Returns how many
    kernels were there already and how many were compiled.

    Raises ModelRejected where a C compiler is wanted and there is none, or it fails.
    """
    context = multiprocessing.get_context("fork")
    found: list[Future[bool]] = []
    with _linked(), ProcessPoolExecutor(processes, mp_context=context) as pool:
        # The first one forks them all, before anything is noted that they would not compile with.
        module = pool.submit(_compile_module)

        def compile(wanted: Wanted) -> None:
            found.append(pool.submit(_compile, wanted.place, wanted.specialization))

        noted(run, compile)
        module.result()
        were_there = sum(one.result() for one in found)
    return were_there, len(found) - were_there


# Triton launches by a module in C of its own, up to 3.6 by one more for each signature. Without a
# driver they are compiled, and cannot be loaded.

_MODULE_EACH: Final = hasattr(nvidia, "make_launcher")


def _compile(place: tuple[str, str], specialization: str) -> bool:
    """Whether it was there already."""
    found = counts.found
    module, name = place
    compiled = getattr(importlib.import_module(module), name).preload(specialization)
    if _MODULE_EACH:
        with suppress(ImportError):
            nvidia.CudaLauncher(compiled.src, compiled.metadata)
    return counts.found > found


def _compile_module() -> None:
    with suppress(ImportError):
        nvidia.CudaUtils()


@contextmanager
def _linked() -> Generator[None]:
    """Sees to a driver's library to link modules with, where they are wanted."""
    try:
        nvidia.libcuda_dirs()
    except (AssertionError, OSError, subprocess.CalledProcessError):
        nvidia.libcuda_dirs.cache_clear()
    else:
        yield
        return
    # It says of each module that it cannot be loaded here, which is so.
    logging.getLogger("triton.runtime.build").setLevel(logging.ERROR)
    text = Path(nvidia.dirname, "driver.c").read_bytes()
    file = module_file("cuda_utils", text)
    there = any((folder / file).exists() for folder in (PREBUILT, kernel_folder()))
    with _no_library() if there and not _MODULE_EACH else _stand_in_library():
        yield


@contextmanager
def _no_library() -> Generator[None]:
    knobs.nvidia.libcuda_path = tempfile.gettempdir()  # nothing is linked
    try:
        yield
    finally:
        knobs.nvidia.libcuda_path = None


@contextmanager
def _stand_in_library() -> Generator[None]:
    """Where there is no CUDA driver a library of names stands in that modules are linked with."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise ModelRejected("Triton's own module wants a C compiler and Python's headers")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "libcuda.so.1")
        # With every name that modules use, or a linker that drops what is not needed drops it.
        texts = [Path(nvidia.__file__).read_text(), Path(nvidia.dirname, "driver.c").read_text()]
        names = sorted(set(re.findall(r"\bcu[A-Z]\w*", " ".join(texts))))
        source = "".join(f"void {name}(void) {{}}\n" for name in names)
        command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-xc", "-", "-o"]
        built = subprocess.run([*command, library], input=source.encode(), check=False)
        if built.returncode:
            raise ModelRejected(
                f"{compiler} failed with exit status {built.returncode}, as told above"
            )
        knobs.nvidia.libcuda_path = folder
        try:
            yield
        finally:
            knobs.nvidia.libcuda_path = None
