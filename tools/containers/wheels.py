"""A folder with every wheel that the images are made of, so that builds need no network.

usage: wheels.py        prints the folder: `docker build --build-context wheels=FOLDER --network none`
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from containers.cache import CACHE, ROOT, fetch, run, told

_PINNED: Final = ROOT / "requirements"
_SETS: Final = (
    *(_PINNED / "runtime.txt", _PINNED / "images.txt", _PINNED / "model.txt"),
    Path(__file__).with_name("bases") / "python.txt",
)
"""Each holds all that it needs."""
_CUDA: Final = _PINNED / "cuda.txt"


def wheel_folder() -> Path:
    """The folder, filled when the pinned sets have changed. Wheels come as pip is configured here."""
    return _folder("wheels", _SETS)


def cuda_wheel_folder() -> Path:
    """The same for the CUDA image: 3 GB more."""
    return _folder("wheels-cuda", (*_SETS, _CUDA))


def cuda_wheels_are_there() -> bool:
    """Whether ``cuda_wheel_folder`` would fetch nothing."""
    return _place("wheels-cuda", (*_SETS, _CUDA)).exists()


def _place(name: str, sets: Sequence[Path]) -> Path:
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sets)).hexdigest()[:16]
    return CACHE / name / digest


def _folder(name: str, sets: Sequence[Path]) -> Path:
    folder = _place(name, sets)
    if folder.exists():
        return folder
    with told(f"downloading the wheels of the images ({name})"):
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        fresh.mkdir(parents=True)
        python = run([ROOT / "tools/find_python.sh", "3.11"]).strip()
        download = [python, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--no-deps"]
        for path in sets:
            fetch([*download, "-d", fresh, "-r", path], timeout_s=1200)
        for old in folder.parent.iterdir():
            if old != fresh:
                shutil.rmtree(old)
        fresh.rename(folder)
    return folder


if __name__ == "__main__":
    print(wheel_folder())
