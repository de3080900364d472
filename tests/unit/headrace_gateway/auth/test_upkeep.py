"""What a gateway does for keys beside its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from headrace_gateway.auth import upkeep as module
from headrace_gateway.auth.keys import KeyStore
from headrace_gateway.auth.upkeep import KeyUpkeep
from headrace_transport.errors import CommandFailed, TransportUnavailable
from headrace_transport.interface import ApiKey
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock


async def test_a_first_key_comes_back_after_the_server_lost_it_but_not_after_its_end() -> None:
    clock = FakeClock()
    broker = MemoryBroker(clock=clock)
    keys = KeyStore(MemoryGatewayWire(broker), b"0123456789abcdef", clock)
    upkeep = KeyUpkeep(keys, clock, initial="own-key-of-a-chart")
    await upkeep.look()
    [key] = await keys.list()
    broker.flush()
    await upkeep.look()
    assert [each.public_id for each in await keys.list()] == [key.public_id]
    await keys.revoke(key.public_id)
    clock.advance(31 * 86_400)
    await upkeep.look()  # deletes it
    await upkeep.look()
    assert await keys.list() == []


async def test_a_key_that_cannot_be_read_does_not_end_the_upkeep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.0)
    readings = asyncio.Semaphore(0)

    class Damaged(MemoryGatewayWire):
        async def api_keys(self) -> Sequence[ApiKey]:
            readings.release()
            raise CommandFailed("the API key hrk_1 cannot be read")

    clock = FakeClock()
    keys = KeyStore(Damaged(MemoryBroker(clock=clock)), b"0123456789abcdef", clock)
    running = asyncio.create_task(KeyUpkeep(keys, clock, initial=None).run())
    async with asyncio.timeout(20):
        for _ in range(3):
            await readings.acquire()
    assert not running.done()
    running.cancel()


async def test_first_key_is_adopted_without_a_look_at_the_others() -> None:
    class Crowded(MemoryGatewayWire):
        async def api_keys(self) -> Sequence[ApiKey]:
            raise TransportUnavailable("too many to read in time")

    clock = FakeClock()
    broker = MemoryBroker(clock=clock)
    keys = KeyStore(Crowded(broker), b"0123456789abcdef", clock)
    upkeep = KeyUpkeep(keys, clock, initial="own-key-of-a-chart")
    await upkeep.adopt()
    assert [key.name for key in broker.keys.values()] == [module.INITIAL_KEY]
    broker.flush()
    with pytest.raises(TransportUnavailable):  # of the forgetting, which comes after the first key
        await upkeep.look()
    assert [key.name for key in broker.keys.values()] == [module.INITIAL_KEY]
