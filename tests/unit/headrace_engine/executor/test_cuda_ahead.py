"""Kernels are compiled without a GPU, and a launch finds them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
from support.waiting import wait_until

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
import numpy as np
from headrace_engine.executor.cuda_ahead import Rehearsal, rehearsed
from headrace_engine.kernels.gpu.card import pretend

starts = [Rehearsal.parse(line) for line in sys.stdin]
pretend(starts[0].card)
from headrace_engine.executor.cuda import CudaExecutor
from headrace_engine.executor.cuda_sampling import CLASSES

def capture(self):
    for rows, step, shared in self._captured_steps():
        self._decode_step(self._inbox, rows, step, shared=shared)
    for kind in self._prefills.kinds:
        self._prefills._run(kind)

def run(self):
    slots, longest = self._limits.slots, self._longest
    for ones in {0, 1, min(17, slots)}:
        for more in {0, 1, slots - ones}:
            for length in {2, min(20, longest), longest}:
                lengths = [1] * ones + [length] * more
                if 0 < len(lengths) <= slots and sum(lengths) <= self._limits.batch_tokens:
                    mixed(self, lengths)

def mixed(self, lengths):
    batch = self._idle_batch(lengths)
    for step in CLASSES:
        for batch.generating in (0, len(lengths)):
            batch.sample_indices = np.zeros(batch.generating, np.int32)
            self._mixed(batch, self._phases[0], step)

warm = CudaExecutor._warm
for start in starts:
    told = {}
    for way in (warm, capture, run):
        CudaExecutor._warm = way
        launches = rehearsed(start)
        told[way.__name__] = [(one.kernel.__name__, one.specialization) for one in launches]
    print(json.dumps(told))
print(json.dumps([name for name in ("sympy", "torch._dynamo") if name in sys.modules]))
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


def test_a_card_that_computes_no_bfloat16_is_refused_by_name(start: Rehearsal) -> None:
    with pytest.raises(ModelRejected, match="sm_75, and the CUDA kernels need sm_80"):
        begin_compiling(replace(start, card=Card(7, 5, 40)))


Launches = set[tuple[str, str]]
"""Kernels by name, and what they are compiled for."""


def launches_of(starts: list[Rehearsal]) -> list[tuple[Launches, Launches, Launches]]:
    """What each rehearsal launches, what that start captures, and what steps launch beside what is
    captured. In one process for all, in which Triton does not interpret as it does in the suite's."""
    names = [name for name in os.environ if not name.startswith("TRITON_")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(start.json() for start in starts),
        env={name: os.environ[name] for name in names},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *told, slow = (json.loads(line) for line in done.stdout.splitlines())
    assert not slow, "imported, which takes longer than all launches: see executor.cuda_shapes"
    return [
        (
            {(name, kind) for name, kind in one["_warm"]},
            {(name, kind) for name, kind in one["capture"]},
            {(name, kind) for name, kind in one["run"]},
        )
        for one in told
    ]


EDGES = [
    # max_batch, batch_tokens, block_tokens, context_tokens
    (20, 256, 64, None),
    (1, 512, 64, None),
    (1, 17, 16, None),
    (1, 1041, 1024, None),
    (2, 18, 16, None),
    (3, 19, 16, 20),
    (8, 80, 64, None),
    (17, 33, 16, 5),
]
"""Settings of starts, least ones too; None: the model's own context."""
CONTEXTS = (2, 20, 300)
"""Tokens for which a start with few rows and one with many are rehearsed as well."""


def test_a_rehearsal_launches_whatever_the_start_will(start: Rehearsal) -> None:
    """While a graph is captured, and between steps, no kernel may be compiled or loaded."""
    edges = [*EDGES, *((*EDGES[which][:3], context) for which in (0, 2) for context in CONTEXTS)]
    starts = [
        replace(start, slots=slots, batch_tokens=tokens, block_tokens=block, context_tokens=context)
        for slots, tokens, block, context in edges
    ]
    rehearsals = dict(zip(edges, launches_of(starts), strict=True))
    for edge, (launched, captured, run) in rehearsals.items():
        assert {name for name, _ in captured} >= {
            "_plan",
            "_few_rows",
            "_decode_attention",
            "_prefill_attention",
            "_chunk_argmax",
            "_sample",
            "_penalize",
        }, edge
        assert {name for name, _ in run} >= {"_prepare", "_update_table", "_sample"}, edge
        assert not captured - launched, edge
        assert not run - launched, edge
    # Common beginnings are looked for where rows are many.
    for edge, (launched, _, _) in rehearsals.items():
        assert ("_beginnings" in {name for name, _ in launched}) == (edge[0] >= 16), edge
    # What is compiled for one context serves all, as a note that all is there says nothing of it.
    for which in (0, 2):
        kernels = rehearsals[EDGES[which]][0]
        for context in CONTEXTS:
            assert rehearsals[*EDGES[which][:3], context][0] == kernels, context


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


def test_it_is_stopped_with_all_that_it_forked(
    start: Rehearsal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"  # forks as the real one does, without its imports
    program.write_text("#!/bin/sh\nsleep 300 &\nsleep 300 &\nwait\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    compiling = Compiling(start, 2)
    group = compiling.pid
    wait_until(lambda: len(alive(group)) > 2)
    compiling.stop()
    wait_until(lambda: not alive(group))


def test_it_ends_by_itself_when_the_start_is_gone(
    start: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("TRITON_")]:
        monkeypatch.delenv(name)  # the suite's own interprets, and forks nobody
    compiling = Compiling(start, 2)
    group = compiling.pid
    wait_until(lambda: len(alive(group)) > 2, within_s=120)  # it and those that it forked
    compiling.leave()
    # Long before it would be done: nobody else sends a signal until ``result`` does.
    options = os.WEXITED | os.WNOWAIT | os.WNOHANG
    wait_until(lambda: os.waitid(os.P_PID, group, options) is not None)
    ended = os.waitid(os.P_PID, group, options)
    assert ended is not None
    assert (ended.si_code, ended.si_status) == (os.CLD_KILLED, signal.SIGKILL)
    assert compiling.result(60) is None
    wait_until(lambda: not alive(group))


def test_a_c_compiler_that_fails_is_told_in_words(
    start: Rehearsal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in ("cc", "gcc", "clang"):
        (tmp_path / name).write_text("#!/bin/sh\necho no space left >&2; exit 3\n")
        (tmp_path / name).chmod(0o755)
    for name in [name for name in os.environ if name.startswith("TRITON_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    assert Compiling(start, 1).result(120) is None
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "no space left" in said
    last = said.splitlines()[-1]
    # The stand-in for the driver is compiled first; where there is a driver it is Triton's own module.
    assert last.startswith("compiling kernels: ")
    assert "failed with exit status 3" in last or "cannot be built" in last


def test_nothing_is_begun_where_a_note_says_that_all_is_there(
    start: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)  # would win over the folder
    Path(start.folder).mkdir()
    (Path(start.folder) / start.note()).touch()
    assert begin_compiling(start) is None
