"""Which key the local stack ends up with."""

from __future__ import annotations

import pytest
from headrace_cli.local_key import KeyKeeper, usable_key
from headrace_gateway.auth.keys import Authenticator, KeyStore
from headrace_gateway.auth.tokens import parse_token
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock

PEPPER = b"p" * 32


def store() -> KeyStore:
    clock = FakeClock()
    return KeyStore(MemoryGatewayWire(MemoryBroker(clock=clock)), PEPPER, clock)


def public_id(key: str) -> str:
    token = parse_token(key.encode(), PEPPER)
    assert token is not None
    return token.public_id


async def test_a_new_key_is_made_once_and_used_again() -> None:
    keys = store()
    made = await usable_key(keys, PEPPER, None, None)
    assert await usable_key(keys, PEPPER, None, made) == made
    assert [key.public_id for key in await keys.list()] == [public_id(made)]


async def test_the_key_may_do_everything() -> None:
    keys = store()
    await usable_key(keys, PEPPER, None, None)
    (key,) = await keys.list()
    assert key.scopes == {"inference", "admin"}


async def test_a_stored_key_survives_the_loss_of_the_server() -> None:
    made = await usable_key(store(), PEPPER, None, None)
    fresh = store()
    assert await usable_key(fresh, PEPPER, None, made) == made
    assert [key.public_id for key in await fresh.list()] == [public_id(made)]


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_revoked_or_damaged_stored_key_is_replaced(damaged: bool) -> None:
    keys = store()
    made = await usable_key(keys, PEPPER, None, None)
    if damaged:
        stored = made[:-1] + ("x" if made[-1] != "x" else "y")
    else:
        stored = made
        await keys.revoke(public_id(made))
    assert await usable_key(keys, PEPPER, None, stored) not in (made, stored)


async def test_a_stored_key_is_made_known_again_under_another_pepper() -> None:
    clock = FakeClock()
    wire = MemoryGatewayWire(MemoryBroker(clock=clock))
    made = await usable_key(KeyStore(wire, PEPPER, clock), PEPPER, None, None)
    other = b"q" * 32
    keys = KeyStore(wire, other, clock)
    assert await usable_key(keys, other, None, made) == made
    auth = Authenticator(wire, other, clock, cache_s=0)
    assert (await auth.token(made.encode())).key_id == public_id(made)
    await keys.revoke(public_id(made))
    assert await usable_key(KeyStore(wire, PEPPER, clock), PEPPER, None, made) != made


async def test_a_deleted_key_stays_away() -> None:
    clock = FakeClock()
    broker = MemoryBroker(clock=clock)
    wire = MemoryGatewayWire(broker)
    keys = KeyStore(wire, PEPPER, clock)
    made = await usable_key(keys, PEPPER, None, None)
    keeper = KeyKeeper(wire)
    await keeper.look()
    await keys.forget(public_id(made))
    assert await keeper.look() == 0
    broker.keys.clear()
    broker.forgotten_keys.clear()  # a server that has lost all brings no deleted key back either
    assert await keeper.look() == 0
    assert await usable_key(keys, PEPPER, None, made) == made
    await keys.forget(public_id(made))
    assert await usable_key(keys, PEPPER, None, made) != made
    assert [key.public_id == public_id(made) for key in await keys.list()] == [False]


async def test_a_given_key_goes_before_the_stored_one() -> None:
    keys = store()
    made = await usable_key(keys, PEPPER, None, None)
    own = "sk-my-own-key-0123456789"
    assert await usable_key(keys, PEPPER, own, made) == own
    assert await usable_key(keys, PEPPER, own + "\r\n", made) == own
    for wrong in ("short", "", "\n", "schl\u00fcssel-0123456789"):
        with pytest.raises(ValueError, match="characters"):
            await usable_key(keys, PEPPER, wrong, made)


async def test_keys_that_the_server_lost_come_back_as_they_were() -> None:
    clock = FakeClock()
    broker = MemoryBroker(clock=clock)
    wire = MemoryGatewayWire(broker)
    keys = KeyStore(wire, PEPPER, clock)
    made = await usable_key(keys, PEPPER, None, None)
    _, gone = await keys.create(name="revoked")
    keeper = KeyKeeper(wire)
    assert await keeper.look() == 0
    await keys.revoke(gone.public_id)
    assert await keeper.look() == 0
    known = {key.public_id: key for key in await keys.list()}

    broker.flush()
    assert await wire.api_keys() == []
    assert await keeper.look() == 2
    assert {key.public_id: key for key in await keys.list()} == known
    assert known[gone.public_id].revoked_ms is not None
    assert known[public_id(made)].revoked_ms is None
    assert await keeper.look() == 0
