"""Compiles the kernels of the CUDA executor ahead, without a GPU: ``headrace-engine compile``.

An engine that starts with the same model, settings and card, and with ``--output`` as the folder
``triton`` of its ``cache_dir``, compiles nothing. The model's ``config.json`` is enough.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace_kit.errors import SettingsError
from headrace_kit.flags import add_flags, given_flags
from headrace_kit.process import FAILED, OK, REFUSED
from headrace_kit.settings import load_report

from headrace_engine.errors import ModelRejected
from headrace_engine.executor.cuda_ahead import Compiled, compile_apart, processes
from headrace_engine.kernels.gpu.card import Card, parse_card
from headrace_engine.loading import rehearsal_of
from headrace_engine.settings import EngineSettings, check_settings

COMMAND: Final = "compile"
_PROG: Final = f"headrace-engine {COMMAND}"
_MOST_JOBS: Final = 64
"""There are about as many kernels, and all processes begin at once, of 200 MB each."""
_OUTPUT: Final = "default: TRITON_CACHE_DIR where that is set, else `triton` in `cache_dir`"


def main(argv: Sequence[str]) -> int:
    """Compiles for each card that is named; returns an exit code."""
    parser = argparse.ArgumentParser(prog=_PROG, description=__doc__)
    parser.add_argument("--config", metavar="FILE", help="settings file (yaml, section engine)")
    parser.add_argument(
        "--card",
        action="append",
        required=True,
        type=_card,
        metavar="ARCH:PROCESSORS",
        help="architecture and number of multiprocessors; sm_90:132 is an H100 (SXM) or H200",
    )
    parser.add_argument("--output", metavar="FOLDER", help=_OUTPUT)
    parser.add_argument("--jobs", type=_jobs, default=processes(), metavar="N", help="at once")
    add_flags(parser, EngineSettings)
    flags = parser.parse_args(argv)
    try:
        given = given_flags(flags) | {"executor": "cuda"}
        settings = load_report(EngineSettings, cli=given, file=flags.config).settings
        check_settings(settings)
        for card in flags.card:
            output = flags.output or os.environ.get("TRITON_CACHE_DIR")
            rehearsal = rehearsal_of(settings, card, output)
            rehearsal.config()  # refused here, in one line
            _say(card, rehearsal.folder, compile_apart(rehearsal, flags.jobs))
    except (SettingsError, ModelRejected) as error:
        _tell(str(error))
        return REFUSED
    except RuntimeError as error:
        _tell(str(error))
        return FAILED
    return OK


def _card(text: str) -> Card:
    try:
        return parse_card(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _jobs(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_JOBS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of processes from 1 to {_MOST_JOBS}"
        )
    return int(text)


def _say(card: Card, folder: str, done: Compiled) -> None:
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 2**20
    _tell(
        f"{card}: {done.compiled} kernels compiled, {done.found} there; {folder} has {size:.1f} MiB"
    )


def _tell(line: str) -> None:
    print(f"{_PROG}: {line}", file=sys.stderr)  # noqa: T201 - a command's output
