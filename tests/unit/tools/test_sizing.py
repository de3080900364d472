"""The sizing guide's figures follow from what was measured.

That they are those of today is in `make gen-check`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sizing

KV_BYTES = int(1e-8 * sizing.KV_BYTES_S)
"""Of a token: 10 ns of reading."""


def run(base_ms: float, row_ms: float, *, date: str, model: str = "llama8b, random") -> str:
    """A result of workloads.py on a machine that is exactly linear."""
    step = {
        name: base_ms + rows * (row_ms + 1e-5 * sizing.CONTEXTS.get(name, sizing.CONTEXT))
        for name, rows in sizing.BATCHES.items()
    }
    medians = {name: {"median": {"tpot_ms": ms}} for name, ms in step.items()}
    medians["w2"] = {"median": {"many_tok_s": 40_000.0}}
    medians["w6"] = {"median": {"out_tok_s": 1.0}}
    return json.dumps(
        {
            "bench": "workloads",
            "date": date,
            "machine": {"device": "NVIDIA X9 80 GB"},
            "model": {"name": model, "kv_bytes_per_token": KV_BYTES},
            "workloads": medians,
        }
    )


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sizing, "RESULTS", tmp_path)
    return tmp_path


def test_costs_of_a_linear_machine_are_found(results: Path) -> None:
    (results / "2026-01-01-x9-llama8b.json").write_text(run(4.0, 0.02, date="2026-01-01"))
    cost = sizing.measured()["Llama-3.1-8B"].cost
    assert cost.base_s == pytest.approx(0.004)
    assert cost.row_s == pytest.approx(2e-5)
    assert cost.context_s == pytest.approx(1e-8)
    assert cost.prefill_s == pytest.approx(1 / 40_000)


def test_newest_run_of_a_model_counts_and_others_are_left_out(results: Path) -> None:
    (results / "2026-01-01-x9-llama8b.json").write_text(run(4.0, 0.02, date="2026-01-01"))
    (results / "2026-01-01-x9-llama8b-2.json").write_text(run(3.0, 0.02, date="2026-01-01"))
    (results / "2026-01-02-x9-other.json").write_text(run(1.0, 0.02, date="", model="unheard-of"))
    special = run(2.0, 0.02, date="2026-01-01")
    (results / "2026-01-01-x9-llama8b-no-target.json").write_text(special)
    (results / "2026-01-03-cpu.json").write_text('{"runs": []}')
    found = sizing.measured()
    assert list(found) == ["Llama-3.1-8B"]
    assert found["Llama-3.1-8B"].cost.base_s == pytest.approx(0.003)


def test_most_is_where_prompts_and_answers_take_all_of_the_time() -> None:
    cost = sizing.Cost(base_s=0.005, row_s=1e-5, context_s=0, prefill_s=1e-5)
    most, decode = cost.most(prompt=1000, answer=100, rows=100)
    assert decode == pytest.approx(100 / 0.006)
    assert most * (1000 * 1e-5 + 100 / decode) == pytest.approx(1)


def test_figures_are_written_between_their_marks_and_nothing_else_is() -> None:
    text = sizing.GUIDE.read_text()
    changed = text.replace("| 1,456 blocks of 16", "| 1,457 blocks of 16")
    assert changed != text
    assert sizing.written(changed, also_slow=False) == sizing.written(text, also_slow=False)
    words = text.replace("# Sizing", "# Size")
    assert sizing.written(words, also_slow=False).startswith("# Size\n")


def test_a_mark_that_is_missing_is_told() -> None:
    with pytest.raises(SystemExit, match="sizing"):
        sizing.written(
            sizing.GUIDE.read_text().replace("figures: costs", "figures: cost"), also_slow=False
        )
