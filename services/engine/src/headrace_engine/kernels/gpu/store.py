"""Where compiled kernels lie: a folder that came with the package, and one of this machine.

An image brings kernels in the package, read-only; what is not among them is compiled and kept in
``cache_dir``. Triton names a kernel by a hash of all that it depends on, its own version included, so
that what is found is right. A file is known by its place in its folder alone: a cache may be copied.
So too with the modules in C by which Triton launches, which then take no compiler.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from triton import knobs
from triton.runtime import build
from triton.runtime.cache import FileCacheManager, triton_key

from headrace_engine.errors import ModelRejected
from headrace_engine.kernels.gpu import card


@dataclass(slots=True)
class Counts:
    """Kernels that this process asked for, since it began."""

    found: int = 0
    compiled: int = 0


counts: Final = Counts()


def keep_kernels(folder: Path) -> None:
    """Compiled kernels are kept in ``folder`` from here on, unless TRITON_CACHE_DIR says where.

    TRITON_CACHE_MANAGER wins over the way they are looked up.
    """
    # Triton would write its settings into the environment, where the next start in this process, which
    # may have a folder of its own, would take them for the user's.
    propagates, knobs.propagate_env = knobs.propagate_env, False
    try:
        if not os.environ.get("TRITON_CACHE_DIR"):
            knobs.cache.dir = str(folder)
        if not os.environ.get("TRITON_CACHE_MANAGER"):
            knobs.cache.manager_class = KernelStore
    finally:
        knobs.propagate_env = propagates
    if knobs.build.impl is None:
        knobs.build.impl = _build_module
    knobs.compilation.listener = _count


def know_triton() -> threading.Thread:
    """Begins to compute Triton's name for itself, which is part of every key, and for which it reads all
    of its files. The first use of a kernel would wait for it, which need not wait for the thread."""
    thread = threading.Thread(target=triton_key, name="triton-key", daemon=True)
    thread.start()
    return thread


def kernel_folder() -> Path:
    """Where what is compiled is kept."""
    return Path(knobs.cache.dir)


def module_file(name: str, text: bytes) -> str:
    """Where in a folder of kernels a module of Triton's lies, by its text in C."""
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    return f"modules/{name}-{hashlib.sha256(text).hexdigest()[:32]}{suffix}"


def _build_module(
    name: str,
    src: str,
    srcdir: str,
    library_dirs: list[str],
    include_dirs: list[str],
    libraries: list[str],
) -> str:
    """Builds a module in C as Triton does, unless it is there; returns its path.

    Triton's own name for one depends on where the driver lies and on whether the program ``file`` is
    installed, so that it would not be found on another machine. Raises ModelRejected where it cannot be
    built.
    """
    file = module_file(name, Path(src).read_bytes())
    for folder in (card.PREBUILT, kernel_folder()):
        if (folder / file).exists():
            return str(folder / file)
    knobs.build.impl = None
    try:
        built = build._build(name, src, srcdir, library_dirs, include_dirs, libraries, [])  # pyright: ignore[reportPrivateUsage]
    except (subprocess.CalledProcessError, RuntimeError, OSError) as error:
        raise ModelRejected(
            f"Triton's module {name}, by which kernels are launched, cannot be built: {error}; "
            "it takes a C compiler and Python's headers, or a folder of kernels compiled elsewhere"
        ) from error
    finally:
        knobs.build.impl = _build_module
    kept = kernel_folder() / file
    kept.parent.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
    shutil.copyfile(built, fresh)
    fresh.replace(kept)
    return built


def _count(*, cache_hit: bool, **_: Any) -> None:
    if cache_hit:
        counts.found += 1
    else:
        counts.compiled += 1


class KernelStore(FileCacheManager):
    """The files of one key. Triton makes one of these for each kernel that it wants."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._arguments = key, override, dump
        ready = card.PREBUILT / key
        self._is_ready = not override and not dump and ready.is_dir()
        if self._is_ready:
            self.key = key
            self.cache_dir = str(ready)
            self.lock_path = None
        else:
            super().__init__(key, override, dump)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Files that belong together, where all of them are there."""
        found = self._whole_group(filename)
        if found is None and self._is_ready:
            # What came with the package is damaged: an earlier process may have compiled it again.
            self._turn_to_own()
            found = self._whole_group(filename)
        return found

    def _whole_group(self, filename: str) -> dict[str, str] | None:
        group = self.get_file(_group_of(filename))
        if group is None:
            return None
        try:
            names = json.loads(Path(group).read_text())["child_paths"]
        except (ValueError, KeyError, OSError):
            return None  # cut off by a full disk, say: compiled again
        found = {name: path for name in names if (path := self.get_file(name)) is not None}
        return found if len(found) == len(names) else None

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        """Remembers what belongs together, by name."""
        names = {name: name for name in sorted(group)}
        return self.put(json.dumps({"child_paths": names}), _group_of(filename), binary=False)

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Writes a file; where what came with the package is damaged, beside this machine's."""
        if self._is_ready:
            self._turn_to_own()
        return super().put(data, filename, binary)

    def _turn_to_own(self) -> None:
        """From the package's folder to this machine's."""
        self._is_ready = False
        super().__init__(*self._arguments)


def _group_of(filename: str) -> str:
    return f"__grp__{filename}"
