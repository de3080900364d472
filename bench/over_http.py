"""The whole stack on one machine, for benches: server, engine, gateways, and clients that stream.

Every part is a process of its own on loopback. Clients are raw sockets: what they cost is small,
and they note when the bytes of each event came. A client looks every few milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import numpy as np
from numpy.typing import NDArray
from support.redis import redis_server

if TYPE_CHECKING:
    from headrace_engine.settings import EngineSettings

MODEL: Final = "bench"
"""Public name of whatever is served."""
PEPPER: Final = "a pepper for the bench alone"
START_S: Final = 240.0
"""Longest start of a process: a large model loads, and graphs are captured."""
RUN_S: Final = 300
LOOK_S: Final = 0.002
"""Time between two looks of a client."""
_EVENT = re.compile(rb"id: (\d+)\ndata: [^\n]*\n\n")
"""The id of an event counts the tokens up to and with it."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What clients need to know, and who costs what."""

    ports: Sequence[int]
    """Of the gateways."""
    key: str
    model: str
    architecture: str
    vocabulary: int
    pids: Mapping[str, int]
    ready_s: float
    """From the first process to the first that could be served."""


@dataclass(frozen=True, slots=True)
class Streams:
    """What clients saw of one burst. Seconds after its first request."""

    wall_s: float
    first_s: NDArray[np.float64]
    """float64[streams]: the first event, from its own request on."""
    gaps_s: NDArray[np.float64]
    """float64[...]: between events of a stream, of all streams."""
    tokens: int
    events: int
    cpu_s: Mapping[str, float]
    """CPU time of each process."""


@contextlib.contextmanager
def serving(settings: EngineSettings, gateways: int) -> Generator[Stack]:
    """A stack of these settings, ready; ended with the block."""
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        redis_server() as server,
        contextlib.ExitStack() as stack,
    ):
        key = asyncio.run(_make_key(server.url))
        engine = _Program(folder, "engine", _environment(settings, server.url))
        stack.callback(engine.end)
        doors = [
            _Program(folder, f"gateway-{i}", _gateway_environment(i, server.url))
            for i in range(gateways)
        ]
        for door in doors:
            stack.callback(door.end)
        engine.ready()
        ports = [door.ready() for door in doors]
        for port in ports:
            _wait_serving(port)
        pids = {"server": server.pid, "io": engine.pid}
        children = Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text().split()
        if children:
            pids["engine"] = int(children[0])
        pids |= {f"gateway-{i}": door.pid for i, door in enumerate(doors)}
        ready_s = time.perf_counter() - began
        architecture, vocabulary = asyncio.run(_read_card(server.url))
        yield Stack(ports, key, MODEL, architecture, vocabulary, pids, ready_s)


def burst(stack: Stack, prompts: Sequence[Sequence[int]], tokens: int, clients: int) -> Streams:
    """Sends every prompt at once, and reads all streams to their ends."""
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(clients)
    before = {name: _cpu_s(pid) for name, pid in stack.pids.items()}
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            spawn.Process(
                target=_run_client,
                args=(stack, prompts[i::clients], tokens, barrier, f"{folder}/{i}.npz", i),
                daemon=True,
            )
            for i in range(clients)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(RUN_S)
        if any(worker.exitcode != 0 for worker in workers):
            raise SystemExit("a client failed: its words are above")
        seen = [dict(np.load(f"{folder}/{i}.npz")) for i in range(clients)]
    return Streams(
        wall_s=max(float(each["last"].max()) for each in seen)
        - min(float(each["sent"].min()) for each in seen),
        first_s=np.concatenate([each["first"] - each["sent"] for each in seen]),
        gaps_s=np.concatenate([each["gaps"] for each in seen]),
        tokens=sum(int(each["tokens"].sum()) for each in seen),
        events=sum(len(each["gaps"]) + len(each["first"]) for each in seen),
        cpu_s={name: _cpu_s(pid) - before[name] for name, pid in stack.pids.items()},
    )


# clients


def _run_client(
    stack: Stack,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    barrier: Barrier,
    result: str,
    number: int,
) -> None:
    requests = [_request(stack, prompt, tokens) for prompt in prompts]
    waiting = selectors.DefaultSelector()
    heard: list[list[tuple[float, bytes]]] = []
    tcps: list[socket.socket] = []
    for i in range(len(requests)):
        port = stack.ports[(number + i) % len(stack.ports)]
        tcp = socket.create_connection(("127.0.0.1", port), timeout=RUN_S)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        heard.append([])
        waiting.register(tcp, selectors.EVENT_READ, heard[-1])
        tcps.append(tcp)
    barrier.wait(RUN_S)
    sent: list[float] = []
    for tcp, request in zip(tcps, requests, strict=True):
        sent.append(time.monotonic())
        tcp.sendall(request)
    while waiting.get_map():
        time.sleep(LOOK_S)
        for each, _ in waiting.select(RUN_S):
            tcp = cast("socket.socket", each.fileobj)
            data = tcp.recv(1 << 18)
            if data:
                each.data.append((time.monotonic(), data))
            else:
                waiting.unregister(tcp)
                tcp.close()
    arrivals = [_arrivals(pieces, tokens) for pieces in heard]
    np.savez(
        result,
        sent=np.array(sent),
        first=np.array([times[0] for times in arrivals]),
        last=np.array([times[-1] for times in arrivals]),
        gaps=np.concatenate([np.diff(times) for times in arrivals]),
        tokens=np.full(len(arrivals), tokens),
    )


def _request(stack: Stack, prompt: Sequence[int], tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": stack.model,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
    )
    return posted(stack.key, body)


def posted(key: str, body: str) -> bytes:
    """The bytes of a call of completions that is the last one of its connection."""
    head = (
        "POST /v1/completions HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return ("\r\n".join(head) + "\r\n\r\n" + body).encode()


def _arrivals(pieces: Sequence[tuple[float, bytes]], tokens: int) -> NDArray[np.float64]:
    """float64[events]: when each event with tokens was here whole. Fails where a token lacks."""
    everything = b"".join(data for _, data in pieces)
    events = list(_EVENT.finditer(everything))
    if b"data: [DONE]" not in everything or not events or int(events[-1][1]) != tokens:
        raise SystemExit(f"a stream did not end well: {everything[:200]!r} {everything[-400:]!r}")
    ends = np.cumsum([len(data) for _, data in pieces])
    times = np.array([at for at, _ in pieces])
    return times[np.searchsorted(ends, [event.end() for event in events])]


# processes


class _Program:
    """``python -m headrace_<service>`` with its own ready file and log."""

    def __init__(self, folder: str, name: str, environment: Mapping[str, str]) -> None:
        service = name.partition("-")[0]
        self.name = name
        self._ready = Path(folder) / f"{name}.json"
        self._log = Path(folder) / f"{name}.log"
        inherited = {key: value for key, value in os.environ.items() if "HEADRACE_" not in key}
        ready = {f"HEADRACE_{service.upper()}_READY_FILE": str(self._ready)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"headrace_{service}"],
                env={**inherited, **environment, **ready},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> int:
        """Its HTTP port, once it serves."""
        deadline = time.monotonic() + START_S
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.name} does not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.02)
        return int(json.loads(self._ready.read_text())["http_port"])

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _environment(settings: EngineSettings, url: str) -> dict[str, str]:
    given = settings.model_dump(mode="json", exclude_unset=True)
    given |= {"redis_url": url, "http_port": 0, "drain_s": 1, "model_name": MODEL}
    given.pop("echo_tokenizer", None)  # gateways need one
    return {
        f"HEADRACE_ENGINE_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in given.items()
        if value is not None
    }


def _gateway_environment(number: int, url: str) -> dict[str, str]:
    given = {"redis_url": url, "http_port": 0, "grpc_port": 0, "drain_s": 0, "drain_notice_s": 0}
    given |= {"name": f"bench-{number}", "max_queued": 100_000, "pepper": PEPPER}
    return {f"HEADRACE_GATEWAY_{name.upper()}": str(value) for name, value in given.items()}


async def _make_key(url: str) -> str:
    from headrace_gateway.auth.keys import KeyStore
    from headrace_kit.clock import SystemClock
    from headrace_transport.connection import connect_gateway

    wire = await connect_gateway(url)
    try:
        keys = KeyStore(wire, PEPPER.encode(), SystemClock())
        key, _ = await keys.create(name="bench", scopes=("inference",))
    finally:
        await wire.close()
    return key


async def _read_card(url: str) -> tuple[str, int]:
    """Architecture and vocabulary of what is served."""
    from headrace_transport.connection import connect_gateway

    wire = await connect_gateway(url)
    try:
        card = await wire.card(MODEL)
    finally:
        await wire.close()
    assert card is not None
    return card.architecture, card.vocabulary


def _wait_serving(port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with socket.create_connection(("127.0.0.1", port)) as tcp:
            tcp.sendall(b"GET /health/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            if b" 200 " in tcp.recv(4096).partition(b"\r\n")[0]:
                return
        time.sleep(0.05)
    raise SystemExit("a gateway does not get ready")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
