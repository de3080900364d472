"""What io and the engine's process tell each other besides requests and outputs: start and end."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from headrace_kit.errors import SettingsError

from headrace_engine.errors import EngineFailed, ModelRejected
from headrace_engine.executor.base import ModelShape
from headrace_engine.host.base import Served
from headrace_engine.model.loader.tokenizer_files import TokenizerFiles
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.settings import EngineSettings
from headrace_engine.state.packed import Kind, Message, pack


def pack_start(settings: EngineSettings, engine: str) -> bytes:
    """A START. No secret is in it: the engine does not know the server."""
    return pack(Kind.START, engine, settings.model_dump_json().encode())


def unpack_start(message: Message) -> tuple[EngineSettings, str]:
    """The settings, and the id of the process that io is."""
    return EngineSettings.model_validate_json(message.body), json.loads(message.text)


def pack_loading(percent: int) -> bytes:
    """A LOADING."""
    return pack(Kind.LOADING, percent)


def unpack_loading(message: Message) -> int:
    """Percent of the weights."""
    return json.loads(message.text)


def pack_refused(error: ModelRejected | SettingsError) -> bytes:
    """A REFUSED."""
    if isinstance(error, SettingsError):
        return pack(Kind.REFUSED, {"settings": error.problems})
    return pack(Kind.REFUSED, {"model": str(error)})


def unpack_refused(message: Message) -> ModelRejected | SettingsError:
    """The error that a REFUSED tells of."""
    head = json.loads(message.text)
    if "settings" in head:
        return SettingsError(head["settings"])
    return ModelRejected(head["model"])


def pack_ended(failure: BaseException | None) -> bytes:
    """An ENDED."""
    if failure is None:
        return pack(Kind.ENDED)
    if isinstance(failure, EngineFailed):
        return pack(Kind.ENDED, str(failure))
    return pack(Kind.ENDED, f"{type(failure).__name__}: {failure}")


def unpack_ended(message: Message) -> str | None:
    """What ended the engine, or None: it was closed."""
    return json.loads(message.text) if message.text else None


def pack_served(served: Served) -> bytes:
    """A READY."""
    files: dict[str, bytes] = {}
    tokenizer = None
    if served.tokenizer is not None:
        files = dict(served.tokenizer.files)
        tokenizer = asdict(replace(served.tokenizer, files={}))
    head = {
        "name": served.name,
        "shape": asdict(served.shape),
        "settings": asdict(served.settings),
        "tokenizer": tokenizer,
        "files": {name: len(data) for name, data in files.items()},
    }
    return pack(Kind.READY, head, *files.values())


def unpack_served(message: Message) -> Served:
    """What a READY says."""
    head = json.loads(message.text)
    files: dict[str, bytes] = {}
    at = 0
    for name, size in head["files"].items():
        files[name] = message.body[at : at + size]
        at += size
    shape = head["shape"] | {"state_parts": tuple(head["shape"]["state_parts"])}
    tokenizer = None
    if head["tokenizer"] is not None:
        ends = tuple(head["tokenizer"]["end_token_ids"])
        tokenizer = TokenizerFiles(**head["tokenizer"] | {"files": files, "end_token_ids": ends})
    return Served(
        head["name"], ModelShape(**shape), tokenizer, SchedulerSettings(**head["settings"])
    )
