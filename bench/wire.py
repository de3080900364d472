"""What the wire adds to a token's way: packed frames from one engine process to one gateway.

Engine and gateway run in processes of their own, over an embedded server on loopback. Each step
the engine publishes one frame with a token of every stream, as it does when it serves; the
gateway reads, and compares the engine's clock in the frame with its own (one machine). Beside it
stands the floor: PING round trips on the same server. Prints a table, and one JSON line last.

usage: wire.py [--streams 32] [--steps 500] [--step-ms 5] [--flat-out]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from headrace_contracts.pb.queue_pb2 import Frame, LogEntry, RequestRecord
from headrace_transport.connection import connect_engine, connect_gateway
from headrace_transport.interface import FIRST_FRAME
from report import commit, percentiles_ms
from support.redis import redis_server

MODEL, GATEWAY, ENGINE = "bench", "gw-bench", "e-bench"
LOG_EVERY = 16
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured."""

    streams: int
    steps: int
    step_s: float
    """Seconds from step to step; 0: as fast as it goes."""


def main() -> None:
    """Runs engine and gateway, prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--flat-out", action="store_true", help="no pause between steps")
    arguments = parser.parse_args()
    step_s = 0.0 if arguments.flat_out else arguments.step_ms / 1000
    load = Load(streams=arguments.streams, steps=arguments.steps, step_s=step_s)
    with redis_server() as server:
        floor = asyncio.run(_floor(server.url))
        latencies, span_s = asyncio.run(_gateway(server.url, load))
    _report(load, floor, latencies, span_s)


async def _floor(url: str) -> list[float]:
    """Seconds of PING round trips."""
    wire = await connect_gateway(url)
    times: list[float] = []
    for _ in range(1000):
        started = time.perf_counter()
        await wire.ping()
        times.append(time.perf_counter() - started)
    await wire.close()
    return times


async def _gateway(url: str, load: Load) -> tuple[list[float], float]:
    """Submits, reads all frames; seconds from publish to read per frame, and the whole span."""
    wire = await connect_gateway(url)
    await wire.beat_gateway(GATEWAY, ttl_ms=120_000)
    for i in range(load.streams):
        await wire.submit(_record(i), max_queued=load.streams)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_run_engine, args=(url, load), daemon=True)
    process.start()
    latencies: list[float] = []
    after, begun = FIRST_FRAME, 0.0
    async with asyncio.timeout(120):
        while len(latencies) < load.steps:
            for entry in await wire.read_out(GATEWAY, after, block_ms=2000):
                after = entry.id
                if isinstance(entry.item, Frame):
                    # pass_id carries the engine's clock here: monotonic, one machine, nanoseconds
                    latencies.append((time.monotonic_ns() - entry.item.pass_id) / 1e9)
                    begun = begun or time.monotonic()
    span_s = time.monotonic() - begun
    await asyncio.to_thread(process.join, 10)
    await wire.close()
    return latencies, span_s


def _record(i: int) -> RequestRecord:
    return RequestRecord(
        version=1,
        id=f"bench-{i}",
        model=MODEL,
        gateway=GATEWAY,
        slot=i,
        tenant="bench",
        band=1,
        prompt=[1] * 128,
        n=1,
    )


def _run_engine(url: str, load: Load) -> None:
    asyncio.run(_engine(url, load))


async def _engine(url: str, load: Load) -> None:
    """Claims everything, then publishes step after step and logs as an engine does."""
    wire = await connect_engine(url)
    claimed = await wire.claim(MODEL, ENGINE, credit=load.streams, lease_ms=120_000)
    slots = [each.record.slot for each in claimed]
    ones = [1] * len(slots)
    next_step = time.monotonic()
    for step in range(load.steps):
        frame = Frame(
            version=1,
            engine=ENGINE,
            slots=slots,
            attempts=ones,
            firsts=[step] * len(slots),
            counts=ones,
            tokens=[step] * len(slots),
            logged=[step - step % LOG_EVERY] * len(slots),
            pass_id=time.monotonic_ns(),
        )
        await wire.publish({GATEWAY: frame})
        if step % LOG_EVERY == LOG_EVERY - 1:
            first = step + 1 - LOG_EVERY
            entry = LogEntry(
                version=1,
                attempt=1,
                choices=[0],
                firsts=[first],
                counts=[LOG_EVERY],
                tokens=range(first, step + 1),
            )
            await wire.append_logs(ENGINE, [(each.record.id, 1, entry) for each in claimed])
        next_step += load.step_s
        await asyncio.sleep(max(0.0, next_step - time.monotonic()) if load.step_s else 0)
    await wire.close()


def _report(load: Load, floor: Sequence[float], latencies: Sequence[float], span_s: float) -> None:
    tokens_s = load.streams * load.steps / span_s
    rows = {
        "ping_ms": percentiles_ms(floor, SHARES),
        "frame_ms": percentiles_ms(latencies, SHARES),
    }
    print(f"{load.streams} streams, {load.steps} steps, {load.step_s * 1000:g} ms a step")
    for name, values in rows.items():
        print(f"  {name:9} " + "  ".join(f"{key} {value:7.3f}" for key, value in values.items()))
    ratio = rows["frame_ms"]["p50"] / rows["ping_ms"]["p50"]
    print(f"  {tokens_s:,.0f} tokens/s; a frame takes {ratio:.1f} round trips at the median")
    result = {
        "bench": "wire",
        "commit": commit(),
        "device": f"{platform.machine()} {platform.system()}",
        "streams": load.streams,
        "steps": load.steps,
        "step_ms": load.step_s * 1000,
        "tokens_per_s": round(tokens_s),
        "frame_over_ping_p50": round(ratio, 2),
        **{name: {k: round(v, 4) for k, v in values.items()} for name, values in rows.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
