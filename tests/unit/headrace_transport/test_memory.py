"""What the memory transport has besides the semantics that the shared suite covers."""

from __future__ import annotations

import pytest
from headrace_transport.errors import RecordRejected, TransportUnavailable
from headrace_transport.interface import FIRST_FRAME, EngineWire, GatewayWire
from headrace_transport.memory import MemoryEngineWire, MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.wires import GATEWAY, LEASE_MS, MODEL, claim, frame, record


def ends(broker: MemoryBroker) -> tuple[GatewayWire, EngineWire]:
    return MemoryGatewayWire(broker), MemoryEngineWire(broker)


async def test_broker_that_is_down_is_unavailable_and_keeps_everything() -> None:
    broker = MemoryBroker(clock=FakeClock())
    gateway, engine = ends(broker)
    await gateway.submit(record("r1"), max_queued=9)
    broker.up = False
    for call in (
        gateway.ping(),
        engine.ping(),
        gateway.submit(record("r2"), max_queued=9),
        gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1),
        engine.publish({GATEWAY: frame([1])}),
    ):
        with pytest.raises(TransportUnavailable):
            await call
    broker.up = True
    assert set(await claim(engine)) == {"r1"}


async def test_wires_of_one_broker_see_the_same_and_of_two_do_not() -> None:
    one, two = MemoryBroker(), MemoryBroker()
    await MemoryGatewayWire(one).submit(record("r1"), max_queued=9)
    assert await MemoryGatewayWire(one).queue_depth(MODEL) == 1
    assert await MemoryGatewayWire(two).queue_depth(MODEL) == 0


async def test_lease_expires_by_the_injected_clock() -> None:
    clock = FakeClock()
    gateway, engine = ends(MemoryBroker(clock=clock))
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine, lease_ms=LEASE_MS)
    clock.advance(LEASE_MS / 1000 - 0.001)
    assert await claim(engine, "e-2") == {}
    clock.advance(0.001)
    assert (await claim(engine, "e-2"))["r1"].crashes == 1


async def test_record_is_kept_as_it_was_when_it_was_sent() -> None:
    gateway, engine = ends(MemoryBroker())
    sent = record("r1")
    await gateway.submit(sent, max_queued=9)
    sent.tenant = "changed"
    assert (await claim(engine))["r1"].record.tenant == "acme"


async def test_models_name_is_checked() -> None:
    gateway, _ = ends(MemoryBroker())
    with pytest.raises(RecordRejected):
        await gateway.queue_depth("m{x}")


async def test_close_leaves_the_broker_to_the_others() -> None:
    broker = MemoryBroker()
    gateway, engine = ends(broker)
    await gateway.close()
    await engine.ping()


async def test_after_an_outage_engines_get_the_time_to_renew() -> None:
    clock = FakeClock()
    broker = MemoryBroker(clock=clock)
    gateway, engine = ends(broker)
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine, lease_ms=LEASE_MS)
    broker.up = False
    clock.advance(2 * LEASE_MS / 1000)
    with pytest.raises(TransportUnavailable):
        await engine.ping()
    broker.up = True
    assert await claim(engine, "e-2") == {}
    clock.advance(LEASE_MS / 2000)
    assert set(await claim(engine, "e-2")) == {"r1"}


async def test_after_an_outage_nobody_is_taken_for_dead_at_once() -> None:
    clock = FakeClock()
    broker = MemoryBroker(clock=clock)
    gateway, engine = ends(broker)
    await gateway.submit(record("r1"), max_queued=9)
    broker.up = False
    clock.advance(60)
    with pytest.raises(TransportUnavailable):
        await engine.ping()
    broker.up = True
    await engine.reap(MODEL)
    assert await gateway.queue_depth(MODEL) == 1
    clock.advance(broker.options.reap_after_outage_s)
    await engine.reap(MODEL)
    assert await gateway.queue_depth(MODEL) == 0
