"""The workload bench runs on any machine, and its prompts are what its seeds say."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench/workloads.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(BENCH.parent))  # as when it runs by itself
    spec = importlib.util.spec_from_file_location("bench_workloads", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_workloads"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run_bench(*arguments: str) -> tuple[str, dict[str, Any]]:
    """What a small run prints, and its last line."""
    done = subprocess.run(
        [sys.executable, str(BENCH), "--executor", "echo", *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(280)
def test_every_workload_ends_with_its_figures_as_json(bench: ModuleType, tmp_path: Path) -> None:
    written = tmp_path / "result.json"
    every = [*bench.NAMES, *bench.SAMPLED, bench.OVER_HTTP]
    flags = ("--repeats", "2", "--out", str(written))
    _, result = run_bench(*flags, "--workload", *every)
    assert json.loads(written.read_text()) == result
    assert (result["size"], list(result["workloads"])) == ("small", every)
    for name, workload in result["workloads"].items():
        assert len(workload["repeats"]) == 2
        cached = workload["median"].get("cached_tokens", 0)
        # Only the shared prefix may be found again.
        assert (cached > 0) == (name == "w5"), name
    assert result["machine"]["device"] == "cpu"
    assert set(result["stages"]) == {"w4-32", "w4-128", "w4-256"}
    for stages in result["stages"].values():
        assert stages["host_plan_ms"] > 0


def test_kernels_are_told_apart_by_name(bench: ModuleType) -> None:
    kind_of = sys.modules["step_stages"].kind_of
    names = {
        "_decode_attention": "attention",
        "nvjet_sm90_tst_448x64_64x3_1x2_h_bz_coopB_TNN": "products",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>": "products",
        "_product": "products",
        "_residual_norm": "norms, rope, swiglu",
        "_finish_argmax": "sampling",
        "Memcpy DtoH (Device -> Pinned)": "messages and copies",
        "something_new": "other",
    }
    assert {name: kind_of(name) for name in names} == names


def test_a_kernel_that_begins_early_has_the_time_after_the_one_before(bench: ModuleType) -> None:
    ran = [("_product", 10.0, 14.0), ("_decode_attention", 1.0, 9.0), ("_swiglu", 4.0, 10.0)]
    spent = sys.modules["step_stages"].shares([*ran, ("_product", 12.0, 13.0), ("new", 16.0, 17.0)])
    assert {name: time for name, time in spent.items() if time} == {
        "attention": 8.0,
        "norms, rope, swiglu": 1.0,
        "products": 4.0,
        "other": 1.0,
        "gaps": 2.0,
    }


def test_the_mixed_workload_has_the_known_number_of_tokens(bench: ModuleType) -> None:
    prompts, outputs = bench.mixed(bench.FULL, 0)
    assert (len(prompts), sum(outputs)) == (256, 133_966)
    shifted, same = bench.mixed(bench.FULL, 1)
    assert same == outputs
    assert [len(prompt) for prompt in shifted] == [len(prompt) for prompt in prompts]
    assert shifted[0][:2] == [(prompts[0][0] + 1009) % 10_001, (prompts[0][1] + 1010) % 10_001]


def test_a_batch_has_room_for_every_row_that_is_asked_for(bench: ModuleType) -> None:
    small = bench.settings_for({}, bench.FULL)
    assert (small.max_batch, small.batch_tokens) == (256, 8448)
    large = bench.settings_for({"max_batch": 1024}, bench.FULL)
    assert (large.max_batch, large.batch_tokens) == (1024, 9216)
    assert bench.settings_for({"batch_tokens": 9999}, bench.FULL).batch_tokens == 9999


@pytest.mark.parametrize(("architecture", "vocabulary"), [("llama", 128256), ("qwen3", 151936)])
def test_floors_agree_with_those_that_were_measured_whole(
    bench: ModuleType, architecture: str, vocabulary: int
) -> None:
    floors = sys.modules["floors"]
    parts = floors.parts_of(architecture, vocabulary)
    whole = {
        (peer.workload, peer.figure): peer.floor
        for peer in sys.modules["peers"].peers_of(architecture, vocabulary)
    }

    def seconds(count: int, prompt: int, output: int) -> float:
        requests = [floors.Request(prompt, output)] * count
        return floors.walked(parts, requests, max_batch=256, batch_tokens=8448).wall_s

    assert 1e3 * seconds(1, 8192, 1) == pytest.approx(whole["w2", "one_ttft_ms"], rel=0.05)
    assert 16 * 2048 / seconds(16, 2048, 1) == pytest.approx(whole["w2", "many_tok_s"], rel=0.02)
    for rows in (32, 128, 256):
        token = 1e3 * (seconds(rows, 512, 256) - seconds(rows, 512, 1)) / 255
        assert token == pytest.approx(whole[f"w4-{rows}", "tpot_ms"], rel=0.01)


def test_a_floor_is_of_every_step_and_reads_a_common_beginning_once(bench: ModuleType) -> None:
    floors = sys.modules["floors"]
    parts = floors.Parts(
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        layer_weights=1,
        output_weights=10,
        decode_ms=((1, 1.0), (3, 2.0)),
        dense_flops=2e3,
        attention_flops=4.0,
    )
    requests = [floors.Request(4, 3), floors.Request(2, 2, cached=100)]
    floor = floors.walked(parts, requests, max_batch=2, batch_tokens=5)
    # Tokens a step: a prompt of 4 and one of the other; its other one beside a row; two rows.
    assert floor.steps == 3
    assert floor.products_s == pytest.approx((5 + 10) / 1e3 + 2 * 1.5e-3)
    assert floor.context_s == pytest.approx((5 + 100 + (6 + 3) + 100) * 4 / 4.22e12)
    assert floor.prompts_s == pytest.approx((1 + 2 + 3 + 4) + 101 + 102)
    one_by_one = floors.walked(parts, requests, max_batch=1, batch_tokens=5)
    assert one_by_one.steps == 5


def test_a_row_without_a_floor_of_its_own_has_the_workload_s(bench: ModuleType) -> None:
    peers = sys.modules["peers"]
    rows = (
        peers.Peer("w3-sampled", "out_tok_s", False, None, 3, 2, 5),
        peers.Peer("w4-32", "tpot_ms", True, 4.5, 6, None, 5),
        peers.Peer("start", "ready_s", True, None, 83, 15, 15),
    )
    medians = {"w3-sampled": {"out_tok_s": 4.0}, "w4-32": {"tpot_ms": 4.75}}
    table = peers.comparison(rows, medians, {"w3": {"out_tok_s": 7.0}, "w4": {"tpot_ms": 1.0}})
    assert [line.split()[2:] for line in table.splitlines()[1:]] == [
        ["4.00", "7", "3", "2", "5", "missed"],
        ["4.75", "4.5", "6", "-", "5", "met"],
    ]
