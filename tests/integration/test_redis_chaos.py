"""Engines that stall, die and wake; a server that goes and comes back empty.

The engines here decide token ``1000 * attempt + index``: a token that is decided twice is another
token, so that the gateway sees at once when the rule is broken.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest
from headrace_contracts import keys
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import Fence, Frame, LogEntry, RowFinish, Usage
from headrace_transport.connection import (
    RedisEngineWire,
    RedisGatewayWire,
    connect_engine,
    connect_gateway,
)
from headrace_transport.errors import RequestConflict, TransportUnavailable
from headrace_transport.interface import FIRST_FRAME, Claimed
from headrace_transport.options import WireOptions
from support.redis import RedisServer
from support.wires import GATEWAY, MODEL, entry, record

LENGTH = 24
"""Tokens of each request."""
JUMP = 8
"""What a gateway adds to the attempt when it submits again: past all that a lost server gave."""
LEASE_MS = 1000
OPTIONS = WireOptions(op_timeout_s=5.0, connect_timeout_s=5.0, log_ttl_ms=1, state_ttl_ms=500)


@dataclass(slots=True)
class Held:
    """A request that an engine believes it runs."""

    attempt: int
    slot: int
    tokens: list[int]
    logged: int


class Engine:
    """Runs what it claims, a token a step; ``stalled`` it does nothing, and later goes on."""

    def __init__(self, name: str, wire: RedisEngineWire, dice: random.Random) -> None:
        self.name = name
        self._wire = wire
        self._dice = dice
        self.held: dict[str, Held] = {}
        self.stalls = 0
        """How often it will still stall."""

    async def run(self, done: asyncio.Event) -> None:
        while not done.is_set():
            try:
                await self._turn()
            except TransportUnavailable:
                await asyncio.sleep(0.02)

    async def _turn(self) -> None:
        if self.stalls and self.held and self._dice.random() < 0.1:
            self.stalls -= 1
            await asyncio.sleep(LEASE_MS / 1000 * 2)
            # it wakes and goes on with its step before it renews: its leases are another's now
            await self._step()
        attempts = {name: held.attempt for name, held in self.held.items()}
        renewed = await self._wire.renew(MODEL, self.name, attempts, lease_ms=LEASE_MS)
        for name in renewed.lost:
            del self.held[name]
        credit = 3 - len(self.held)
        if credit > 0:
            claimed = await self._wire.claim(MODEL, self.name, credit=credit, lease_ms=LEASE_MS)
            for each in claimed:
                self._accept(each)
        if not self.held:
            await self._wire.wait_bell(MODEL, timeout_ms=50)
        await self._step()

    def _accept(self, claimed: Claimed) -> None:
        tokens = list(claimed.delivered[0])
        self.held[claimed.record.id] = Held(
            attempt=claimed.attempt,
            slot=claimed.record.slot,
            tokens=tokens,
            logged=len(tokens),
        )

    async def _step(self) -> None:
        for name, held in list(self.held.items()):
            if len(held.tokens) >= LENGTH:
                await self._end(name, held)
                continue
            index = len(held.tokens)
            token = 1000 * held.attempt + index
            frame = self._frame(held, [token], index)
            frames = await self._wire.publish({GATEWAY: frame})
            held.tokens.append(token)
            if self._dice.random() < 0.2 and GATEWAY in frames:
                await self._log(name, held, frames[GATEWAY])
        await asyncio.sleep(0.002)

    async def _log(self, name: str, held: Held, frame_id: str) -> None:
        rows = entry(held.tokens[held.logged :], first=held.logged, attempt=held.attempt)
        rows.frame_id = frame_id
        logged = await self._wire.append_log(self.name, name, held.attempt, rows)
        if logged.ours:
            held.logged = logged.lengths[0]

    async def _end(self, name: str, held: Held) -> None:
        usage = Usage(completion_tokens=LENGTH)
        row = RowFinish(row=0, reason="FINISH_REASON_LENGTH", usage=usage)
        frame = self._frame(held, [], LENGTH)
        frame.finishes.append(row)
        await self._wire.publish({GATEWAY: frame})
        last = LogEntry(
            version=1,
            attempt=held.attempt,
            choices=[0],
            firsts=[held.logged],
            counts=[LENGTH - held.logged],
            tokens=held.tokens[held.logged :],
            finishes=[row],
        )
        await self._wire.finish(
            MODEL,
            self.name,
            name,
            held.attempt,
            entry=last,
            reason=FinishReason.LENGTH,
            usage=usage,
        )
        self.held.pop(name, None)

    @staticmethod
    def _frame(held: Held, tokens: list[int], first: int) -> Frame:
        return Frame(
            version=1,
            slots=[held.slot],
            attempts=[held.attempt],
            firsts=[first],
            counts=[len(tokens)],
            tokens=tokens,
            logged=[held.logged],
        )


@dataclass(slots=True)
class Stream:
    """What the gateway has of one request."""

    name: str
    slot: int
    tokens: list[int] = field(default_factory=list[int])
    oldest: int = 0
    seen: int = 0
    submitted: bool = False
    ended: bool = False
    gaps: int = 0


class Gateway:
    """Submits, reads by the fence rule, and submits again what the server lost."""

    def __init__(self, wire: RedisGatewayWire, count: int) -> None:
        self._wire = wire
        self.streams = [Stream(name=f"r{i}", slot=i) for i in range(count)]

    async def run(self, done: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(done))
            group.create_task(self._keep_alive(done))

    async def _read(self, done: asyncio.Event) -> None:
        after = FIRST_FRAME
        while not done.is_set():
            try:
                read = await self._wire.read_out(GATEWAY, after, block_ms=100)
            except TransportUnavailable:
                await asyncio.sleep(0.02)
                continue
            for each in read:
                after = each.id
                assert each.item is not None
                self._take(each.item)
            if all(stream.ended for stream in self.streams):
                done.set()

    def _take(self, item: Frame | Fence) -> None:
        if isinstance(item, Fence):
            stream = self.streams[item.slot]
            stream.oldest = max(stream.oldest, item.attempt)
            return
        at = 0
        for row, slot in enumerate(item.slots):
            tokens = item.tokens[at : at + item.counts[row]]
            at += item.counts[row]
            self._take_row(self.streams[slot], item.attempts[row], item.firsts[row], list(tokens))
        for finish in item.finishes:
            stream = self.streams[item.slots[finish.row]]
            if item.attempts[finish.row] >= stream.oldest:
                assert finish.reason == FinishReason.LENGTH, finish
                stream.ended = len(stream.tokens) == LENGTH

    @staticmethod
    def _take_row(stream: Stream, attempt: int, first: int, tokens: list[int]) -> None:
        if attempt < stream.oldest:
            return
        stream.seen = max(stream.seen, attempt)
        if first > len(stream.tokens):
            # of an engine that does not know yet that the server lost it; the fence will stop it
            stream.gaps += 1
            return
        for i, token in enumerate(tokens, start=first):
            if i < len(stream.tokens):
                assert stream.tokens[i] == token, f"{stream.name}: token {i} was decided again"
            else:
                stream.tokens.append(token)

    async def _keep_alive(self, done: asyncio.Event) -> None:
        while not done.is_set():
            try:
                await self._wire.beat_gateway(GATEWAY, ttl_ms=5000)
                for stream in self.streams:
                    if not stream.ended:
                        await self._submit(stream)
            except TransportUnavailable:
                pass
            await asyncio.sleep(0.05)

    async def _submit(self, stream: Stream) -> None:
        attempt = stream.seen + JUMP if stream.submitted else 0
        stream.submitted = True
        try:
            await self._wire.submit(
                record(stream.name, slot=stream.slot, attempt=attempt),
                max_queued=1000,
                resume=entry(stream.tokens, attempt=stream.seen) if stream.tokens else None,
            )
        except RequestConflict:
            # it has finished; the terminal frame is on its way
            return


@pytest.fixture
async def wires(
    own_server: RedisServer,
) -> AsyncGenerator[tuple[RedisGatewayWire, list[RedisEngineWire]]]:
    gateway = await connect_gateway(own_server.url, options=OPTIONS)
    engines = [await connect_engine(own_server.url, options=OPTIONS) for _ in range(3)]
    yield gateway, engines
    for wire in (gateway, *engines):
        await wire.close()


async def serve(
    wires: tuple[RedisGatewayWire, list[RedisEngineWire]], *, seed: int, stalls: bool, count: int
) -> tuple[Gateway, list[Engine], asyncio.Event, list[asyncio.Task[None]]]:
    """Starts everything; ``done`` is set when every stream has ended."""
    done = asyncio.Event()
    gateway = Gateway(wires[0], count)
    engines = [
        Engine(f"e-{i}", wire, random.Random(seed * 10 + i)) for i, wire in enumerate(wires[1])
    ]
    if stalls:
        # three lost leases would make a request a dead letter, rightly
        engines[0].stalls = engines[1].stalls = 1
    tasks = [asyncio.ensure_future(each.run(done)) for each in (gateway, *engines)]
    return gateway, engines, done, tasks


async def finished(done: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Waits for the end; a failure of any part is raised."""
    waiter = asyncio.ensure_future(done.wait())
    try:
        async with asyncio.timeout(60):
            await asyncio.wait([waiter, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            assert done.is_set()
            await asyncio.gather(*tasks)
    finally:
        for task in (waiter, *tasks):
            task.cancel()
        await asyncio.gather(waiter, *tasks, return_exceptions=True)


async def assert_nothing_is_left(server: RedisServer, engine: RedisEngineWire) -> None:
    """No key of a finished request outlives its time, and no lease, entry or place is leaked."""
    while await engine.claim(MODEL, "e-last", credit=9, lease_ms=1000):
        pass
    await asyncio.sleep((OPTIONS.state_ttl_ms + 200) / 1000)
    names = set(re.findall(rb"hr:[^\r]+", server.command("KEYS", "*")))
    assert not {name for name in names if name.startswith(b"hr:{r")}
    of_model = {name for name in names if MODEL.encode() in name}
    kept = (keys.floors(MODEL), keys.idle_tenants(MODEL, 1), keys.sources(MODEL))
    assert of_model <= {name.encode() for name in kept}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_stalling_engines_never_decide_a_delivered_token_again(
    own_server: RedisServer, wires: tuple[RedisGatewayWire, list[RedisEngineWire]], seed: int
) -> None:
    gateway, _, done, tasks = await serve(wires, seed=seed, stalls=True, count=12)
    await finished(done, tasks)
    attempts = {token // 1000 for stream in gateway.streams for token in stream.tokens}
    assert all(len(stream.tokens) == LENGTH for stream in gateway.streams)
    assert max(attempts) > 1, "nothing was taken over; the test showed nothing"
    assert not any(stream.gaps for stream in gateway.streams)
    await assert_nothing_is_left(own_server, wires[1][0])


@pytest.mark.slow
async def test_server_that_comes_back_empty_loses_no_request_and_no_token(
    own_server: RedisServer, wires: tuple[RedisGatewayWire, list[RedisEngineWire]]
) -> None:
    gateway, _, done, tasks = await serve(wires, seed=3, stalls=False, count=30)
    for _ in range(3):
        await asyncio.sleep(0.15)
        if not done.is_set():
            await asyncio.to_thread(own_server.restart, empty=True)
    await finished(done, tasks)
    attempts = {token // 1000 for stream in gateway.streams for token in stream.tokens}
    assert all(len(stream.tokens) == LENGTH for stream in gateway.streams)
    assert max(attempts) > 1, "nothing was submitted again; the test showed nothing"
