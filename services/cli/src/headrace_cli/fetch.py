"""Brings a model here before an engine starts: downloaded where need be, resumed, and proved whole.

Weights of a hub go where the hub's own client keeps them (``HF_HOME``), which is where engines look.
Beside them lies a manifest with the size and SHA-256 of every file; with it a second run needs no
hub, and sees what was damaged meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.source import (
    KNOWN_SHA256,
    check_sha256,
    file_sha256,
    hub_name,
    hub_repository,
    resolve,
)

from headrace_cli.errors import CommandFailed

PATTERNS: Final = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
"""What an engine reads of a repository; other formats of the same weights stay where they are."""
_SPARE_BYTES: Final = 64 << 20

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class File:
    """A file as the hub describes it."""

    name: str
    size: int
    sha256: str | None
    """Of a large file; None for one that the hub knows by its git object alone."""
    git: str | None


def run(model: str, *, verify: bool = False, say: Say = print) -> Path:
    """Brings the model here; where it lies. ``verify`` reads every file, not only its size.

    Raises CommandFailed.
    """
    if not model:
        raise CommandFailed("A model has a name.")
    try:
        if model.startswith("hf://"):
            return _from_hub(model, verify=verify, say=say)
        path = resolve(model)
        if model in KNOWN_SHA256:
            check_sha256(path, KNOWN_SHA256[model])
    except ModelRejected as error:
        raise CommandFailed(str(error)) from error
    say(f"{model} is there: {path}")
    return path


def _from_hub(model: str, *, verify: bool, say: Say) -> Path:
    name, revision = hub_name(model)
    store = hub_repository(model)
    known = _manifest(store, revision)
    if known is not None and _is_pinned(revision):
        # A commit never changes: nobody need be asked.
        folder = store / "snapshots" / revision
        if not (wrong := _damaged(folder, known, verify=verify)):
            say(f"{model} is there and whole: {folder}")
            return folder
        _forget(folder, wrong, say)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        return _download(model, name, revision, store, verify=verify, say=say)
    except _Unreachable as error:
        return _what_is_here(model, revision, store, error, verify=verify, say=say)


class _Unreachable(Exception):
    """The hub does not answer."""


def _download(model: str, name: str, revision: str, store: Path, *, verify: bool, say: Say) -> Path:
    from huggingface_hub import (
        HfApi,
        snapshot_download,  # pyright: ignore[reportUnknownVariableType]
    )

    with _hub_errors(model, revision):
        # read here, so that a test or a pod may set it after the library was imported
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        info = api.model_info(name, revision=revision, files_metadata=True)
        commit = str(info.sha)
        files = _wanted(
            File(
                each.rfilename,
                each.size or 0,
                None if each.lfs is None else str(each.lfs.sha256),
                each.blob_id,
            )
            for each in info.siblings or []
        )
        if not files:
            raise _nothing_to_read(model, [each.rfilename for each in info.siblings or []])
        folder = store / "snapshots" / commit
        known = _manifest(store, commit)
        if known is not None:
            _forget(folder, _damaged(folder, known, verify=verify), say)
        _check_room(store, sum(each.size for each in files if not (folder / each.name).exists()))
        total = sum(each.size for each in files)
        say(f"{model}: {len(files)} files, {total / 1e9:.2f} GB, commit {commit}")
        there = Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=store.parent,
                allow_patterns=list(PATTERNS),
                endpoint=os.environ.get("HF_ENDPOINT") or None,
            )
        )
        if there.name != commit:
            raise CommandFailed(f"{model} changed while it was downloaded.", hint="Run it again.")
    sums = _proved(folder, files, known or {}, say)
    _write_manifest(store, commit, sums)
    say(f"{model} is there and whole: {folder}")
    return folder


@contextmanager
def _hub_errors(model: str, revision: str) -> Generator[None]:
    """What the hub's library raises, as CommandFailed; as _Unreachable where nobody answers."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise CommandFailed(
            f"{model}: this token may not read it.", hint="Accept its terms, and give HF_TOKEN."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CommandFailed(
            f"{model}: the hub has no such model, or this token may not see it."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CommandFailed(f"{model}: the hub has no revision {revision}.") from error
    except (
        errors.HTTPError,  # pyright: ignore[reportPrivateImportUsage]
        errors.LocalEntryNotFoundError,
        OSError,
    ) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise CommandFailed(f"{error.filename}: {error.strerror}.") from error
        raise _Unreachable(str(error) or type(error).__name__) from error


def _what_is_here(
    model: str, revision: str, store: Path, error: Exception, *, verify: bool, say: Say
) -> Path:
    """Serves from what an earlier run brought, where it is whole."""
    reference = store / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    known = _manifest(store, commit)
    folder = store / "snapshots" / commit
    if known is None or _damaged(folder, known, verify=verify):
        raise CommandFailed(
            f"{model}: the hub cannot be reached ({error}), and what is here is not whole."
        ) from error
    say(f"{model}: the hub cannot be reached; commit {commit} is here and whole: {folder}")
    return folder


def _nothing_to_read(model: str, names: Iterable[str]) -> CommandFailed:
    packed = sorted(name for name in names if name.endswith(".gguf"))
    return CommandFailed(
        f"{model} has none of {', '.join(PATTERNS)}.",
        hint=f"It has GGUF files, of which an engine reads one: download {packed[0]}, or another, "
        "and give its path."
        if packed
        else "",
    )


def _wanted(files: Iterable[File]) -> list[File]:
    from fnmatch import fnmatch

    return [each for each in files if any(fnmatch(each.name, pattern) for pattern in PATTERNS)]


def _proved(
    folder: Path, files: list[File], known: dict[str, dict[str, object]], say: Say
) -> dict[str, dict[str, object]]:
    """Size and SHA-256 of each file, compared with what the hub says. A wrong one is removed."""
    sums: dict[str, dict[str, object]] = {}
    for each in files:
        path = folder / each.name
        if each.name in known and known[each.name]["size"] == path.stat().st_size:
            sums[each.name] = known[each.name]
            continue
        digest = file_sha256(path)
        right = digest == each.sha256 if each.sha256 else _git_digest(path) == each.git
        if path.stat().st_size != each.size or not right:
            _forget(folder, [each.name], say)
            raise CommandFailed(
                f"{each.name} came damaged: its SHA-256 is {digest}, {each.sha256 or each.git} "
                "was expected.",
                hint="It was removed. Run it again.",
            )
        sums[each.name] = {"size": each.size, "sha256": digest}
        say(f"  {each.name}: {each.size} bytes, SHA-256 {digest}")
    return sums


def _git_digest(path: Path) -> str:
    """The name that git gives a file's content."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _damaged(folder: Path, known: dict[str, dict[str, object]], *, verify: bool) -> list[str]:
    """Files of a manifest that are missing or not as they were."""
    return [
        name
        for name, fact in known.items()
        if not (path := folder / name).is_file()
        or path.stat().st_size != fact["size"]
        or (verify and file_sha256(path) != fact["sha256"])
    ]


def _forget(folder: Path, names: Iterable[str], say: Say) -> None:
    """Removes files with what they point to, so that they are downloaded anew."""
    for name in names:
        path = folder / name
        say(f"  {name} is missing or damaged: it is fetched again")
        if path.is_symlink():
            path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def _is_pinned(revision: str) -> bool:
    return len(revision) == 40 and all(each in "0123456789abcdef" for each in revision)


def _manifest(store: Path, commit: str) -> dict[str, dict[str, object]] | None:
    try:
        read: object = json.loads((store / f"headrace-{commit}.json").read_text())
    except (OSError, ValueError):
        return None
    return cast("dict[str, dict[str, object]]", read)


def _write_manifest(store: Path, commit: str, sums: dict[str, dict[str, object]]) -> None:
    path = store / f"headrace-{commit}.json"
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(sums, indent=1, sort_keys=True) + "\n")
    fresh.replace(path)


def _check_room(store: Path, wanted: int) -> None:
    place = store
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if wanted + _SPARE_BYTES > free:
        raise CommandFailed(
            f"{place} has {free / 1e9:.2f} GB free, and {wanted / 1e9:.2f} GB are to come.",
            hint="Give the volume more room.",
        )
