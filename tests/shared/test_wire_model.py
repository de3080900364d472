"""Any order of calls, against a simple model: who may run what, and who is told so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import MAX_CRASHES, SUSPECT_CRASHES
from headrace_transport.interface import Claimed, EngineWire, GatewayWire
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.redis import RedisServer
from support.wires import (
    LEASE_MS,
    MODEL,
    OPTIONS,
    Wires,
    claim,
    finish,
    mark,
    opened,
    record,
)

T = TypeVar("T")

LASTING = replace(OPTIONS, state_ttl_ms=LEASE_MS, log_ttl_ms=LEASE_MS)
"""What has ended is remembered for as long as a run takes."""
ENGINES = ("e-0", "e-1", "e-2")
engine_names = st.sampled_from(ENGINES)


@dataclass(slots=True)
class Model:
    """What is known of one request."""

    status: Literal["queued", "running", "finished"] = "queued"
    attempt: int = 0
    crashes: int = 0
    owner: str = ""
    lapsed: bool = False
    """Its lease has expired, and nobody has noticed."""
    marked: bool = False
    history: list[str] = field(default_factory=list[str])

    @property
    def doomed(self) -> bool:
        """Whether the next claim ends it instead of giving it out."""
        return self.marked or self.crashes >= MAX_CRASHES

    @property
    def suspect(self) -> bool:
        return SUSPECT_CRASHES <= self.crashes < MAX_CRASHES

    def is_of(self, engine: str, attempt: int) -> bool:
        return (self.status, self.owner, self.attempt) == ("running", engine, attempt)


class WireMachine(RuleBasedStateMachine):
    """Calls in any order. ``server`` None: the memory transport."""

    server: RedisServer | None = None

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = contextlib.AsyncExitStack()
        self.wires: Wires = self.run(self.stack.enter_async_context(opened(self.server, LASTING)))
        self.gateway: GatewayWire = self.run(self.wires.gateway())
        self.engines: dict[str, EngineWire] = {
            name: self.run(self.wires.engine()) for name in ENGINES
        }
        self.model: dict[str, Model] = {}
        self.believes: dict[str, dict[str, int]] = {name: {} for name in ENGINES}

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()

    @rule(tenant=st.sampled_from(["a", "b"]), band=st.integers(0, 2), n=st.integers(1, 2))
    def submit(self, tenant: str, band: int, n: int) -> None:
        name = f"r{len(self.model)}"
        sent = record(name, tenant=tenant, band=band, n=n, slot=10 * len(self.model))
        self.run(self.gateway.submit(sent, max_queued=1000))
        self.model[name] = Model()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        if self.model[name].status != "finished":
            self.run(self.gateway.submit(record(name), max_queued=1000))

    @rule(engine=engine_names, credit=st.integers(1, 4))
    def claim(self, engine: str, credit: int) -> None:
        self._sweep()
        held = [m for m in self.model.values() if m.owner == engine and m.status == "running"]
        secluded = len(held) == 1 and held[0].suspect
        waiting = {name: m for name, m in self.model.items() if m.status == "queued"}
        suspects = [name for name, m in waiting.items() if m.suspect]
        doomed = sum(m.doomed for m in waiting.values())
        plain = sum(not m.doomed for m in waiting.values())

        got = self.run(claim(self.engines[engine], engine, credit=credit))

        assert len(got) <= credit
        for name, claimed in got.items():
            self._given(engine, name, claimed)
        if secluded:
            assert not got
        elif not suspects and doomed <= 3:
            assert len(got) == min(credit, plain)
        elif suspects and not held and not any(waiting[name].marked for name in suspects):
            assert [claimed.alone for claimed in got.values()] == [True]
        for name, m in waiting.items():
            if m.doomed and m.status == "queued" and self._status(name) == "finished":
                m.status = "finished"

    def _given(self, engine: str, name: str, claimed: Claimed) -> None:
        m = self.model[name]
        assert m.status == "queued", m.history
        assert not m.doomed
        assert claimed.attempt == m.attempt + 1
        assert claimed.crashes == m.crashes
        assert claimed.alone == m.suspect
        m.status, m.owner, m.attempt, m.lapsed = "running", engine, claimed.attempt, False
        m.history.append(f"{engine} claims at {m.attempt}")
        self.believes[engine][name] = claimed.attempt

    def _sweep(self) -> None:
        for m in self.model.values():
            if m.lapsed:
                m.status, m.owner, m.lapsed = "queued", "", False
                m.crashes += 1

    @rule(engine=engine_names)
    def renew(self, engine: str) -> None:
        beliefs = self.believes[engine]
        renewed = self.run(self.engines[engine].renew(MODEL, engine, beliefs, lease_ms=LEASE_MS))
        mine = {name for name, at in beliefs.items() if self.model[name].is_of(engine, at)}
        assert set(renewed.lost) == set(beliefs) - mine
        assert set(renewed.cancelled) == {name for name in mine if self.model[name].marked}
        for name in mine:
            self.model[name].lapsed = False

    @rule(engine=engine_names)
    def stall(self, engine: str) -> None:
        """The engine stops renewing, for long enough that all its leases expire."""
        beliefs = self.believes[engine]
        self.run(self.engines[engine].renew(MODEL, engine, beliefs, lease_ms=1))
        self.run(self.wires.pass_ms(4))
        for name, at in beliefs.items():
            if self.model[name].is_of(engine, at):
                self.model[name].lapsed = True

    @precondition(lambda self: any(self.believes.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        engine, name = self._belief(data)
        attempt, m = self.believes[engine][name], self.model[name]
        again = (m.status, m.owner, m.attempt) == ("finished", engine, attempt)
        expected = m.is_of(engine, attempt) or again

        ours = self.run(finish(self.engines[engine], name, name=engine, attempt=attempt))

        assert ours == expected, m.history
        if ours:
            m.status, m.lapsed, m.marked = "finished", False, False

    @precondition(lambda self: any(self.believes.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        engine, name = self._belief(data)
        attempt, m = self.believes[engine][name], self.model[name]
        self.run(self.engines[engine].release(MODEL, engine, {name: attempt}))
        if m.is_of(engine, attempt):
            m.status, m.owner, m.lapsed = "queued", "", False

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        m = self.model[name]
        known = self.run(self.gateway.cancel(MODEL, name, mark()))
        assert known == (m.status != "finished")
        if m.status == "queued":
            m.status, m.owner = "finished", ""
        elif m.status == "running":
            m.marked = True

    def _belief(self, data: st.DataObject) -> tuple[str, str]:
        pairs = [(engine, name) for engine in ENGINES for name in self.believes[engine]]
        return data.draw(st.sampled_from(sorted(pairs)))

    def _status(self, name: str) -> str:
        state = self.run(self.gateway.request_state(name))
        # a finished request's state has its time, and the model outlives it
        return state.status if state is not None else "finished"

    @invariant()
    def depth_is_the_number_of_queued_requests(self) -> None:
        queued = sum(m.status == "queued" for m in self.model.values())
        assert self.run(self.gateway.queue_depth(MODEL)) == queued

    @invariant()
    def states_agree(self) -> None:
        for name, m in self.model.items():
            state = self.run(self.gateway.request_state(name))
            if state is None:
                assert m.status == "finished"
                continue
            assert state.status == m.status, (name, m.history)
            assert (state.finish is not None) == (m.status == "finished")
            if m.status == "finished" and m.crashes >= MAX_CRASHES and not m.owner:
                assert state.finish in (FinishReason.ERROR, FinishReason.CANCELLED)


def test_any_order_of_calls_keeps_one_owner_a_request(
    transport_server: RedisServer | None,
) -> None:
    class Machine(WireMachine):
        server = transport_server

    examples = 60 if transport_server is None else 12
    Machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    Machine.TestCase().runTest()
