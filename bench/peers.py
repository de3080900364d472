"""What other engines do on one H200 with two shapes of random weights, and the floors beside it.

Facts, measured 2026-11-30 in one lease: vLLM 0.26.0 and lmdeploy 0.18.0 (TurboMind) at their
defaults with prefix caching, bfloat16, torch 2.11 with CUDA 13; device copy 4.22 TB/s. A floor is
the time of the step's products by cuBLAS and of the KV's bytes; a target is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """One row of the comparison. vLLM's time between tokens is that over HTTP, 220 to 412 ms."""

    workload: str
    figure: str
    """Key of the workload's figures."""
    lower_is_better: bool
    floor: float | None
    """As it was measured whole; where None ``floors.py`` may know one."""
    vllm: float
    turbomind: float | None
    """None: not run."""
    target: float


LLAMA_8B = (
    Peer("w1", "tpot_ms", True, 3.94, 4.84, 4.98, 3.95),
    Peer("w1", "ttft_ms", True, None, 10.9, 11.9, 8.0),
    Peer("w1-sampled", "out_tok_s", False, None, 203, 166, 248),
    Peer("w2", "one_ttft_ms", True, 189, 219, 238, 208),
    Peer("w2", "many_tok_s", False, 49_000, 42_300, 41_100, 45_000),
    Peer("w3", "out_tok_s", False, None, 9_778, 10_062, 11_500),
    Peer("w3-sampled", "out_tok_s", False, None, 9_673, 8_832, 11_400),
    Peer("w4-32", "tpot_ms", True, 4.77, 5.76, 5.95, 5.2),
    Peer("w4-128", "tpot_ms", True, 7.11, 8.75, 9.23, 7.6),
    Peer("w4-256", "tpot_ms", True, 11.2, 14.2, 12.8, 12.1),
    Peer("w5", "wall_s", True, None, 1.78, 1.63, 1.50),
    Peer("w6", "out_tok_s", False, None, 6_970, 7_459, 8_000),
    Peer("w6", "itl_p99_ms", True, None, 220, 228, 120),
    Peer("w6-http", "out_tok_s", False, None, 6_700, None, 7_600),
    Peer("start", "ready_s", True, None, 83, 15, 15),
)
QWEN_06B = (
    Peer("w1", "tpot_ms", True, 0.28, 1.69, 2.23, 0.80),
    Peer("w1-sampled", "out_tok_s", False, None, 564, 346, 1_150),
    Peer("w2", "one_ttft_ms", True, 26, 40.3, 43.6, 33),
    Peer("w2", "many_tok_s", False, 570_000, 286_000, 318_000, 400_000),
    Peer("w3", "out_tok_s", False, None, 23_700, 24_000, 33_000),
    Peer("w3-sampled", "out_tok_s", False, None, 22_800, 16_500, 32_000),
    Peer("w4-32", "tpot_ms", True, 1.32, 2.19, 2.82, 1.75),
    Peer("w4-128", "tpot_ms", True, 3.02, 4.76, 4.17, 3.5),
    Peer("w4-256", "tpot_ms", True, 5.37, 7.31, 6.61, 5.9),
    Peer("w5", "wall_s", True, None, 1.06, 0.91, 0.75),
    Peer("w6", "out_tok_s", False, None, 21_600, 31_400, 36_000),
    Peer("w6-http", "out_tok_s", False, None, 14_500, None, 28_000),
)


def peers_of(architecture: str, vocabulary: int) -> tuple[Peer, ...]:
    """The rows for a model of this kind; none for a shape that no peer was measured on."""
    known = {("llama", 128256): LLAMA_8B, ("qwen3", 151936): QWEN_06B}
    return known.get((architecture, vocabulary), ())


def comparison(
    rows: tuple[Peer, ...],
    medians: Mapping[str, Mapping[str, float]],
    floors: Mapping[str, Mapping[str, float]],
) -> str:
    """A table of what was measured, for the rows whose workload ran; empty without any.

    ``floors`` are of workloads without what follows a dash: sampled, or over HTTP.
    """
    lines: list[str] = []
    for row in rows:
        ours = medians.get(row.workload, {}).get(row.figure)
        if ours is None:
            continue
        met = ours <= row.target if row.lower_is_better else ours >= row.target
        floor = row.floor or floors.get(row.workload.partition("-")[0], {}).get(row.figure)
        least = "-" if floor is None else f"{floor:,.4g}"
        turbomind = "-" if row.turbomind is None else f"{row.turbomind:,g}"
        lines.append(
            f"{row.workload:10} {row.figure:12} {ours:>10,.2f} {least:>10} {row.vllm:>10,g} "
            f"{turbomind:>10} {row.target:>10,g}  {'met' if met else 'missed'}"
        )
    if not lines:
        return ""
    head = f"{'':23} {'ours':>10} {'floor':>10} {'vLLM':>10} {'TurboMind':>10} {'target':>10}"
    return "\n".join([head, *lines])
