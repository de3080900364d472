"""Compiles the kernels of a start before it, or beside it: in a process of its own.

Owner    the process that ``python -m headrace_engine.executor.cuda_ahead`` is
Writes   the folder of compiled kernels, and a note there of what is complete
Never    touches a device
Next     headrace_engine.kernels.gpu.ahead

The executor's own warm-up runs here on shapes without bytes, so that exactly what a start launches is
compiled; for a card that is named, by as many processes as there are cores.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from headrace_kit.log import get_logger

from headrace_engine.errors import ModelRejected
from headrace_engine.executor.base import ExecutorLimits, sequence_tokens
from headrace_engine.kernels.gpu.card import PREBUILT, Card, pretend
from headrace_engine.model.config import ModelConfig
from headrace_engine.model.opening import read_config

if TYPE_CHECKING:
    from headrace_engine.kernels.gpu.ahead import Wanted

log = get_logger(__name__)

_REGION_BYTES: Final = 1 << 30
"""Nothing depends on it, and nothing of it is allocated."""
_PACKAGE: Final = Path(__file__).parents[1]
_LEAST_CAPABILITY: Final = (8, 0)
_MOST_PROCESSES: Final = 16
"""Each takes about 200 MB."""
_LONGEST_S: Final = 600.0
"""After that a start compiles by itself."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A start: all that the kernels depend on which it will want."""

    model: str
    slots: int
    batch_tokens: int
    block_tokens: int
    phases: int
    context_tokens: int | None
    """The model's when None."""
    card: Card
    folder: str
    """Where compiled kernels are kept."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of ``json``."""
        values: dict[str, Any] = json.loads(text)
        return cls(card=Card(*values.pop("card")), **values)

    def json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    def config(self) -> ModelConfig:
        """The model's numbers. Raises ModelRejected for one that the executor does not run, or a card
        that it does not run on."""
        check_card(self.card.capability)
        config = read_config(self.model)
        check_config(config, self.model)
        return config

    def limits(self, model_tokens: int) -> ExecutorLimits:
        """What an engine promises its executor."""
        context = min(self.context_tokens or model_tokens, model_tokens)
        return ExecutorLimits(
            slots=self.slots,
            batch_tokens=self.batch_tokens,
            sequence_tokens=sequence_tokens(context, self.phases),
            block_tokens=self.block_tokens,
            region_bytes=_REGION_BYTES,
            phases=self.phases,
        )

    def note(self) -> str:
        """Name of the file that says that all kernels of this start were compiled."""
        digest = hashlib.sha256()
        config = replace(self.config(), name="", eos_token_ids=())
        # Any context runs by the same kernels.
        limits = replace(self.limits(config.context_tokens), sequence_tokens=0)
        digest.update(f"{config} {limits} {self.card} {_version('triton')}".encode())
        for folder in ("executor", "kernels/gpu", "model"):
            for path in sorted((_PACKAGE / folder).glob("*.py")):
                digest.update(path.read_bytes())
        return f"complete-{digest.hexdigest()[:32]}"


class Compiled(NamedTuple):
    """What became of a rehearsal's kernels."""

    found: int
    compiled: int


def rehearsed(rehearsal: Rehearsal) -> list[Wanted]:
    """The launches of a start on the card that this process pretends to have."""
    run = _ready_to_rehearse(rehearsal)
    from headrace_engine.kernels.gpu.ahead import noted

    return noted(run)


def _ready_to_rehearse(rehearsal: Rehearsal) -> Callable[[], None]:
    """Imports all that it takes; what comes back launches what a start would."""
    import torch

    from headrace_engine.executor.cuda import CudaExecutor
    from headrace_engine.kernels.gpu.store import keep_kernels
    from headrace_engine.model.cuda_weights import described_weights

    keep_kernels(Path(rehearsal.folder))
    config = rehearsal.config()
    limits = rehearsal.limits(config.context_tokens)
    executor = CudaExecutor(described_weights(config, torch.bfloat16, limits.sequence_tokens))
    return lambda: executor.rehearse(limits)


def compile_kernels(rehearsal: Rehearsal, jobs: int) -> Compiled:
    """Compiles what is not there yet. Only in a process that does nothing else, once.

    Raises ModelRejected for a model that the executor does not run, or where there is no C compiler.
    """
    pretend(rehearsal.card)
    from triton import knobs  # pyright: ignore[reportMissingTypeStubs]

    from headrace_engine.kernels.gpu.ahead import compile_launches
    from headrace_engine.kernels.gpu.store import kernel_folder, know_triton

    # What lies between source and binary is four times the binary, and nobody reads it.
    knobs.compilation.store_binary_only = True
    knowing = know_triton()
    run = _ready_to_rehearse(rehearsal)
    knowing.join()  # before processes are forked that would all begin anew
    found, compiled = compile_launches(run, jobs)
    folder = kernel_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / rehearsal.note()).touch()
    return Compiled(found, compiled)


class Compiling:
    """A process that compiles, with those it forks. It ends when whoever started it does, or when
    this object goes."""

    def __init__(self, rehearsal: Rehearsal, jobs: int) -> None:
        module = "headrace_engine.executor.cuda_ahead"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(jobs), rehearsal.json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Triton's own setting would win over the folder.
            env={**os.environ, "TRITON_CACHE_DIR": rehearsal.folder},
            start_new_session=True,
        )
        # Held open: at its end the process ends. ``communicate`` would close it.
        self._held, self._process.stdin = self._process.stdin, None

    def result(self, timeout_s: float | None = None) -> Compiled | None:
        """Waits for its end; None where it failed, or took longer."""
        try:
            told, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.stop()
            return None
        self.leave()
        if self._process.returncode:
            return None
        # The last line is ours; libraries may have said something before.
        return Compiled(*json.loads(told.splitlines()[-1]))

    def ready(self) -> None:
        """For an executor: returns when all is compiled. What went wrong is told, and no more: the
        start then compiles by itself."""
        done = self.result(_LONGEST_S)
        if done is None:
            log.warning("kernels.not_compiled_ahead", exit_code=self._process.returncode)
        else:
            log.info("kernels.compiled_ahead", found=done.found, compiled=done.compiled)

    @property
    def pid(self) -> int:
        """Of the process, which leads a group of its own."""
        return self._process.pid

    def leave(self) -> None:
        """What the end of this process does: that one finds its input closed, and ends."""
        if self._held is not None:
            self._held.close()

    def stop(self) -> None:
        """Ends it, and all that it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self.leave()


def compile_apart(rehearsal: Rehearsal, jobs: int) -> Compiled:
    """Compiles in a process of its own, and waits for it. Raises RuntimeError where that fails, with
    the reason on standard error."""
    done = Compiling(rehearsal, jobs).result()
    if done is None:
        raise RuntimeError(f"kernels for {rehearsal.card} were not compiled")
    return done


def begin_compiling(rehearsal: Rehearsal) -> Compiling | None:
    """Compiles what is missing in a process of its own, beside the loading of weights. None: nothing
    is missing, as far as a note tells."""
    note = rehearsal.note()
    kept = os.environ.get("TRITON_CACHE_DIR") or rehearsal.folder
    if any((folder / note).exists() for folder in (Path(kept), PREBUILT)):
        return None
    return Compiling(replace(rehearsal, folder=kept), processes())


def _end_with_our_starter() -> None:
    """Body of a thread."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def processes() -> int:
    """How many compile at once."""
    return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)


def check_card(capability: tuple[int, int]) -> None:
    """Raises ModelRejected for a card that is too old for the CUDA kernels."""
    if capability < _LEAST_CAPABILITY:
        raise ModelRejected(
            "the card is of sm_{}{}, and the CUDA kernels need sm_{}{} or later, which computes in "
            "bfloat16".format(*capability, *_LEAST_CAPABILITY)
        )


def check_config(config: ModelConfig, origin: str) -> None:
    """Raises ModelRejected for what the CUDA kernels do not compute."""
    head_dim = config.head_dim
    if not 16 <= head_dim <= 128 or head_dim & (head_dim - 1):
        raise ModelRejected(
            f"{origin}: head_dim {head_dim} is not a power of two from 16 to 128, "
            "which the CUDA kernels need"
        )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def main(argv: Sequence[str]) -> int:
    """Body of the process: jobs at once and a rehearsal are given, what was done goes to the output."""
    threading.Thread(target=_end_with_our_starter, daemon=True).start()
    gc.disable()  # nothing here lives long, and what is forked inherits it
    try:
        done = compile_kernels(Rehearsal.parse(argv[1]), jobs=int(argv[0]))
    except (ModelRejected, ModuleNotFoundError, RuntimeError, OSError) as error:
        print(f"compiling kernels: {error}", file=sys.stderr)  # noqa: T201 - for whoever started us
        return 1
    print(json.dumps(done))  # noqa: T201 - the answer
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
