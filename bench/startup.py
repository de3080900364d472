"""How long until the first token: of `headrace serve`, and of an engine process alone.

Starts both as a person does, several times, from an installed environment and a warm disk cache:
the stack up to its line `ready` and to the first text of a streamed chat, the engine up to the
first token of a request that waits in the queue. The parts are told by the processes' own log
lines; CPU time, which a busy machine bends less than the clock, stands beside them. Prints
medians, and one JSON line last.

usage: startup.py [MODEL] [--dtype float32] [--times 3] [--only stack|engine]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import httpx
from headrace_cli.state import StateDir
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import RequestRecord, Sampling
from headrace_engine.default_model import DEFAULT_MODEL
from headrace_engine.loading import name_of
from report import commit
from support.process import Process
from support.redis import redis_server
from support.served import clean_environ, headrace, stop
from support.wire_client import wire_client

STACK_TARGET_S: Final = 15.0
ENGINE_TARGET_S: Final = 4.0
LIMIT_S: Final = 120.0
PROMPT: Final = (1, 9690, 198, 2683, 359, 260)
"""Any tokens of the default model's vocabulary."""
STACK_MARKS: Final = (
    ("cli", r"^headrace +\| state in"),
    ("engine_process", r"^engine +\|.* engine\.starting "),
    ("gateway_process", r"^gateway +\|.* gateway\.starting "),
    ("gateway_listens", r"^gateway +\|.* gateway\.ready "),
    ("model_loaded", r"^engine +\|.* model\.loaded "),
    ("engine_ready", r"^engine +\|.* engine\.ready "),
    ("text_built", r"^gateway +\|.* model\.usable "),
    ("ready", r"^ready http://"),
)
"""What a line of the stack's output tells, in the order of a start."""
ENGINE_MARKS: Final = (
    ("imported", '"engine.starting"'),
    ("model_loaded", '"model.loaded"'),
    ("ready", '"engine.ready"'),
)


def start_stack(model: str, dtype: str) -> dict[str, float]:
    """Seconds from the command to each mark and to the first text; CPU seconds at that moment."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        state = Path(folder) / "state"
        command = headrace(
            *("serve", model, "--dtype", dtype, "--http-port=0", "--grpc-port=0"),
            f"--state-dir={state}",
        )
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=clean_environ()
        )
        try:
            marks = _read_marks(process, began)
            marks["first_token"] = _first_text(state, name_of(model)) - began
            marks |= {f"cpu_{name}": spent for name, spent in _cpu_of(state).items()}
        finally:
            stop(process)
            assert process.stdout is not None
            process.stdout.close()
    return marks


def _read_marks(process: subprocess.Popen[bytes], began: float) -> dict[str, float]:
    marks: dict[str, float] = {}
    said: list[str] = []
    assert process.stdout is not None
    for raw in process.stdout:
        line = raw.decode("utf-8", "replace")
        said.append(line)
        for name, pattern in STACK_MARKS:
            if name not in marks and re.search(pattern, line):
                marks[name] = time.monotonic() - began
        if "ready" in marks:
            return marks
    raise SystemExit("serve ended:\n" + "".join(said))


def _first_text(state: Path, model: str) -> float:
    """Asks for a chat; the time at which the first text of the answer was here."""
    kept = StateDir(state)
    running = kept.running()
    assert running is not None
    headers = {"Authorization": f"Bearer {kept.read('api_key')}"}
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": 8,
        "stream": True,
    }
    url = f"{running.urls[0]}/v1/chat/completions"
    with (
        httpx.Client(timeout=LIMIT_S, trust_env=False) as client,
        client.stream("POST", url, headers=headers, json=body) as response,
    ):
        if not response.is_success:
            raise SystemExit(f"the chat was refused: {response.read().decode()}")
        for line in response.iter_lines():
            if '"content":"' in line and '"content":""' not in line:
                return time.monotonic()
    raise SystemExit("the chat had no text")


def _cpu_of(state: Path) -> dict[str, float]:
    """CPU seconds of engine and gateway so far."""
    return {
        name: _cpu_s(int(json.loads((state / "run" / f"{name}.ready.json").read_text())["pid"]))
        for name in ("engine", "gateway")
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def start_engine(model: str, dtype: str) -> dict[str, float]:
    """Seconds from the command to each mark and to the first token of a waiting request."""
    name = name_of(model)
    with redis_server() as server, tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        async with wire_client(server.url) as client:
            await client.submit(_record(name, client.name))
            began = time.monotonic()
            process = Process(
                "headrace_engine",
                Path(folder),
                *("--model", model, "--dtype", dtype, "--redis-url", server.url),
                *("--http-port", "0"),
                env={"OMP_NUM_THREADS": str(os.cpu_count())},
            )
            try:
                marks = await _engine_marks(process, began)
                await client.until_tokens(1, 1)
                marks["first_token"] = time.monotonic() - began
                marks["cpu_engine"] = _cpu_s(process.pid)
            finally:
                process.stop()
    return marks


def _record(model: str, gateway: str) -> RequestRecord:
    sampling = Sampling(max_new_tokens=8, top_p=1.0, repetition_penalty=1.0, seed=1)
    return RequestRecord(
        version=WIRE_VERSION,
        id="bench",
        model=model,
        gateway=gateway,
        slot=1,
        tenant="bench",
        band=1,
        key_id="bench",
        prompt=PROMPT,
        n=1,
        sampling=sampling,
    )


async def _engine_marks(process: Process, began: float) -> dict[str, float]:
    marks: dict[str, float] = {}
    while "ready" not in marks:
        if process.exit_code is not None or time.monotonic() - began > LIMIT_S:
            raise SystemExit(f"the engine did not start:\n{process.log()}")
        text = process.log()
        now = time.monotonic() - began
        marks = {mark: now for mark, words in ENGINE_MARKS if words in text} | marks
        await asyncio.sleep(0.01)
    return marks


def main() -> None:
    """Starts what was asked for, prints medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or packed")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", choices=("stack", "engine"))
    arguments = parser.parse_args()
    # an installed environment has its compiled modules: the first start here makes them
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    busy = os.getloadavg()[0]
    figures: dict[str, dict[str, float]] = {}
    if arguments.only != "engine":
        runs = [start_stack(arguments.model, arguments.dtype) for _ in range(arguments.times)]
        figures["stack"] = _medians(runs)
    if arguments.only != "stack":
        runs = [
            asyncio.run(start_engine(arguments.model, arguments.dtype))
            for _ in range(arguments.times)
        ]
        figures["engine"] = _medians(runs)
    for what, target_s in (("stack", STACK_TARGET_S), ("engine", ENGINE_TARGET_S)):
        if what in figures:
            _print(what, figures[what], target_s)
    print(f"  load average at start {busy:.1f} on {os.cpu_count()} cores")
    result = {
        "bench": "startup",
        "commit": commit(),
        "device": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
        "load_average": round(busy, 1),
        "model": arguments.model,
        "dtype": arguments.dtype,
        "times": arguments.times,
        **{f"{what}_s": row for what, row in figures.items()},
    }
    print(json.dumps(result))


def _medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


def _print(what: str, row: Mapping[str, float], target_s: float) -> None:
    verdict = "meets" if row["first_token"] <= target_s else "MISSES"
    print(f"{what}: first token after {row['first_token']:.2f} s; {verdict} {target_s:g} s")
    for name, seconds in row.items():
        print(f"  {name:16} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
