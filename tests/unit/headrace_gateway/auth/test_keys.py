"""Who gets in: deny by default, and only as long as the key lives."""

from __future__ import annotations

import hmac
from collections.abc import Callable

import pytest
from headrace_contracts.limits import MAX_NAME
from headrace_gateway.auth.keys import Authenticator, KeyStore
from headrace_gateway.errors import BackendUnavailable, InvalidApiKey, PermissionDenied
from headrace_transport.errors import CommandFailed
from headrace_transport.interface import ApiKey
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from structlog.testing import capture_logs
from support.clock import FakeClock

PEPPER = b"0123456789abcdef"


class Door:
    """Keys and their check, over one broker and one clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker(clock=self.clock)
        self.wire = wire = MemoryGatewayWire(self.broker)
        self.keys = KeyStore(wire, PEPPER, self.clock)
        self.auth = Authenticator(wire, PEPPER, self.clock, cache_s=3.0)


@pytest.fixture
def door() -> Door:
    return Door()


async def test_a_key_opens_with_what_was_written_into_it(door: Door) -> None:
    token, key = await door.keys.create(
        name="ci",
        tenant="acme",
        models=("m1",),
        band=2,
        max_concurrency=4,
        requests_per_minute=60,
        tokens_per_minute=900,
    )
    caller = await door.auth.bearer(f"Bearer {token}")
    assert (caller.key_id, caller.tenant, caller.band) == (key.public_id, "acme", 2)
    assert caller.models == {"m1"}
    assert caller.max_concurrency == 4
    assert (caller.requests_per_minute, caller.tokens_per_minute) == (60, 900)
    assert await door.auth.token(token.encode()) == caller
    assert await door.auth.bearer(f"bearer   {token} ".encode()) == caller


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic abc",
        "hr_something",
        b"Bearer caf\xe9",
        "Bearer \U0001f916",
        "Bearer " + "x" * 65536,
        b"Bearer \x00\x01\x02\x03\x04\x05\x06\x07\x08",
        "Bearer \udcff\udcfe-surrogates",
    ],
)
async def test_whatever_is_no_key_is_refused_and_never_an_accident(
    door: Door, header: bytes | str | None
) -> None:
    with pytest.raises(InvalidApiKey):
        await door.auth.bearer(header)


async def test_a_wrong_secret_and_an_unknown_id_are_answered_alike(door: Door) -> None:
    token, _ = await door.keys.create(name="a")
    await door.keys.create(name="b")
    stranger = await Door().keys.create(name="c")
    said: set[str] = set()
    for wrong in (token + "a", token[:-1], stranger[0], "sk-never-seen"):
        with pytest.raises(InvalidApiKey) as caught:
            await door.auth.token(wrong.encode())
        assert token not in caught.value.message
        said.add(caught.value.message)
    assert len(said) == 1


async def test_comparison_is_of_digests_in_constant_time_even_for_unknown_ids(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[object, object]] = []
    plain: Callable[[bytes, bytes], bool] = hmac.compare_digest

    def watch(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return plain(a, b)

    token, key = await door.keys.create(name="a")
    unknown, _ = await Door().keys.create(name="b")
    monkeypatch.setattr(hmac, "compare_digest", watch)
    await door.auth.token(token.encode())
    assert compared[-1] == (key.digest, key.digest)
    with pytest.raises(InvalidApiKey):
        await door.auth.token(unknown.encode())
    digest, expected = compared[-1]
    assert isinstance(digest, bytes)
    assert len(digest) == 32
    assert expected == bytes(32)


async def test_a_revoked_key_dies_within_the_caches_time(door: Door) -> None:
    token, key = await door.keys.create(name="a")
    await door.auth.token(token.encode())
    assert await door.keys.revoke(key.public_id)
    door.clock.advance(3.0)
    with pytest.raises(InvalidApiKey, match="revoked"):
        await door.auth.token(token.encode())
    assert not await door.keys.revoke("unknown12345")


async def test_a_key_revoked_for_later_works_until_then(door: Door) -> None:
    token, key = await door.keys.create(name="old")
    await door.keys.revoke(key.public_id, at_ms=door.clock.wall_ms() + 60_000)
    await door.auth.token(token.encode())
    door.clock.advance(60)
    with pytest.raises(InvalidApiKey):
        await door.auth.token(token.encode())


async def test_a_key_expires_even_while_it_is_remembered(door: Door) -> None:
    token, _ = await door.keys.create(name="a", expires_ms=door.clock.wall_ms() + 1000)
    await door.auth.token(token.encode())
    door.clock.advance(1.0)
    with pytest.raises(InvalidApiKey, match="expired"):
        await door.auth.token(token.encode())


async def test_without_the_server_nobody_gets_in_on_an_old_word(door: Door) -> None:
    token, _ = await door.keys.create(name="a")
    await door.auth.token(token.encode())
    door.broker.up = False
    await door.auth.token(token.encode())  # a moment ago it was good
    door.clock.advance(3.0)
    with pytest.raises(BackendUnavailable):
        await door.auth.token(token.encode())


async def test_a_key_that_the_server_lost_is_worth_another_try_for_a_while(door: Door) -> None:
    token, key = await door.keys.create(name="a")
    await door.auth.token(token.encode())
    kept = await door.keys.export()
    door.broker.flush()
    door.clock.advance(3.0)
    with pytest.raises(BackendUnavailable, match="lost"):
        await door.auth.token(token.encode())
    await door.keys.load(kept)
    door.clock.advance(0.25)  # an absence is not remembered for long
    assert (await door.auth.token(token.encode())).key_id == key.public_id

    door.broker.flush()
    door.clock.advance(3.0)
    with pytest.raises(BackendUnavailable):
        await door.auth.token(token.encode())
    door.clock.advance(60.0)
    with pytest.raises(InvalidApiKey):
        await door.auth.token(token.encode())


async def test_a_key_that_was_deleted_is_not_taken_for_a_lost_one(door: Door) -> None:
    token, key = await door.keys.create(name="a")
    await door.auth.token(token.encode())
    await door.keys.forget(key.public_id)
    for _ in range(3):
        door.clock.advance(3.0)
        with pytest.raises(InvalidApiKey, match="not valid"):
            await door.auth.token(token.encode())


async def test_a_lost_key_helps_neither_a_guesser_nor_one_whose_key_was_revoked(door: Door) -> None:
    token, key = await door.keys.create(name="a")
    await door.auth.token(token.encode())
    await door.keys.revoke(key.public_id)
    door.clock.advance(3.0)
    with pytest.raises(InvalidApiKey, match="revoked"):
        await door.auth.token(token.encode())
    chosen = await door.keys.adopt("sk-mine-and-nobody-else-s", name="b")
    await door.auth.token(b"sk-mine-and-nobody-else-s")
    door.broker.flush()
    door.clock.advance(3.0)
    with pytest.raises(InvalidApiKey, match="revoked"):
        await door.auth.token(token.encode())
    for wrong in (b"sk-mine-and-nobody-else-t", chosen.public_id.encode()):
        with pytest.raises(InvalidApiKey, match="not valid"):
            await door.auth.token(wrong)


async def test_a_scope_that_is_not_written_into_the_key_is_denied(door: Door) -> None:
    token, _ = await door.keys.create(name="a")
    caller = await door.auth.token(token.encode())
    door.auth.require(caller, "inference")
    with pytest.raises(PermissionDenied):
        door.auth.require(caller, "admin")


async def test_a_chosen_key_opens_like_a_made_one_and_can_be_taken_twice(door: Door) -> None:
    first = await door.keys.adopt("sk-test-123\n", name="mine")
    again = await door.keys.adopt("sk-test-123", name="mine")
    assert first.public_id == again.public_id
    caller = await door.auth.bearer("Bearer sk-test-123")
    assert caller.key_id == first.public_id
    for wrong in ("", "short", "has a space", "ümlaut-key"):
        with pytest.raises(ValueError, match="cannot be used"):
            await door.keys.adopt(wrong, name="x")


async def test_a_key_that_comes_along_is_taken_once_and_stays_revoked(door: Door) -> None:
    scopes = ("inference", "admin")
    assert await door.keys.adopt_unless_known("own-key-of-a-chart\n", name="initial", scopes=scopes)
    [key] = await door.keys.list()
    assert key.scopes == {"inference", "admin"}
    await door.keys.revoke(key.public_id)
    assert not await door.keys.adopt_unless_known("own-key-of-a-chart", name="initial")
    [key] = await door.keys.list()
    assert key.revoked_ms is not None
    with pytest.raises(ValueError, match="cannot be used"):
        await door.keys.adopt_unless_known("hr_no", name="initial")


async def test_keys_survive_the_loss_of_the_server_through_export_and_load(door: Door) -> None:
    token, key = await door.keys.create(name="a", scopes=("inference", "admin"))
    _, gone = await door.keys.create(name="b")
    await door.keys.revoke(gone.public_id)
    kept = await door.keys.export()
    assert token.encode() not in kept
    door.broker.flush()
    door.clock.advance(3.0)
    with pytest.raises(InvalidApiKey):
        await door.auth.token(token.encode())
    assert await door.keys.load(kept) == 2
    door.clock.advance(3.0)
    assert (await door.auth.token(token.encode())).scopes == {"inference", "admin"}
    assert {each.public_id: each.revoked_ms for each in await door.keys.list()} == {
        key.public_id: None,
        gone.public_id: key.created_ms,
    }


@pytest.mark.parametrize(
    "line",
    [
        *(b"{}", b"nonsense", b"[]", b"[" * 100_000),
        *(b'{"version": 2}', b'{"version": 1, "public_id": 5}'),
    ],
    ids=range(6),
)
async def test_a_damaged_export_is_refused_before_a_key_is_put(door: Door, line: bytes) -> None:
    _, _ = await door.keys.create(name="a")
    kept = await door.keys.export()
    door.broker.flush()
    with pytest.raises(ValueError, match="not an exported key"):
        await door.keys.load(kept + line)
    assert not await door.keys.list()


async def test_keys_that_make_no_sense_are_refused(door: Door) -> None:
    past = door.clock.wall_ms()
    with pytest.raises(ValueError, match="name"):
        await door.keys.create(name=" ")
    with pytest.raises(ValueError, match="scopes"):
        await door.keys.create(name="a", scopes=("root",))
    with pytest.raises(ValueError, match="band"):
        await door.keys.create(name="a", band=4)
    with pytest.raises(ValueError, match="expired"):
        await door.keys.create(name="a", expires_ms=past)
    with pytest.raises(ValueError, match="hundred years"):
        await door.keys.create(name="a", expires_ms=10**18)
    with pytest.raises(ValueError, match="max_concurrency"):
        await door.keys.create(name="a", max_concurrency=0)
    with pytest.raises(ValueError, match="tokens_per_minute"):
        await door.keys.create(name="a", tokens_per_minute=0)


@pytest.mark.parametrize("tenant", ["a b:{c}", "", "t" * (MAX_NAME + 1)])
async def test_a_tenant_that_may_not_enter_a_key_is_refused(door: Door, tenant: str) -> None:
    with pytest.raises(ValueError, match=f"a tenant must be 1 to {MAX_NAME} characters"):
        await door.keys.create(name="a", tenant=tenant)


async def test_what_was_revoked_after_an_export_stays_revoked_through_an_import(door: Door) -> None:
    token, key = await door.keys.create(name="a")
    kept = await door.keys.export()
    await door.keys.revoke(key.public_id)
    assert await door.keys.load(kept) == 1
    with pytest.raises(InvalidApiKey, match="revoked"):
        await door.auth.token(token.encode())


async def test_a_deleted_key_opens_nothing_and_no_import_brings_it_back(door: Door) -> None:
    token, key = await door.keys.create(name="a")
    kept = await door.keys.export()
    assert await door.keys.forget(key.public_id)
    assert not await door.keys.forget(key.public_id)
    assert await door.keys.load(kept) == 0
    assert await door.keys.list() == []
    with pytest.raises(InvalidApiKey):
        await door.auth.token(token.encode())


async def test_keys_are_listed_for_thirty_days_after_their_end(door: Door) -> None:
    day_ms = 86_400_000
    now_ms = door.clock.wall_ms()
    await door.keys.create(name="for ever")
    await door.keys.create(name="expires", expires_ms=now_ms + day_ms)
    _, revoked = await door.keys.create(name="revoked")
    await door.keys.revoke(revoked.public_id)
    door.clock.advance(30 * 86_400)
    assert await door.keys.forget_old() == 0
    door.clock.advance(1)
    assert await door.keys.forget_old() == 1
    assert {key.name for key in await door.keys.list()} == {"for ever", "expires"}
    door.clock.advance(86_400)
    assert await door.keys.forget_old() == 1
    assert [key.name for key in await door.keys.list()] == ["for ever"]


async def test_what_takes_no_pepper_works_without_one(door: Door) -> None:
    _, key = await door.keys.create(name="a")
    keys = KeyStore(door.wire, None, door.clock)
    kept = await keys.export()
    assert await keys.revoke(key.public_id)
    assert await keys.load(kept) == 1
    with pytest.raises(ValueError, match="pepper"):
        await keys.create(name="b")


async def test_a_flood_of_unknown_keys_does_not_fill_the_memory(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_gateway.auth.keys.CACHE_ENTRIES", 10)
    for number in range(50):
        with pytest.raises(InvalidApiKey):
            await door.auth.token(f"sk-guess-{number}".encode())
    assert len(door.auth._known) <= 10  # pyright: ignore[reportPrivateUsage]


class Damaging(MemoryGatewayWire):
    """Has one key that cannot be read."""

    bad = ""

    async def api_key(self, public_id: str) -> ApiKey | None:
        if public_id == self.bad:
            raise CommandFailed(f"the API key {public_id} cannot be read")
        return await super().api_key(public_id)


async def test_a_damaged_key_opens_nothing_and_is_told_once() -> None:
    broker, clock = MemoryBroker(), FakeClock()
    wire = Damaging(broker)
    keys = KeyStore(wire, PEPPER, clock)
    auth = Authenticator(wire, PEPPER, clock, cache_s=0)
    token, key = await keys.create(name="a")
    with capture_logs() as said:
        assert (await auth.token(token.encode())).key_id == key.public_id
        wire.bad = key.public_id
        clock.advance(1)
        with pytest.raises(BackendUnavailable, match="may come back"):  # as one that got lost
            await auth.token(token.encode())
        fresh = Authenticator(wire, PEPPER, clock, cache_s=0)
        with pytest.raises(InvalidApiKey):
            await fresh.token(token.encode())
        assert not await keys.adopt_unless_known(token, name="first")
    assert [each["event"] for each in said] == ["wire.damaged_record"]
    wire.bad = ""
    assert [each.name for each in await keys.list()] == ["a"]
