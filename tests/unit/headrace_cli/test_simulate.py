"""``headrace simulate``: a table, JSON, a picture, from a trace or a seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headrace_cli import simulate
from headrace_cli.errors import CommandFailed
from headrace_cli.main import app
from headrace_engine.scheduler.journal_file import write_journal
from headrace_engine.scheduler.simulate.cost import CostModel
from headrace_engine.settings import EngineSettings
from support.journals import recorded
from typer.testing import CliRunner

SMALL = ["simulate", "--requests", "20", "--rate", "50", "--prompt-tokens", "40",
         "--output-tokens", "8"]  # fmt: skip


def test_the_same_seed_gives_the_same_json() -> None:
    first, again = (CliRunner().invoke(app, [*SMALL, "--json"]) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.stdout == again.stdout
    figures = json.loads(first.stdout)
    assert figures["requests"] == figures["finished"] == 20


def test_the_defaults_are_those_of_an_engine() -> None:
    made, engine = simulate.engine_defaults(), EngineSettings.model_validate({})
    assert (made.max_batch, made.max_waiting) == (engine.max_batch, engine.max_waiting)
    assert (made.batch_tokens, made.quantum_passes) == (engine.batch_tokens, engine.quantum_passes)
    assert made.prefill_chunk_tokens == engine.prefill_chunk_tokens


def test_a_trace_is_a_table(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival_s": 0, "prompt_tokens": 9, "output_tokens": 3}\n' * 4)
    result = CliRunner().invoke(app, ["simulate", str(trace), "--set", "max_batch=2"])
    assert result.exit_code == 0, result.output
    lines = dict(line.split()[:2] for line in result.stdout.splitlines()[2:])
    assert lines["tokens_out"] == "12"
    assert lines["finished"] == "4"


def test_a_journal_gives_costs_and_settings(tmp_path: Path) -> None:
    ring, _ = recorded(requests=12)
    write_journal(ring, tmp_path / "j")
    result = CliRunner().invoke(app, [*SMALL, "--fit", str(tmp_path / "j"), "--json"])
    assert result.exit_code == 0, result.output
    # The recorded engine's sequences had at most 64 tokens, and its pool 10 blocks of 4.
    assert json.loads(result.stdout)["refused"] > 0


def test_a_trace_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("{}\n")
    for path, message in ((tmp_path / "bad", "line 1 has no"), (tmp_path / "no", "No such file")):
        with pytest.raises(CommandFailed, match=message):
            simulate.run(path, changes=[], fit=None, cost=CostModel(), as_json=False, picture=None)


@pytest.mark.parametrize(
    "option",
    [("--seed", "-1"), ("--base-ms", "inf"), ("--rate", "nan"), ("--prompt-tokens", "99999999999")],
)
def test_numbers_that_no_run_can_have_are_refused(option: tuple[str, str]) -> None:
    assert CliRunner().invoke(app, [*SMALL, *option]).exit_code == 2
