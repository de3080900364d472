"""A call's state, summed over its records, for its owner only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import Usage
from headrace_gateway.errors import BackendUnavailable, RequestNotFound
from headrace_gateway.inference.lookup import Found, check_owner, find, info_of
from headrace_transport.interface import RequestState
from headrace_transport.memory import MemoryGatewayWire
from support.wire import CALLER, Stack, call


def state(status: str, *, completion: int = 0, attempt: int = 1) -> RequestState:
    """A record's state."""
    return RequestState(
        status=status,  # type: ignore[arg-type]
        model="toy",
        tenant="acme",
        key_id="key1",
        n=1,
        attempt=attempt,
        created_ms=5,
        finish=FinishReason.LENGTH if status == "finished" else None,
        usage=Usage(prompt_tokens=2, completion_tokens=completion) if completion else None,
        prompt_tokens=2,
    )


def test_a_call_runs_while_one_of_its_records_does() -> None:
    def status_of(*statuses: str) -> str:
        states = [(f"r.{i}", state(status)) for i, status in enumerate(statuses)]
        return info_of("r", Found(states, complete=True)).status

    assert status_of("finished", "running", "queued") == "running"
    assert status_of("finished", "queued") == "queued"
    assert status_of("finished", "finished") == "finished"


def test_usage_is_summed_and_an_end_is_told_only_when_all_have_ended() -> None:
    two = [("r.0", state("finished", completion=3)), ("r.1", state("finished", completion=4))]
    info = info_of("r", Found(two, complete=True))
    assert info.usage is not None
    assert (info.usage.prompt_tokens, info.usage.completion_tokens) == (4, 7)
    assert info.finish is FinishReason.LENGTH
    failed = replace(state("finished"), finish=FinishReason.ERROR)
    assert info_of("r", Found([two[0], ("r.1", failed)], complete=True)).finish is failed.finish
    running = [("r.0", state("finished", completion=3)), ("r.1", state("running", attempt=4))]
    info = info_of("r", Found(running, complete=True))
    assert info.finish is None
    assert info.attempt == 4


async def test_a_call_of_several_prompts_is_found_by_its_own_id() -> None:
    stack = Stack()
    wire = MemoryGatewayWire(stack.broker)
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        running = await service.start(call("a", "bc"))
        found = await find(wire, "cmpl-1", CALLER)
        assert [name for name, _ in found.states] == ["cmpl-1.0", "cmpl-1.1"]
        assert found.complete
        del stack.broker.requests["cmpl-1.1"]
        assert not (await find(wire, "cmpl-1", CALLER)).complete
        with pytest.raises(RequestNotFound):
            await find(wire, "cmpl-2", CALLER)
        with pytest.raises(RequestNotFound):
            await find(wire, "cmpl-1", replace(CALLER, tenant="other"))
        stack.broker.up = False
        with pytest.raises(BackendUnavailable):
            await find(wire, "cmpl-1", CALLER)
        stack.broker.up = True
        await running.aclose()


@pytest.mark.parametrize("odd", ["", "a\0b", "a b", "a/b", "a" * 65, "a" * 63, "\U0001f600", "{x}"])
async def test_what_can_be_no_id_names_no_request(odd: str) -> None:
    with pytest.raises(RequestNotFound):
        await find(MemoryGatewayWire(Stack().broker), odd, CALLER)


def test_both_tenant_and_key_have_to_be_the_owners() -> None:
    check_owner("acme", "key1", "r", CALLER)
    for tenant, key in (("acme", "key2"), ("other", "key1")):
        with pytest.raises(RequestNotFound):
            check_owner(tenant, key, "r", CALLER)
