"""When a gateway should get traffic."""

from __future__ import annotations

from headrace_gateway.inference.readiness import Readiness
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker


async def test_it_is_ready_while_the_server_answers_and_it_does_not_drain() -> None:
    broker = MemoryBroker()
    readiness = Readiness(MemoryGatewayWire(broker))
    assert (await readiness.report()).ready
    broker.up = False
    report = await readiness.report()
    assert (report.ready, len(report.reasons)) == (False, 1)
    readiness.draining = True
    assert (await readiness.report()).reasons[0] == "draining"
    broker.up = True
    assert (await readiness.report()).reasons == ("draining",)


async def test_it_is_not_ready_while_every_call_would_wait_for_a_tokenizer() -> None:
    cold = [True]

    async def is_cold() -> bool:
        return cold[0]

    readiness = Readiness(MemoryGatewayWire(MemoryBroker()), cold=is_cold)
    assert not (await readiness.report()).ready
    cold[0] = False
    assert (await readiness.report()).ready
