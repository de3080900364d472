"""Names that become parts of keys: checked once, where they enter the wire."""

from __future__ import annotations

import re
from typing import Final

from headrace_contracts.limits import BOOT_NONCE, MAX_MODEL_NAME, MAX_NAME, MAX_PROCESS_NAME

from headrace_transport.errors import RecordRejected

_NAME: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_NAME}}}\Z")
_PROCESS: Final = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_PROCESS_NAME}}}\Z")
_BOOTED: Final = re.compile(rf"(.+)-[0-9a-f]{{{BOOT_NONCE}}}\Z")
_MODEL: Final = re.compile(rf"[A-Za-z0-9._:/@+-]{{1,{MAX_MODEL_NAME}}}\Z")


def check_name(what: str, name: str) -> str:
    """Returns the name of a request, tenant or key; raises ``RecordRejected``."""
    if not _NAME.match(name):
        raise RecordRejected(
            f"{what} must be 1 to {MAX_NAME} characters of A-Z a-z 0-9 . _ : -, not {_shown(name)}"
        )
    return name


def check_process(what: str, name: str) -> str:
    """Returns the id of a gateway or engine process; raises ``RecordRejected``."""
    if not _PROCESS.match(name):
        raise RecordRejected(
            f"{what} must be 1 to {MAX_PROCESS_NAME} characters of A-Z a-z 0-9 . _ : -, "
            f"not {_shown(name)}"
        )
    return name


def name_of(process: str) -> str:
    """The name in a process id, without the boot nonce; raises ``RecordRejected`` without one."""
    found = _BOOTED.match(process)
    if found is None:
        raise RecordRejected(
            f"a process id ends in a hyphen and {BOOT_NONCE} hex digits, not {_shown(process)}"
        )
    return found[1]


def check_model(name: str) -> str:
    """Returns a model's name; raises ``RecordRejected``."""
    if not _MODEL.match(name):
        raise RecordRejected(
            f"a model's name must be 1 to {MAX_MODEL_NAME} characters of A-Z a-z 0-9 . _ : / @ + -, "
            f"not {_shown(name)}"
        )
    return name


def _shown(name: str) -> str:
    return repr(name if len(name) <= 40 else f"{name[:40]}…")
