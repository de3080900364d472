"""What gateway and Redis add to a token's way: from the executor's finished step to the client.

A real server, an engine with the echo executor, a gateway and a client, each a process of its
own on loopback. The bench's executor notes CLOCK_MONOTONIC, which all processes share, when a
step is done, in memory that all of them map; the client notes when the bytes of a token arrive.
Nothing of it is in production code. A second round of streams also notes when the engine sends
a frame and when the gateway has it, which costs a little and tells the parts. Beside them stand
the floors: PING, and a frame's bytes by a bare XADD and XREAD between two processes. Prints a
table, and one JSON line last.

With ``--turns`` two engines stand side by side, io beside one and in a process of its own at the
other, and streams go to them in turn.

usage: added_latency.py [--streams 32] [--tokens 400] [--step-ms 20] [--executor echo|cpu] [--turns N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import platform
import re
import selectors
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, cast
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
from headrace_contracts.pb.queue_pb2 import Frame
from headrace_kit.clock import SystemClock
from headrace_transport import connection
from headrace_transport.interface import FrameId, OutEntry
from numpy.typing import NDArray
from over_http import posted
from report import commit, percentiles_ms
from support.redis import RedisServer, redis_server

FIRST_TOKEN: Final = 1000
"""Stream s is prompted with this token + s, and echoes it: its frames name the stream. In the
default model's vocabulary these are pieces of English, each whole."""
PROMPT_TOKENS: Final = 32
MODEL: Final = "SmolLM2-135M-Instruct"
FORMS: Final = {"one": "off", "split": "on"}
"""Models of the two engines that ``--turns`` compares, with their ``io_process``."""
CHILD: Final = "child"
"""First argument of an engine's process whose io has one of its own."""
SKIP: Final = 40
"""Tokens at either end of a stream that are not measured: not all streams run then."""
PEPPER: Final = "a pepper for the bench alone"
LIMIT_S: Final = 60
SHARES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SO_TIMESTAMPNS: Final = 35
"""Of Linux; the socket module does not name it. With bytes comes the CLOCK_REALTIME at which the
kernel had the last of them."""
LOOK_S: Final = 0.002
"""Time between two looks of a client that is not eager; much less than a step."""
PLAIN, NOTED, EAGER = 0, 1, 2
"""Rounds: nothing but what is always noted; frames too; with an eager client."""
DONE, SENT, READ = 0, 1, 2
"""Stamps of a token: its step was done, its frame was given to the wire, the gateway had it."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured."""

    streams: int
    tokens: int
    """Of each stream."""
    step_s: float
    """Seconds that a step of the echo executor takes."""
    executor: str = "echo"

    @property
    def limit_s(self) -> float:
        """Far more than a round takes."""
        return self.tokens * (3 * self.step_s if self.executor == "echo" else 1.0)


@dataclass(frozen=True)
class Board:
    """Stamps in memory that all processes map. Nanoseconds of CLOCK_MONOTONIC; 0: none."""

    path: str
    load: Load

    @cached_property
    def stamps(self) -> NDArray[np.int64]:
        """int64[round, stamp, stream, token]."""
        shape = (3, 3, self.load.streams, self.load.tokens)
        return np.memmap(self.path, np.int64, "r+", 16, shape)

    @cached_property
    def round(self) -> NDArray[np.int64]:
        """int64[1]: the round that runs, 0 to 2. Frames are noted in round ``NOTED`` only."""
        return np.memmap(self.path, np.int64, "r+", 0, (1,))

    @classmethod
    def create(cls, folder: str, load: Load) -> Board:
        """An empty one."""
        path = Path(folder) / "board"
        with path.open("wb") as file:
            file.truncate(16 + 3 * 3 * load.streams * load.tokens * 8)
        return cls(str(path), load)

    def note_frame(self, stamp: int, frame: Frame) -> None:
        """Notes every token of a frame, in the noted round."""
        if self.round[0] != NOTED or not frame.tokens:
            return
        now = time.monotonic_ns()
        counts = np.array(frame.counts, np.int64)
        begins = np.cumsum(counts) - counts
        first = np.array(frame.firsts, np.int64) - begins
        tokens = np.repeat(first, counts) + np.arange(len(frame.tokens))
        streams = np.array(frame.tokens, np.int64) - FIRST_TOKEN
        self.stamps[NOTED, stamp, streams, tokens] = now


# engine


@contextlib.contextmanager
def _steps_noted(board: Board) -> Generator[None]:
    """Has the executor note the time at which a step is done, for each token that it made."""
    from headrace_engine.executor.cpu import CpuExecutor
    from headrace_engine.executor.echo import EchoExecutor
    from headrace_engine.state.batch import BatchData

    stream_of = np.zeros(1 << 12, np.int64)

    def note(batch: BatchData) -> None:
        for start in batch.starts:
            stream_of[start.slot] = start.tokens[0] - FIRST_TOKEN
        streams = stream_of[batch.slots[: batch.generating]]
        where = (int(board.round[0]), DONE, streams, batch.sample_indices)
        board.stamps[where] = time.monotonic_ns()

    collect, submit = EchoExecutor.collect, CpuExecutor.submit

    def collect_noted(self: EchoExecutor, batch: BatchData) -> None:
        collect(self, batch)
        note(batch)

    def submit_noted(self: CpuExecutor, batch: BatchData) -> None:
        submit(self, batch)
        note(batch)

    # each runs its batch there
    with (
        patch.object(EchoExecutor, "collect", collect_noted),
        patch.object(CpuExecutor, "submit", submit_noted),
    ):
        yield


def _run_child(arguments: Sequence[str]) -> None:
    """The engine's process where io has one of its own."""
    from headrace_engine.host import child

    path, load, *descriptors = arguments
    with _steps_noted(Board(path, Load(**json.loads(load)))):
        child.leave(child.main(descriptors))


def _run_engine(
    url: str, board: Board, ready: str, log: str, model: str = MODEL, io_process: str = "off"
) -> None:
    """The engine's process: its own program, with an executor that notes when steps are done."""
    from headrace_engine.app import EngineProcess
    from headrace_engine.settings import EngineSecrets, EngineSettings
    from headrace_kit.log import configure_logging
    from headrace_kit.process import new_loop
    from headrace_kit.settings import load

    publish = connection.RedisEngineWire.publish

    async def noting(
        self: connection.RedisEngineWire, frames: Mapping[str, Frame]
    ) -> Mapping[str, FrameId]:
        for frame in frames.values():
            board.note_frame(SENT, frame)
        return await publish(self, frames)

    _redirect(log)
    settings = load(
        EngineSettings,
        cli={
            "executor": board.load.executor,
            "echo_step_ms": board.load.step_s * 1000,
            "io_process": io_process,
            "model_name": model,
            "redis_url": url,
            "http_port": 0,
            "ready_file": ready,
            "max_batch": board.load.streams,
            "batch_tokens": 256 + board.load.streams,
            "drain_s": 1,
        },
    )
    configure_logging(service="engine", level="info")
    command = (__file__, CHILD, board.path, json.dumps(asdict(board.load)))
    with (
        _steps_noted(board),
        patch.object(connection.RedisEngineWire, "publish", noting),
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        runner.run(EngineProcess(settings, EngineSecrets(), command=command).run())


# gateway


def _run_gateway(url: str, board: Board, ready: str, log: str) -> None:
    """The gateway's process: its own program, whose reading of frames is noted."""
    from headrace_gateway.app import main as gateway

    read_out = connection.RedisGatewayWire.read_out

    async def noting(
        self: connection.RedisGatewayWire, gateway: str, after: FrameId, *, block_ms: int
    ) -> Sequence[OutEntry]:
        entries = await read_out(self, gateway, after, block_ms=block_ms)
        for entry in entries:
            if isinstance(entry.item, Frame):
                board.note_frame(READ, entry.item)
        return entries

    _redirect(log)
    os.environ["HEADRACE_GATEWAY_PEPPER"] = PEPPER
    flags = ["--redis-url", url, "--http-port", "0", "--grpc-port", "0", "--ready-file", ready]
    with patch.object(connection.RedisGatewayWire, "read_out", noting):
        gateway([*flags, "--drain-s", "0", "--drain-notice-s", "0"])


def _redirect(log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)


# client


def _run_client(
    port: int, key: str, load: Load, result: str, eager: bool, model: str = MODEL
) -> None:
    """The client's process: opens every stream, notes when bytes come, reads them afterwards.

    It looks up every few milliseconds only, and takes the kernel's word for when bytes came, so
    that it takes no processor from those that are measured; an eager one is woken by each token.
    """
    waiting = selectors.DefaultSelector()
    heard: list[list[tuple[int, bytes]]] = []
    for stream in range(load.streams):
        tcp = socket.create_connection(("127.0.0.1", port))
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tcp.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        tcp.sendall(_request(stream, key, load, model))
        heard.append([])
        waiting.register(tcp, selectors.EVENT_READ, heard[-1])
    ahead = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
    while waiting.get_map():
        if not eager:
            time.sleep(LOOK_S)
        for each, _ in waiting.select(LIMIT_S):
            tcp = cast("socket.socket", each.fileobj)
            data, notes, _, _ = tcp.recvmsg(1 << 16, 64)
            now = time.monotonic_ns()
            if data:
                if notes and not eager:  # the first ones may come without
                    seconds, ns = struct.unpack("qq", notes[0][2])
                    now = seconds * 1_000_000_000 + ns - ahead
                each.data.append((now, data))
            else:
                waiting.unregister(tcp)
                tcp.close()
    np.save(result, np.stack([_arrivals(pieces, load.tokens) for pieces in heard]))


def _request(stream: int, key: str, load: Load, model: str) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "temperature": 0,
            "prompt": [FIRST_TOKEN + stream] * PROMPT_TOKENS,
            "max_tokens": load.tokens,
            "ignore_eos": True,
            "stream": True,
        }
    )
    return posted(key, body)


def _arrivals(pieces: Sequence[tuple[int, bytes]], tokens: int) -> NDArray[np.int64]:
    """int64[tokens]: when the event that held a token was here whole."""
    everything = b"".join(data for _, data in pieces)
    if b"data: [DONE]" not in everything:
        raise SystemExit(f"a stream did not end well: {everything[-400:]!r}")
    ends = np.cumsum([len(data) for _, data in pieces])
    times = np.array([at for at, _ in pieces])
    arrivals = np.zeros(tokens, np.int64)
    known = 0
    # the id of an event counts the tokens up to and with it
    for found in re.finditer(rb"id: (\d+)\ndata: [^\n]*\n\n", everything):
        upto = int(found[1])
        arrivals[known:upto] = times[np.searchsorted(ends, found.end())]
        known = upto
    return arrivals


# floors


def ping_floor(server: RedisServer) -> list[float]:
    """Seconds of PING round trips on a plain socket."""
    times: list[float] = []
    with _connect(server) as tcp:
        for _ in range(1000):
            began = time.monotonic_ns()
            tcp.sendall(b"PING\r\n")
            tcp.recv(64)
            times.append((time.monotonic_ns() - began) / 1e9)
    return times


def stream_floor(server: RedisServer, load: Load) -> list[float]:
    """Seconds from a bare XADD in one process to its entry in another that waits in XREAD."""
    ones = [1] * load.streams
    frame = Frame(version=1, engine="bench-00000000", slots=range(load.streams), attempts=ones)
    frame.firsts.extend([200] * load.streams)
    frame.counts.extend(ones)
    frame.logged.extend([192] * load.streams)
    frame.tokens.extend(range(FIRST_TOKEN, FIRST_TOKEN + load.streams))
    size, count = frame.ByteSize(), 300
    writer = multiprocessing.get_context("spawn").Process(
        target=_run_writer, args=(server.port, size, count), daemon=True
    )
    writer.start()
    times: list[float] = []
    last = b"0-0"
    with _connect(server) as tcp:
        while len(times) < count:
            tcp.sendall(_packed(b"XREAD", b"BLOCK", b"20000", b"STREAMS", b"bench", last))
            reply = tcp.recv(1 << 16)
            now = time.monotonic_ns()
            last = re.findall(rb"\d{13,}-\d+", reply)[-1]
            times += [(now - int(sent)) / 1e9 for sent in re.findall(rb"at=(\d+);", reply)]
    writer.join(10)
    return times


def _run_writer(port: int, size: int, count: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as tcp:
        for _ in range(count):
            time.sleep(0.005)
            payload = b"at=%d;" % time.monotonic_ns()
            tcp.sendall(_packed(b"XADD", b"bench", b"*", b"frame", payload.ljust(size, b".")))
            tcp.recv(64)


def _connect(server: RedisServer) -> socket.socket:
    tcp = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tcp


def _packed(*words: bytes) -> bytes:
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    return b"*%d\r\n%s" % (len(words), parts)


# the whole


@dataclass(frozen=True, slots=True)
class Stack:
    """The processes that are measured."""

    board: Board
    folder: str
    port: int
    key: str
    pids: Mapping[str, int]


@contextlib.contextmanager
def served(
    server: RedisServer, load: Load, folder: str, forms: Mapping[str, str]
) -> Generator[Stack]:
    """Engines, by model with their ``io_process``, and a gateway, ready; ended with the block."""
    spawn = multiprocessing.get_context("spawn")
    board = Board.create(folder, load)
    key = asyncio.run(_make_key(server.url))
    engines = {"engine" if model == MODEL else model: (model, io) for model, io in forms.items()}
    processes = {
        name: spawn.Process(
            target=run,
            args=(server.url, board, f"{folder}/{name}.json", f"{folder}/{name}.log", *more),
            daemon=not more,  # one with a process of its own may be no daemon
        )
        for name, run, more in (
            *((name, _run_engine, more) for name, more in engines.items()),
            ("gateway", _run_gateway, ()),
        )
    }
    for process in processes.values():
        process.start()
    try:
        ports = [_wait(folder, name, process) for name, process in processes.items()]
        pids = {name: process.pid or 0 for name, process in processes.items()}
        _wait_serving(ports[-1])
        yield Stack(board, folder, ports[-1], key, {"server": server.pid, **pids})
    finally:
        for process in reversed(processes.values()):
            process.terminate()
            process.join(5)
            process.kill()


async def _make_key(url: str) -> str:
    from headrace_gateway.auth.keys import KeyStore

    wire = await connection.connect_gateway(url)
    try:
        keys = KeyStore(wire, PEPPER.encode(), SystemClock())
        key, _ = await keys.create(name="bench", scopes=("inference",))
    finally:
        await wire.close()
    return key


def _wait(folder: str, name: str, process: BaseProcess) -> int:
    """Its HTTP port, once it is ready."""
    ready = Path(folder) / f"{name}.json"
    while not ready.exists():
        if process.exitcode is not None:
            raise SystemExit(f"{name} ended:\n{(Path(folder) / f'{name}.log').read_text()}")
        time.sleep(0.05)
    return int(json.loads(ready.read_text())["http_port"])


def _wait_serving(port: int) -> None:
    while True:
        with socket.create_connection(("127.0.0.1", port)) as tcp:
            tcp.sendall(b"GET /health/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            if b" 200 " in tcp.recv(4096).partition(b"\r\n")[0]:
                return
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of streams showed. Arrays are seconds, float64[streams, tokens]."""

    added: NDArray[np.float64]
    parts: Mapping[str, NDArray[np.float64]]
    cpu_us: Mapping[str, float]
    """CPU time of each process, microseconds per step."""
    step_s: float
    """From the end of one step to that of the next, at the median."""
    together: float
    """Share of tokens that came with another token of their stream in one event."""


def run_round(stack: Stack, number: int, model: str = MODEL) -> Round:
    """Runs every stream once, in a client process, and reads the board."""
    board, load = stack.board, stack.board.load
    board.stamps[number] = 0
    board.round[0] = number
    before = {name: _cpu_s(pid) for name, pid in stack.pids.items()}
    result = f"{stack.folder}/client-{number}.npy"
    client = multiprocessing.get_context("spawn").Process(
        target=_run_client,
        args=(stack.port, stack.key, load, result, number == EAGER, model),
        daemon=True,
    )
    client.start()
    client.join(LIMIT_S + load.limit_s)
    if client.exitcode != 0:
        logs = "".join(path.read_text()[-2000:] for path in Path(stack.folder).glob("*.log"))
        raise SystemExit(f"the client failed\n{logs}")
    cpu_us = {
        name: (_cpu_s(pid) - before[name]) / load.tokens * 1e6 for name, pid in stack.pids.items()
    }
    inner = slice(SKIP, load.tokens - SKIP)
    arrived: NDArray[np.int64] = np.load(result)[:, inner]
    done, sent, read = (board.stamps[number, stamp][:, inner] for stamp in (DONE, SENT, READ))
    if not (done > 0).all() or not (arrived >= done).all():
        raise SystemExit("a token arrived before its step was done: the stamps are wrong")
    parts: dict[str, NDArray[np.float64]] = {}
    if number == NOTED:
        parts = {
            "engine": (sent - done) / 1e9,
            "wire": (read - sent) / 1e9,
            "gateway": (arrived - read) / 1e9,
        }
    together = 1 - np.count_nonzero(np.diff(arrived)) / max(arrived[:, 1:].size, 1)
    step_s = float(np.median(np.diff(done))) / 1e9
    return Round((arrived - done) / 1e9, parts, cpu_us, step_s, together)


def _cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Runs the stack and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400, help="of each stream")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of the echo executor")
    parser.add_argument("--executor", choices=("echo", "cpu"), default="echo")
    parser.add_argument("--turns", type=int, default=0, help="of each form of io")
    arguments = parser.parse_args()
    load = Load(arguments.streams, arguments.tokens, arguments.step_ms / 1000, arguments.executor)
    if load.executor != "echo" and not arguments.turns:
        parser.error("the parts of a token's way are told of the echo executor alone: give --turns")
    if load.tokens <= 2 * SKIP or load.streams < 1:
        parser.error(f"--tokens must be above {2 * SKIP}, --streams above 0")
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_S + max(3, 2 + 2 * arguments.turns) * round(load.limit_s))
    if arguments.turns:
        _compare(load, arguments.turns)
    else:
        _measure(load)


def _measure(load: Load) -> None:
    """One stack, with the parts of a token's way."""
    busy = os.getloadavg()[0]
    with redis_server() as server, tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        floors = {"ping": ping_floor(server), "xadd_xread": stream_floor(server, load)}
        with served(server, load, folder, {MODEL: "off"}) as stack:
            rounds = [run_round(stack, number) for number in (PLAIN, NOTED, EAGER)]
    _report(load, floors, rounds, busy)


def _compare(load: Load, turns: int) -> None:
    """Both forms of io in turn; the first turn of each warms up."""
    busy = os.getloadavg()[0]
    rounds: dict[str, list[Round]] = {name: [] for name in FORMS}
    with redis_server() as server, tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        with served(server, load, folder, FORMS) as stack:
            for turn in range(turns + 1):
                for name in list(FORMS)[:: 1 if turn % 2 else -1]:
                    found = run_round(stack, PLAIN, name)
                    rounds[name] += [found] if turn else []
    print(f"{load.streams} streams, {load.tokens} tokens each, executor {load.executor}")
    told: dict[str, dict[str, float]] = {}
    for name, found in rounds.items():
        added = percentiles_ms(
            np.concatenate([each.added.ravel() for each in found]).tolist(), SHARES
        )
        step = statistics.median(each.step_s for each in found) * 1000
        told[name] = {**{f"added_{key}_ms": round(v, 3) for key, v in added.items()}}
        told[name]["step_ms"] = round(step, 3)
        medians = [float(np.median(each.added)) * 1000 for each in found]
        print(
            f"  {name:6} added ms "
            + "  ".join(f"{key} {value:7.3f}" for key, value in added.items())
            + f"  turns {min(medians):.3f} to {max(medians):.3f}; a step {step:.3f} ms"
        )
    print(f"  load average at start {busy:.1f} on {os.cpu_count()} cores")
    print(
        json.dumps(
            {
                "bench": "added_latency_forms",
                "commit": commit(),
                "device": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
                "load_average": round(busy, 1),
                **asdict(load),
                "turns": turns,
                **told,
            }
        )
    )


def _too_long(number: int, frame: object) -> None:
    raise SystemExit("it takes too long: something hangs")


def _report(
    load: Load, floors: Mapping[str, Sequence[float]], rounds: Sequence[Round], busy: float
) -> None:
    plain, noted, eager = rounds
    steps = plain.added.T  # what a step adds to its last token: the gateway's work for all
    rows = {
        **{name: percentiles_ms(times, SHARES) for name, times in floors.items()},
        "added": percentiles_ms(plain.added.ravel().tolist(), SHARES),
        "first_of_step": percentiles_ms(steps.min(axis=1).tolist(), SHARES),
        "last_of_step": percentiles_ms(steps.max(axis=1).tolist(), SHARES),
        "eager_client": percentiles_ms(eager.added.ravel().tolist(), SHARES),
    }
    parts = {
        name: statistics.median(values.ravel().tolist()) for name, values in noted.parts.items()
    }
    print(f"{load.streams} streams, {load.tokens} tokens each, {load.step_s * 1000:g} ms a step")
    for name, values in rows.items():
        print(
            f"  {name:14} ms " + "  ".join(f"{key} {value:7.3f}" for key, value in values.items())
        )
    whole = sum(parts.values())
    shares = ", ".join(f"{name} {t * 1000:.3f} ({t / whole:.0%})" for name, t in parts.items())
    print(f"  parts at the median, ms: {shares}")
    ratio = rows["added"]["p50"] / rows["xadd_xread"]["p50"]
    print(f"  a token takes {ratio:.1f} times a bare XADD to XREAD at the median")
    spent = ", ".join(f"{name} {us:.0f}" for name, us in plain.cpu_us.items())
    print(f"  CPU of a step, us: {spent}; {plain.together:.2%} of tokens shared an event")
    print(f"  load average at start {busy:.1f} on {os.cpu_count()} cores")
    result = {
        "bench": "added_latency",
        "commit": commit(),
        "device": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
        "load_average": round(busy, 1),
        "streams": load.streams,
        "tokens": load.tokens,
        "step_ms": load.step_s * 1000,
        **{f"{name}_ms": {k: round(v, 4) for k, v in row.items()} for name, row in rows.items()},
        "added_over_xadd_xread_p50": round(ratio, 2),
        "parts_p50_ms": {name: round(t * 1000, 4) for name, t in parts.items()},
        "cpu_us_per_step": {name: round(us) for name, us in plain.cpu_us.items()},
        "tokens_sharing_an_event": round(plain.together, 4),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == [CHILD]:
        _run_child(sys.argv[2:])
    else:
        main()
