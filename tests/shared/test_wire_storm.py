"""Claims, sweeps, cancels, and deaths of engines and gateways in any order, against a plain model.

A token is a function of its request and place, so that everybody can tell a right one.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import pytest
from headrace_contracts import keys
from headrace_contracts.limits import GENERATED_WEIGHT, INLINE_RECORD_BYTES, WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import Fence, Frame, LogEntry, RowFinish
from headrace_transport.interface import FIRST_FRAME, Claimed, EngineWire, GatewayWire, OutEntry
from headrace_transport.options import WireOptions
from headrace_transport.replies import as_int, as_list, as_text
from headrace_transport.server import Server
from support.redis import RedisServer
from support.wires import (
    LEASE_MS,
    MODEL,
    SHORT_MS,
    MemoryWires,
    RedisWires,
    Wires,
    claim,
    finish,
    mark,
    opened,
    record,
)

LIFE_MS = 600_000
"""Lease of a gateway, and how long one of what has ended is kept: longer than all of it takes."""
OPTIONS = WireOptions(
    state_ttl_ms=LIFE_MS, log_ttl_ms=LIFE_MS, sign_of_life_ms=LIFE_MS, op_timeout_s=20
)
STEPS = 700
WRONG = 5_000
"""No token of any request."""


def tokens_of(name: str, choice: int, first: int, end: int) -> list[int]:
    return [crc32(f"{name} {choice} {i}".encode()) % 1000 for i in range(first, end)]


@dataclass
class Request:
    """What the model knows of a request."""

    name: str
    n: int
    gateway: str
    slot: int
    length: int
    """Tokens that each choice will have."""
    logged: list[int]
    told: list[int]
    """Tokens that its gateway has, or will find in its stream."""
    attempt: int = 0
    """Of the last claim."""
    ended: set[int] = field(default_factory=set[int])
    finished: int = 0
    """How often an engine was told that it had ended it."""
    moved: bool = False


@dataclass
class Engine:
    """One process."""

    name: str
    wire: EngineWire
    held: dict[str, int] = field(default_factory=dict[str, int])
    """What it believes to have, with the attempt."""
    stalls: int = 0
    """Renewals that it misses."""


class Storm:
    """A deployment, the model of it, and what may happen in it."""

    def __init__(self, wires: Wires, seed: int) -> None:
        self.random = random.Random(seed)
        self.wires = wires
        self.requests: dict[str, Request] = {}
        self.engines: list[Engine] = []
        self.gateways: dict[str, GatewayWire] = {}
        self._born = 0
        self._slot = 1

    async def open(self) -> None:
        for _ in range(3):
            self.engines.append(Engine(self._name("e"), await self.wires.engine()))
        for _ in range(2):
            await self._enter(await self.wires.gateway())

    async def run(self, steps: int) -> None:
        likely = {
            self.submit: 20,
            self.claim: 12,
            self.step: 40,
            self.renew: 10,
            self.cancel: 4,
            self.reap: 4,
            self.wait: 3,
            self.attach: 2,
            self.stall: 2,
            self.engine_dies: 1.5,
            self.release: 1,
            self.gateway_dies: 0.5,
        }
        for _ in range(steps):
            [happens] = self.random.choices(list(likely), list(likely.values()))
            await happens()

    async def settle(self) -> None:
        """Nothing new comes, and what lives goes on until all is over."""
        for _ in range(1_000):
            for engine in self.engines:
                if not engine.held:
                    await self.claim(engine, credit=64, lease_ms=LEASE_MS)
                for name, attempt in list(engine.held.items()):
                    await self.end(engine, self.requests[name], attempt)
            await self.reap()
            if not await self.live():
                return
            await self.wires.pass_ms(20)
        raise AssertionError(f"without an end: {await self.live()}")

    # what may happen
    async def submit(self) -> None:
        gateway, wire = self._gateway()
        n = self.random.choice((1, 1, 1, 2))
        name, large = self._name("r"), self.random.random() < 0.1
        late = self.random.random() < 0.2
        request = Request(
            *(name, n, gateway, self._slots(n), self.random.randrange(1, 12)),
            logged=[0] * n,
            told=[0] * n,
        )
        await wire.submit(
            record(
                name,
                slot=request.slot,
                tenant=self.random.choice("abc"),
                band=self.random.choice((0, 1, 1, 3)),
                prompt=[70_000] * (INLINE_RECORD_BYTES if large else self.random.randrange(1, 9)),
                n=n,
                gateway=gateway,
                deadline_ms=self._now_ms() + self.random.randrange(1, 200) if late else 0,
            ),
            max_queued=10_000,
        )
        self.requests[name] = request

    async def claim(
        self, engine: Engine | None = None, *, credit: int = 0, lease_ms: int = SHORT_MS
    ) -> None:
        engine = engine or self.random.choice(self.engines)
        credit = credit or self.random.randrange(1, 5)
        claims = await engine.wire.claim(MODEL, engine.name, credit=credit, lease_ms=lease_ms)
        assert len(claims) <= credit
        for claimed in claims:
            self._took(engine, claimed)

    def _took(self, engine: Engine, claimed: Claimed) -> None:
        request = self.requests[claimed.record.id]
        assert not request.finished
        assert claimed.attempt > request.attempt
        assert (claimed.record.gateway, claimed.record.slot) == (request.gateway, request.slot)
        request.attempt = claimed.attempt
        for choice, delivered in enumerate(claimed.delivered):
            length = len(delivered)
            assert list(delivered) == tokens_of(request.name, choice, 0, length)
            assert length >= request.logged[choice]
            if request.gateway in self.gateways:
                assert length >= request.told[choice], "a delivered token is decided again"
            request.logged[choice] = request.told[choice] = length
        request.ended |= claimed.ended.keys()
        engine.held[request.name] = claimed.attempt

    async def step(self) -> None:
        """An engine decides some tokens, tells them, and may log them. The last ones end it."""
        held = [(engine, self.requests[name]) for engine in self.engines for name in engine.held]
        lost = [each for each in held if each[0].held[each[1].name] != each[1].attempt]
        if lost and self.random.random() < 0.3:
            held = lost
        if not held:
            return
        engine, request = self.random.choice(held)
        attempt = engine.held[request.name]
        if attempt == request.attempt:
            await self._decide(engine, request)
        else:
            await self._say_wrong(engine, request, attempt)
        if len(request.ended) == request.n and self.random.random() < 0.8:
            await self.end(engine, request, attempt)

    async def _decide(self, engine: Engine, request: Request) -> None:
        before = [*request.told]
        choices = [choice for choice in range(request.n) if choice not in request.ended]
        for choice in choices:
            request.told[choice] += self.random.randrange(1, 4)
            request.told[choice] = min(request.told[choice], request.length)
        frame, entry = Frame(version=WIRE_VERSION), LogEntry(version=WIRE_VERSION)
        frame.attempts.extend([request.attempt] * len(choices))
        entry.attempt = request.attempt
        for row, choice in enumerate(choices):
            frame.slots.append(request.slot + choice)
            entry.choices.append(choice)
            for made, first in ((frame, before[choice]), (entry, request.logged[choice])):
                made.firsts.append(first)
                made.counts.append(request.told[choice] - first)
                made.tokens.extend(tokens_of(request.name, choice, first, request.told[choice]))
                if request.told[choice] == request.length:
                    made.finishes.append(RowFinish(row=row, reason="FINISH_REASON_STOP"))
                    request.ended.add(choice)
        named = await engine.wire.publish({request.gateway: frame})
        # What went to nobody, and each end, is in the log before anything else may happen.
        if (name := named.get(request.gateway)) and not frame.finishes:
            entry.frame_id = name
            if self.random.random() < 0.6:
                return
        logged = await engine.wire.append_log(engine.name, request.name, request.attempt, entry)
        if logged.ours:
            request.logged = [*request.told]

    async def _say_wrong(self, engine: Engine, request: Request, attempt: int) -> None:
        """Of an engine that does not know yet that another has it."""
        frame, entry = Frame(version=WIRE_VERSION), LogEntry(version=WIRE_VERSION, attempt=attempt)
        frame.slots.append(request.slot)
        frame.attempts.append(attempt)
        entry.choices.append(0)
        for made, first in ((frame, request.told[0]), (entry, request.logged[0])):
            made.firsts.append(first)
            made.counts.append(1)
            made.tokens.append(WRONG)
        await engine.wire.publish({request.gateway: frame})
        logged = await engine.wire.append_log(engine.name, request.name, attempt, entry)
        assert not logged.ours

    async def end(self, engine: Engine, request: Request, attempt: int) -> None:
        del engine.held[request.name]
        if await finish(engine.wire, request.name, name=engine.name, attempt=attempt):
            assert attempt == request.attempt
            request.finished += 1

    async def renew(self) -> None:
        for engine in self.engines:
            engine.stalls = max(0, engine.stalls - 1)
            if engine.stalls:
                continue
            renewed = await engine.wire.renew(MODEL, engine.name, engine.held, lease_ms=SHORT_MS)
            for name in renewed.lost:
                del engine.held[name]
            for name, marks in renewed.cancelled.items():
                if not all(each.HasField("choice") for each in marks):
                    await self.end(engine, self.requests[name], engine.held[name])

    async def stall(self) -> None:
        self.random.choice(self.engines).stalls = 8

    async def release(self) -> None:
        engine = self.random.choice(self.engines)
        await engine.wire.release(MODEL, engine.name, engine.held)
        engine.held.clear()

    async def cancel(self) -> None:
        if request := self._recent():
            choice = self.random.choice((None, *range(request.n)))
            await self._gateway()[1].cancel(MODEL, request.name, mark(choice=choice))

    async def attach(self) -> None:
        """A client comes back to its stream at any gateway."""
        if not (request := self._recent()):
            return
        name, wire = self._gateway()
        state = await wire.request_state(request.name)
        if state is not None and state.status != "finished":
            request.told = [*request.logged]  # an engine says again there what is in no log
            request.gateway, request.slot, request.moved = name, self._slots(request.n), True
            await wire.attach(request.name, name, request.slot, 0)

    async def reap(self) -> None:
        ends = (self.random.choice(self.engines).wire, self._gateway()[1])
        await self.random.choice(ends).reap(MODEL)

    async def engine_dies(self) -> None:
        gone = self.engines.pop(self.random.randrange(len(self.engines)))
        self.engines.append(Engine(self._name("e"), gone.wire))

    async def gateway_dies(self) -> None:
        name, wire = self._gateway()
        del self.gateways[name]
        await wire.beat_gateway(name, ttl_ms=1)
        await self._enter(wire)

    async def wait(self) -> None:
        await self.wires.pass_ms(self.random.choice((1, 5, 20, SHORT_MS + 10)))

    # how it stands
    async def live(self) -> list[str]:
        _, wire = self._gateway()
        states = [await wire.request_state(name) for name in self.requests]
        assert all(state is not None for state in states)
        return [
            name
            for name, state in zip(self.requests, states, strict=True)
            if state is not None and state.status != "finished"
        ]

    def _name(self, kind: str) -> str:
        self._born += 1
        return f"{kind}-{self._born:08x}"

    def _slots(self, n: int) -> int:
        self._slot += n
        return self._slot - n

    def _now_ms(self) -> int:
        if isinstance(self.wires, MemoryWires):
            return self.wires.broker.now_ms()
        return time.time_ns() // 1_000_000

    def _gateway(self) -> tuple[str, GatewayWire]:
        return self.random.choice(list(self.gateways.items()))

    async def _enter(self, wire: GatewayWire) -> None:
        name = self._name("g")
        self.gateways[name] = wire
        await wire.beat_gateway(name, ttl_ms=LIFE_MS)

    def _recent(self) -> Request | None:
        recent = list(self.requests.values())[-20:]
        return self.random.choice(recent) if recent else None


@pytest.fixture
async def stormy(transport_server: RedisServer | None) -> AsyncGenerator[Wires]:
    async with opened(transport_server, OPTIONS) as wires:
        yield wires


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happens_every_request_ends_once_and_leaves_nothing(
    stormy: Wires, seed: int
) -> None:
    storm = Storm(stormy, seed)
    await storm.open()
    await storm.run(STEPS)
    await storm.settle()
    assert all(request.finished <= 1 for request in storm.requests.values())
    for name, wire in storm.gateways.items():
        check_stream(storm, name, await all_of(wire, name))
    await check_nothing_is_left(stormy)


async def all_of(wire: GatewayWire, gateway: str) -> list[OutEntry]:
    found: list[OutEntry] = []
    while more := await wire.read_out(gateway, found[-1].id if found else FIRST_FRAME, block_ms=1):
        found += more
    return found


def check_stream(storm: Storm, gateway: str, entries: Sequence[OutEntry]) -> None:
    """A gateway that lives has read right tokens without a hole, and every end."""
    places = {
        request.slot + choice: (request, choice)
        for request in storm.requests.values()
        if request.gateway == gateway and not request.moved
        for choice in range(request.n)
    }
    fences, have, ends = Counter[int](), Counter[int](), set[int]()
    for entry in entries:
        match entry.item:
            case Fence():
                for slot in range(entry.item.slot, entry.item.slot + entry.item.n):
                    fences[slot] = entry.item.attempt
            case Frame():
                at, over = 0, {end.row for end in entry.item.finishes}
                for row, slot in enumerate(entry.item.slots):
                    tokens = entry.item.tokens[at : at + entry.item.counts[row]]
                    at += len(tokens)
                    if (
                        slot not in places
                        or slot in ends
                        or entry.item.attempts[row] < fences[slot]
                    ):
                        continue
                    request, choice = places[slot]
                    first, end = entry.item.firsts[row], entry.item.firsts[row] + len(tokens)
                    assert first <= have[slot], f"{request} has a hole"
                    assert list(tokens) == tokens_of(request.name, choice, first, end)
                    have[slot] = max(have[slot], end)
                    if row in over:
                        ends.add(slot)
            case None:
                raise AssertionError("it cannot be read")
    # the model's engines say nothing when they end what was cancelled
    assert all(places[slot][0].finished for slot in places.keys() - ends)


async def check_nothing_is_left(wires: Wires) -> None:
    """Beside what has a lifetime, and what a model, band or gateway has one of."""
    if isinstance(wires, MemoryWires):
        assert not wires.broker.work(MODEL).depth()
        assert not any(work.marks or work.owner for work in wires.broker.requests.values())
        return
    assert isinstance(wires, RedisWires)
    link = Server(wires.server.url, password=None, options=OPTIONS)
    try:
        found = {as_text(name) for name in as_list(await link.command("KEYS", "*"))}
        found -= {keys.GATEWAYS, keys.bell(MODEL), keys.floors(MODEL), keys.sources(MODEL)}
        found -= {keys.idle_tenants(MODEL, band) for band in range(keys.BANDS)}
        found = {name for name in found if not name.startswith(keys.out(""))}
        left = [name for name in found if as_int(await link.command("PTTL", name)) == -1]
        assert not left
    finally:
        await link.close()


WEIGHTS = {"a": 1.0, "b": 2.0, "c": 4.0}
LARGEST = 40 + GENERATED_WEIGHT * 20
"""What one request may cost."""


@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happens_shares_follow_weights(stormy: Wires, seed: int) -> None:
    """Of tenants that always have work, some of it cancelled, at engines that lose some of theirs."""
    chance = random.Random(seed)
    gateway, engine = await stormy.gateway(), await stormy.engine()
    await gateway.beat_gateway("g-1", ttl_ms=LEASE_MS)
    await engine.put_weights(MODEL, WEIGHTS)
    waiting = {tenant: set[str]() for tenant in WEIGHTS}
    spent: Counter[str] = Counter()
    for made in range(600):
        for tenant, names in waiting.items():
            if len(names) < 8:
                name = f"{tenant}-{made}"
                prompt = [1] * chance.randrange(1, 41)
                await gateway.submit(
                    record(name, slot=made, tenant=tenant, prompt=prompt, gateway="g-1"),
                    max_queued=99,
                )
                names.add(name)
            if len(names) > 6 and chance.random() < 0.2:
                name = chance.choice(sorted(names))
                await gateway.cancel(MODEL, name, mark())
                names.discard(name)
        if chance.random() < 0.6:
            continue
        taken = await claim(engine, credit=chance.randrange(1, 4))
        for name, claimed in taken.items():
            tenant = claimed.record.tenant
            waiting[tenant].discard(name)
            if claimed.attempt == 1:
                spent[tenant] += len(claimed.record.prompt)
            if chance.random() < 0.1:
                await engine.release(MODEL, "e-1", {name: claimed.attempt})
                continue
            generated = chance.randrange(21) if tenant == "b" else 0
            assert await finish(engine, name, attempt=claimed.attempt, generated=generated)
            spent[tenant] += generated * GENERATED_WEIGHT
    shares = [spent[tenant] / weight for tenant, weight in WEIGHTS.items()]
    assert min(shares) > 5 * LARGEST, "they had a while"
    assert max(shares) - min(shares) <= 3 * LARGEST
