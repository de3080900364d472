"""Writes the figures of docs/guides/sizing.md, from measurements and the simulator.

usage: sizing.py [--check]

What was measured lies in ``bench/results``: of each machine and model the newest run of
``bench/workloads.py`` counts, and of the CPU the newest run of ``bench/cpu.py`` with the file's own
weights. From these come the costs of a step, what one engine carries, and the example; the simulator
says what callers see at shares of that. Figures stand between marks, the words around them are the
guide's. ``--check`` writes nothing, fails where a figure is another now, and does not simulate again:
of what the simulator was asked it checks the question.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from headrace_cli.simulate import engine_defaults
from headrace_engine.scheduler.simulate.cost import CostModel
from headrace_engine.scheduler.simulate.simulator import simulate
from headrace_engine.scheduler.simulate.summary import summarize
from headrace_engine.scheduler.simulate.trace import Synthetic

ROOT: Final = Path(__file__).resolve().parent.parent
GUIDE: Final = ROOT / "docs/guides/sizing.md"
RESULTS: Final = ROOT / "bench/results"

KV_BYTES_S: Final = 4.35e12
"""What decode attention reads in a second on an H200: docs/guides/gpu.md."""
BATCHES: Final = {"w1": 1, "w4-32": 32, "w4-128": 128, "w4-256": 256}
"""Streams of each workload whose time per token is the time of a step."""
CONTEXTS: Final = {"w1": 128 + 512 / 2}
CONTEXT: Final = 512 + 256 / 2
"""Mean context of their sequences, in tokens."""
BURST: Final = (512, 128)
"""Prompt and answer of each of the thousand requests of w6."""
POOL_BYTES: Final = 107.48 * 2**30
"""What one H200 leaves for the cache beside Llama-3.1-8B: docs/guides/gpu.md."""
BLOCK_TOKENS: Final = 64
SHARE: Final = 0.7
"""Of the most that an engine can carry, what is planned for."""
ANSWER_BYTES: Final = 5e6
"""That finished requests of 200 tokens keep on the server, for each one a second."""
GATEWAY_TOKENS_S: Final = 8000
GATEWAY_TOKEN_S: Final = 57e-6
FRAMES_S: Final = 1740
"""Of a gateway, of its CPU, of a server's core: bench/README.md, added_latency."""

SHAPES: Final = {
    "SmolLM2-135M": (30, 3, 64),
    "Qwen3-0.6B": (28, 8, 128),
    "Llama-3.1-8B": (32, 8, 128),
}
"""Layers, KV heads, width of a head."""
NAMES: Final = {"llama8b": "Llama-3.1-8B", "qwen06b": "Qwen3-0.6B"}
"""Models of the benches by what they are called there; their weights are random."""

_PLAIN: Final = re.compile(r"\d{4}-\d\d-\d\d-[a-z0-9]+-[a-z0-9]+(-\d+)?")
"""Names of results: date, machine, model, and a number where there are several. Those that say more
are of other settings than usual."""
_BLOCK: Final = re.compile(
    r"(?P<begin><!-- figures: (?P<name>[\w-]+) -->\n\n).*?(?P<end>\n<!-- end -->)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of an engine's step: ``base + rows x (row + context x tokens of each)``."""

    base_s: float
    row_s: float
    context_s: float
    prefill_s: float
    """Of a prompt token."""

    def step_s(self, rows: float, context: float) -> float:
        """Of a step that only decodes."""
        return self.base_s + rows * (self.row_s + self.context_s * context)

    def most(self, prompt: float, answer: float, rows: float) -> tuple[float, float]:
        """Requests a second of an engine whose places are all taken; tokens a second of decoding."""
        decode = rows / self.step_s(rows, prompt + answer / 2)
        return 1 / (prompt * self.prefill_s + answer / decode), decode


@dataclass(frozen=True, slots=True)
class Measured:
    """A run of ``bench/workloads.py`` on one device."""

    model: str
    device: str
    date: str
    kv_bytes: int
    medians: Mapping[str, Mapping[str, float]]

    @property
    def cost(self) -> Cost:
        """Fitted by least squares to shares of what was measured; prefill is that of 16 x 2,048."""
        context_s = self.kv_bytes / KV_BYTES_S
        rows = np.array([float(rows) for rows in BATCHES.values()])
        attended = np.array([CONTEXTS.get(name, CONTEXT) for name in BATCHES])
        seconds = np.array([self.medians[name]["tpot_ms"] / 1000 for name in BATCHES])
        rest = seconds - rows * attended * context_s
        features = np.stack([np.ones_like(rows), rows], axis=1) / seconds[:, None]
        solved = cast("Any", np.linalg.lstsq(features, rest / seconds, rcond=None))
        base_s, row_s = (float(each) for each in solved[0])
        return Cost(base_s, row_s, context_s, 1 / self.medians["w2"]["many_tok_s"])


# --- what was measured
def measured() -> dict[str, Measured]:
    """The newest run of each model on a GPU, by the model's name."""
    found: dict[str, Measured] = {}
    plain = [path for path in RESULTS.glob("*.json") if _PLAIN.fullmatch(path.stem)]
    for path in sorted(plain, key=lambda path: path.stem):
        run = cast("dict[str, Any]", json.loads(path.read_text()))
        if run.get("bench") != "workloads" or run["machine"]["device"] == "cpu":
            continue
        model = NAMES.get(run["model"]["name"].partition(",")[0])
        medians = {name: each["median"] for name, each in run.get("workloads", {}).items()}
        if model is None or not {*BATCHES, "w2", "w6"} <= medians.keys():
            continue
        device = str(run["machine"]["device"]).removeprefix("NVIDIA ").partition(" ")[0]
        found[model] = Measured(
            model, device, str(run["date"]), int(run["model"]["kv_bytes_per_token"]), medians
        )
    return found


def measured_on_cpu() -> tuple[Cost, float]:
    """Of the small model with its file's weights on two cores; tokens a second of a batch of 8."""
    speeds: dict[str, float] = {}
    for path in sorted(RESULTS.glob("*cpu*.json")):
        for run in cast("list[dict[str, Any]]", json.loads(path.read_text()).get("runs", [])):
            # The least loaded run: a machine that does other work is too slow by as much.
            if "packed" in run and run["load"] <= speeds.get("load", math.inf):
                speeds = {**run["packed"]["headrace"], "load": run["load"]}
    one, eight = 1 / speeds["one stream"], 8 / speeds["batch 8"]
    row_s = (eight - one) / 7
    return Cost(one - row_s, row_s, 0.0, 1 / speeds["prefill 1024"]), speeds["batch 8"]


# --- the guide's figures
def pools() -> str:
    """How many tokens caches hold."""
    lines = ["| Model | Layers, KV heads, head | A token | Cache | Pool |", "|---|---|---|---|---|"]
    for model, kind, size, cache, said, block in (
        ("SmolLM2-135M", "`float32`", 4, 2**30, "1 GiB, the CPU's default", 16),
        ("SmolLM2-135M", "`bfloat16` or `packed`", 2, 2**30, "1 GiB", 16),
        ("Qwen3-0.6B", "`bfloat16`", 2, 10 * 2**30, "10 GiB", BLOCK_TOKENS),
        (
            "Llama-3.1-8B",
            "`bfloat16`",
            2,
            POOL_BYTES,
            "107.48 GiB, what one H200 leaves",
            BLOCK_TOKENS,
        ),
    ):
        layers, heads, width = SHAPES[model]
        token = 2 * layers * heads * width * size
        blocks = int(cache // (token * block))
        lines.append(
            f"| {model}, {kind} | {layers}, {heads}, {width} | {token:,} B | {said} "
            f"| {blocks:,} blocks of {block}: {blocks * block:,} tokens |"
        )
    return "\n".join(lines)


def costs() -> str:
    """What a step costs."""
    lines = ["| Machine | Model | base | row | context | prefill |", "|---|---|---|---|---|---|"]
    for run in measured().values():
        cost = run.cost
        lines.append(
            f"| one {run.device}, random weights, {run.date} | {run.model}, `bfloat16` "
            f"| {cost.base_s * 1e3:.2f} ms | {cost.row_s * 1e6:.1f} µs "
            f"| {cost.context_s * 1e9:.0f} ns | {cost.prefill_s * 1e6:.1f} µs |"
        )
    cpu, _ = measured_on_cpu()
    lines.append(
        "| two Xeon cores with AVX-512, shared with other work | SmolLM2-135M, `packed` "
        f"| {cpu.base_s * 1e3:.1f} ms | {cpu.row_s * 1e6:,.0f} µs | not told apart "
        f"| {cpu.prefill_s * 1e6:,.0f} µs |"
    )
    return "\n".join(lines)


def checked() -> str:
    """What the formulas say of what was measured."""
    lines = ["| | computed | measured | |", "|---|---|---|---|"]

    def row(what: str, computed: float, real: float, unit: str) -> None:
        lines.append(
            f"| {what} | {_three(computed)} {unit} | {_three(real)} {unit} "
            f"| {100 * (computed / real - 1):+.0f} % |"
        )

    for run in measured().values():
        for name, rows in BATCHES.items():
            step_s = run.cost.step_s(rows, CONTEXTS.get(name, CONTEXT))
            streams = "1 stream" if rows == 1 else f"{rows} streams"
            row(f"{run.model}, {streams}", step_s * 1e3, run.medians[name]["tpot_ms"], "ms")
        prompt, answer = BURST
        most, _ = run.cost.most(prompt, answer, 256)
        real = run.medians["w6"]["out_tok_s"]
        row(f"{run.model}, 1,000 requests at once", most * answer, real, "tokens a second")
    return "\n".join(lines)


LOAD: Final = (1000, 200)
"""Prompt and answer of the simulated requests and of the example."""
ROWS: Final = 256
REQUESTS: Final = 1000
SHARES: Final = (0.5, 0.7, 0.85, 0.95, 1.05)


def asked() -> str:
    """What the simulator was asked, as a command."""
    cost = measured()["Llama-3.1-8B"].cost
    most, _ = cost.most(*LOAD, ROWS)
    _, blocks = _simulated_pool()
    prompt, answer = LOAD
    return (
        "```sh\n"
        f"headrace simulate --rate {SHARE * most:.1f} --requests {REQUESTS} \\\n"
        f"  --prompt-tokens {prompt} --output-tokens {answer} --prefix-groups 0 --tenants 1 \\\n"
        f"  --base-ms {cost.base_s * 1e3:.2f} --decode-row-us {cost.row_s * 1e6:.1f} "
        f"--prefill-token-us {cost.prefill_s * 1e6:.1f} \\\n"
        f"  --context-token-ns {cost.context_s * 1e9:.0f} --set max_batch={ROWS} --set max_waiting=4 \\\n"
        "  --set batch_tokens=2304 --set prefill_chunk_tokens=2048 --set quantum_passes=64 \\\n"
        f"  --set block_tokens={BLOCK_TOKENS} --set pool_blocks={blocks}\n"
        "```"
    )


def simulated() -> str:
    """What callers of one engine see at shares of what it can carry at most."""
    cost = measured()["Llama-3.1-8B"].cost
    most, _ = cost.most(*LOAD, ROWS)
    _, blocks = _simulated_pool()
    settings = replace(
        engine_defaults(),
        audit=False,
        max_batch=ROWS,
        max_waiting=4,
        batch_tokens=2304,
        prefill_chunk_tokens=2048,
        quantum_passes=64,
        block_tokens=BLOCK_TOKENS,
        pool_blocks=blocks,
    )
    model = CostModel(
        round(cost.base_s, 5),
        round(cost.row_s, 7),
        round(cost.prefill_s, 7),
        round(cost.context_s, 9),
    )
    lines = [
        "| Requests a second | of the most | first token, median | 90 % | 99 % | between tokens, 99 % |",
        "|---|---|---|---|---|---|",
    ]
    for share in SHARES:
        rate = round(share * most, 1)
        items = Synthetic(
            requests=REQUESTS,
            rate=rate,
            prompt_tokens=LOAD[0],
            output_tokens=LOAD[1],
            prefix_groups=0,
            tenants=1,
        ).items()
        seen = summarize(simulate(items, settings, model))
        times = [seen[f"ttft_ms_p{p}"] for p in (50, 90, 99)] + [seen["itl_ms_p99"]]
        shown = " | ".join(f"{_three(each or 0)} ms" for each in times)
        lines.append(f"| {rate:g} | {share:.0%} | {shown} |")
    return "\n".join(lines)


def _simulated_pool() -> tuple[int, int]:
    layers, heads, width = SHAPES["Llama-3.1-8B"]
    token = 2 * layers * heads * width * 2
    return token, int(POOL_BYTES // (token * BLOCK_TOKENS))


def example() -> str:
    """A load, and what it takes."""
    rate, (prompt, answer) = 50, LOAD
    cost = measured()["Llama-3.1-8B"].cost
    context = prompt + answer / 2
    most, decode = cost.most(prompt, answer, ROWS)
    engines = math.ceil(rate / (SHARE * most))
    each = rate / engines
    filling = each * prompt * cost.prefill_s
    needed = each * answer
    # As many as run: the least number of rows whose steps give what is needed in the time left.
    running = next(
        rows
        for rows in range(1, ROWS + 1)
        if rows / cost.step_s(rows, context) * (1 - filling) >= needed
    )
    step_s = cost.step_s(running, context)
    gap_s = step_s / (1 - filling)
    _, pool = _simulated_pool()
    blocks = math.ceil((prompt + answer) / BLOCK_TOKENS)
    produced = rate * answer
    gateways = max(2, math.ceil(produced / GATEWAY_TOKENS_S))
    steps = 1 / gap_s
    frames = engines * steps * gateways
    row = produced / frames
    alone = rate / (engines - 1) if engines > 1 else math.inf
    spare = (
        f"With one engine lost the rest has {alone:.1f} each, {alone / most:.0%} of the most: take one "
        "more, if that must not be."
        if engines > 1
        else "Take a second one all the same, so that one may be lost."
    )
    return "\n".join(
        (
            f"1. **Most of one engine.** C = {context:,.0f}. `step({ROWS})` = "
            f"{cost.step_s(ROWS, context) * 1e3:.1f} ms; `decode` = {decode:,.0f} tokens per second; "
            f"`most` = {most:.1f} requests per second. 70 %: {SHARE * most:.1f}.",
            f"2. **Engines**: {rate} / {SHARE * most:.1f}, so {engines}, with {each:.1f} requests per "
            f"second each. {spare}",
            f"3. **What runs.** Prompts take {filling:.0%} of the time. Decoding has the rest, and must "
            f"give {needed:,.0f} tokens per second: `B` = {needed:,.0f} x `step(B)` / {1 - filling:.2f}, "
            f"which holds for `B` = {running} (`step` {step_s * 1e3:.1f} ms). A token then comes every "
            f"{gap_s * 1e3:.1f} ms, an answer in {answer * gap_s:.1f} s.",
            f"4. **Cache.** {prompt + answer:,} tokens are {blocks} blocks. {running} sequences take "
            f"{running * blocks:,}, {ROWS} take {ROWS * blocks:,}, of {pool:,}. Memory is no concern "
            "here; the rest serves as prefix cache.",
            f"5. **Gateways.** {rate} x {answer} = {produced:,} tokens per second; at "
            f"{GATEWAY_TOKENS_S:,} each: {gateways}. Together they use "
            f"{produced * GATEWAY_TOKEN_S:.2f} of a core for the tokens.",
            f"6. **Server.** {engines} engines x {steps:.0f} steps x {gateways} gateways = {frames:,.0f} "
            f"frames per second, {frames / FRAMES_S:.0%} of a core. Frames of {row:.0f} tokens: "
            f"{frames * (46 + 11 * row) / 1e6:.2f} MB per second. Memory: {rate} x 5 MB = "
            f"{rate * ANSWER_BYTES / 1e6:.0f} MB and what runs, within 768 MB.",
        )
    )


def example_on_cpu() -> str:
    """The same for the small model on two cores."""
    cost, eight = measured_on_cpu()
    most = 1 / (200 * cost.prefill_s + 100 / eight)
    return (
        "On the two Xeon cores with the small model (`packed`), prompts of 200 and answers of 100, eight "
        f"at once:\n`most` = 1 / (200 x {cost.prefill_s:.5f} + 100 / {eight:.0f}) = {most:.2f} requests "
        f"per second, {eight:.0f} being the measured\ntokens per second of a batch of 8. Plan "
        f"{SHARE * most:.1f}."
    )


FIGURES: Final[Mapping[str, Callable[[], str]]] = {
    "pools": pools,
    "costs": costs,
    "checked": checked,
    "asked": asked,
    "simulated": simulated,
    "example": example,
    "example-on-cpu": example_on_cpu,
}
SLOW: Final = frozenset({"simulated"})


def written(text: str, *, also_slow: bool) -> str:
    """The guide with its figures of now. Raises ``SystemExit`` where marks and figures differ."""
    names = [found["name"] for found in _BLOCK.finditer(text)]
    if sorted(names) != sorted(FIGURES):
        raise SystemExit(f"sizing.md has figures {names}, and there are {list(FIGURES)}")

    def fill(found: re.Match[str]) -> str:
        name = found["name"]
        if name in SLOW and not also_slow:
            return found[0]
        return f"{found['begin']}{FIGURES[name]()}\n{found['end']}"

    return _BLOCK.sub(fill, text)


def _three(value: float) -> str:
    """Three digits that count."""
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{round(value, 2 - math.floor(math.log10(value))) if value > 0 else 0:,.{digits}f}"


def main() -> int:
    """Writes, or compares."""
    check = "--check" in sys.argv[1:]
    text = GUIDE.read_text()
    made = written(text, also_slow=not check)
    if made == text:
        return 0
    if check:
        print("stale: docs/guides/sizing.md; run `make sizing`")
        return 1
    GUIDE.write_text(made)
    print("written: docs/guides/sizing.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
