"""Kernels are compiled without a GPU, and a launch finds them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.executor.cuda_ahead import (
    Compiling,
    Rehearsal,
    begin_compiling,
    compile_apart,
)
from headrace_engine.kernels.gpu.card import Card

pytestmark = pytest.mark.torch

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}

PROGRAM = """
import json, sys
from headrace_engine.executor.cuda_ahead import Rehearsal, rehearsed
from headrace_engine.kernels.gpu.card import pretend

start = Rehearsal.parse(sys.stdin.read())
pretend(start.card)
from headrace_engine.executor.cuda import CudaExecutor

def kernels():
    return {(wanted.kernel.__name__, wanted.specialization) for wanted in rehearsed(start)}

def capture(self):
    for rows, step, shared in self._captured_steps():
        self._decode_step(self._inbox, rows, step, shared=shared)
    for kind in self._prefills.kinds:
        self._prefills._run(kind)

launched = kernels()
CudaExecutor._warm = capture
captured = kernels()
names = [sorted({name for name, _ in some}) for some in (launched, captured, captured - launched)]
print(json.dumps(names))
"""


@pytest.fixture
def start(tmp_path: Path) -> Rehearsal:
    """One of a small model."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    return Rehearsal(
        model=str(model),
        slots=20,
        batch_tokens=256,
        block_tokens=64,
        phases=2,
        context_tokens=None,
        card=Card(9, 0, 132),
        folder=str(tmp_path / "kernels"),
    )


def test_a_rehearsal_travels(start: Rehearsal) -> None:
    assert Rehearsal.parse(start.json()) == start


def test_a_note_is_of_all_that_kernels_depend_on(start: Rehearsal, tmp_path: Path) -> None:
    note = start.note()
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "model").rename(elsewhere)
    same = replace(start, model=str(elsewhere), context_tokens=512, folder="/")
    assert same.note() == note
    for other in (
        replace(same, slots=21),
        replace(same, block_tokens=32),
        replace(same, card=Card(9, 0, 114)),
        replace(same, card=Card(8, 0, 132)),
    ):
        assert other.note() != note
    (elsewhere / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 512}))
    assert same.note() != note


def test_a_model_that_the_kernels_do_not_compute_is_refused(
    start: Rehearsal, tmp_path: Path
) -> None:
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG | {"head_dim": 96}))
    with pytest.raises(ModelRejected, match="head_dim 96"):
        start.note()


def kernels_of(start: Rehearsal) -> tuple[set[str], set[str], set[str]]:
    """Names of what a rehearsal launches, of what a start captures, and of what of this is no launch
    of the rehearsal. In a process that Triton does not interpret in, as the suite's own does."""
    names = [name for name in os.environ if not name.startswith("TRITON_")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=start.json(),
        env={name: os.environ[name] for name in names},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    launched, captured, only_captured = map(set[str], json.loads(done.stdout))
    return launched, captured, only_captured


def test_a_rehearsal_launches_every_kind_of_step(start: Rehearsal) -> None:
    launched, _, only_captured = kernels_of(start)
    # Few decodes and many, prompts, common beginnings, and each way of choosing a token.
    assert launched >= {
        "_few_rows",
        "_decode_attention",
        "_prefill_attention",
        "_beginnings",
        "_chunk_argmax",
        "_sample",
        "_penalize",
    }
    assert not only_captured


@pytest.mark.parametrize(
    ("slots", "tokens", "context"), [(1, 512, None), (8, 80, None), (1, 512, 128)]
)
def test_nothing_is_captured_that_was_not_launched_before(
    start: Rehearsal, slots: int, tokens: int, context: int | None
) -> None:
    """While a graph is captured a kernel can neither be compiled nor loaded."""
    start = replace(start, slots=slots, batch_tokens=tokens, context_tokens=context)
    _, captured, only_captured = kernels_of(start)
    assert captured >= {"_plan", "_decode_attention", "_prefill_attention", "_swiglu"}
    assert not only_captured


def test_a_process_that_fails_ends_no_start(
    start: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    compiling = begin_compiling(start)
    assert compiling is not None
    compiling.ready()
    with pytest.raises(RuntimeError, match="sm_90:132"):
        compile_apart(start, 1)


def test_the_process_compiles_into_the_folder_of_the_rehearsal(
    start: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "$TRITON_CACHE_DIR" >> {tmp_path}/folders\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "tritons"))
    with pytest.raises(RuntimeError):
        compile_apart(start, 1)
    compiling = begin_compiling(start)  # a start goes by Triton's setting
    assert compiling is not None
    assert compiling.result(60) is None
    folders = (tmp_path / "folders").read_text().splitlines()
    assert folders == [start.folder, str(tmp_path / "tritons")]


def alive(group: int) -> list[int]:
    """Processes of a group, without those that ended and wait for whoever takes note of it."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def wait_until(met: Callable[[], bool], limit_s: float = 120) -> None:
    """Fails if it takes longer."""
    until = time.monotonic() + limit_s
    while not met():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["stopped", "left"])
def test_it_ends_with_the_start(
    start: Rehearsal, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("TRITON_")]:
        monkeypatch.delenv(name)  # the suite's own interprets, and forks nobody
    compiling = Compiling(start, 2)
    group = compiling.pid
    wait_until(lambda: len(alive(group)) > 2)  # it and those that it forked
    if how == "stopped":
        compiling.stop()
    else:
        compiling.leave()
        # By itself, and long before it would be done: nobody else sends a signal until ``result`` does.
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        wait_until(lambda: os.waitid(os.P_PID, group, options) is not None)
        ended = os.waitid(os.P_PID, group, options)
        assert ended is not None
        assert (ended.si_code, ended.si_status) == (os.CLD_KILLED, signal.SIGKILL)
        assert compiling.result(60) is None
    wait_until(lambda: not alive(group))


def test_nothing_is_begun_where_a_note_says_that_all_is_there(start: Rehearsal) -> None:
    Path(start.folder).mkdir()
    (Path(start.folder) / start.note()).touch()
    assert begin_compiling(start) is None
