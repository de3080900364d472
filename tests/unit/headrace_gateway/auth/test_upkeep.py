"""What a gateway does for keys beside its calls."""

from __future__ import annotations

from headrace_gateway.auth.keys import KeyStore
from headrace_gateway.auth.upkeep import KeyUpkeep
from headrace_transport.memory import MemoryBroker, MemoryGatewayWire
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
