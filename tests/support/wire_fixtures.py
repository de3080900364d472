"""A deployment that says everything that one says through its server, and readers of all of it.

``play`` writes, ``observe`` tells what gateways and engines of this version read, on the same server
or on one where what an earlier version wrote was loaded (``support.server_dump``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from typing import Any, Final, cast

from google.protobuf.message import Message
from headrace_contracts import keys
from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import INLINE_RECORD_BYTES, WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import (
    CancelMark,
    Frame,
    LogEntry,
    ModelCard,
    RequestRecord,
    RowFinish,
    RowLogprobs,
    RowStart,
    Sampling,
    Usage,
)
from headrace_contracts.prefix_key import fold, root_key
from headrace_gateway.auth import tokens
from headrace_gateway.inference.once import once_key
from headrace_gateway.inference.resume import EdgeNote
from headrace_transport.connection import connect_engine, connect_gateway
from headrace_transport.interface import FIRST_FRAME, ApiKey, EngineInfo, Rates, Wait
from support.server_dump import OPTIONS, text_of, undated
from support.wire_messages import value_of

Json = dict[str, Any]

MODEL: Final = "org/model-1"
GATEWAY: Final = "gateway-1.a"
OTHER_GATEWAY: Final = "gateway-2.b"
ENGINE: Final = "engine-1.a"
SUCCESSOR: Final = "engine-2.b"
LEASE_MS: Final = 600_000
PEPPER: Final = b"pepper of the fixtures"
OWN_KEY: Final = b"a-key-that-its-owner-chose"
FORGOTTEN: Final = "abcdefghijkl"
FILE: Final = b"a file of a tokenizer"


def digests() -> Json:
    """What is hashed alike by everybody: prefixes of prompts, keys, and what is stored of keys."""
    root = root_key(
        weights_version="weights-1", kv_dtype="bfloat16", tenant="acme", adapter="", salt=b"salt"
    )
    ids = b"".join(token.to_bytes(4, "little") for token in range(16))
    own = tokens.parse_token(OWN_KEY, PEPPER)
    made = tokens.parse_token(MADE_KEY, PEPPER)
    assert own is not None
    assert made is not None
    return {
        "prefix root": root.hex(),
        "prefix of a block": fold(root, ids).hex(),
        "prefix of a block with an image": fold(root, ids, [b"fingerprint"]).hex(),
        "idempotency key": plain(once_key("Idempotency-Key", b"body")),
        "own key": {"public_id": own.public_id, "digest": tokens.digest(own, PEPPER).hex()},
        "made key": {"public_id": made.public_id, "digest": tokens.digest(made, PEPPER).hex()},
    }


MADE_KEY: Final = b"hr_0123456789ab_" + b"0" * 40 + b"abc" + b"14lRIP"


def _record(name: str, **fields: Any) -> RequestRecord:
    made = RequestRecord(
        version=WIRE_VERSION,
        id=name,
        model=MODEL,
        gateway=GATEWAY,
        slot=7,
        tenant="acme",
        band=keys.DEFAULT_BAND,
        key_id="0123456789ab",
        prompt=[1, 2, 3, 70_000],
        n=1,
        sampling=Sampling(max_new_tokens=8, temperature=0.5, top_p=1, repetition_penalty=1, seed=9),
        submitted_ms=7,
        cache_salt=b"salt",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        edge=EdgeNote("chat", 1, ("stop",), (2,), 0, False, 1).encode(),
    )
    for field, value in fields.items():
        if field == "prompt":
            made.prompt[:] = value
        else:
            setattr(made, field, value)
    return made


def _card() -> ModelCard:
    return ModelCard(
        version=WIRE_VERSION,
        model=MODEL,
        created=1_800_000,
        context_tokens=4096,
        block_tokens=16,
        vocabulary=70_001,
        weights_version="weights-1",
        chat_template="{{ messages }}",
        files={"tokenizer.json": f"sha256:{sha256(FILE).hexdigest()}"},
        end_token_ids=[2],
        begin_token_id=1,
        add_begin_token=True,
        special_tokens={"eos_token": "</s>"},
        pool_tokens=10_000,
        architecture="llama",
        dtype="bfloat16",
        temperature=0.6,
        top_p=0.9,
        top_k=40,
    )


def _api_keys() -> list[ApiKey]:
    found = digests()
    common: Json = {"scopes": frozenset({"admin", "inference"}), "created_ms": 5, "band": 1}
    return [
        ApiKey(
            public_id=found["made key"]["public_id"],
            digest=bytes.fromhex(found["made key"]["digest"]),
            name="with everything",
            tenant="acme",
            models=frozenset({MODEL, "other"}),
            expires_ms=6,
            revoked_ms=7,
            max_concurrency=8,
            requests_per_minute=9,
            tokens_per_minute=10,
            **common,
        ),
        ApiKey(
            public_id=found["own key"]["public_id"],
            digest=bytes.fromhex(found["own key"]["digest"]),
            name="with little",
            tenant="default",
            models=frozenset(),
            expires_ms=None,
            revoked_ms=None,
            **common,
        ),
    ]


async def play(url: str) -> None:
    """Says through an empty server all that a deployment says.

    Afterwards ``queued`` and ``large`` wait, ``left`` waits for a successor of its engine,
    ``running`` runs with two choices and everything that may happen to it, ``over`` has ended.
    """
    gateway = await connect_gateway(url, options=OPTIONS)
    engine = await connect_engine(url, options=OPTIONS)
    info = EngineInfo(ENGINE, MODEL, "ready", 2, 1, 90, 100, {"running": Wait("blocks", 3)})
    for name in (GATEWAY, OTHER_GATEWAY):
        await gateway.beat_gateway(name, ttl_ms=LEASE_MS)
    await engine.beat_engine(info, ttl_ms=LEASE_MS)
    await engine.put_blob(FILE)
    await engine.put_card(_card())
    await engine.put_weights(MODEL, {"acme": 2.5})
    for key in _api_keys():
        await gateway.put_api_key(key)
    await gateway.put_api_key(replace(_api_keys()[1], public_id=FORGOTTEN))
    await gateway.forget_api_key(FORGOTTEN)
    await gateway.take_sweep(GATEWAY, ttl_ms=LEASE_MS)
    rates = Rates(requests=600, tokens=60_000)
    # Nearly all of a minute's: what is left of it lapses when it is full again.
    await gateway.take_rate("acme", "0123456789ab", rates, requests=599, tokens=59_000, must=True)
    once = once_key("Idempotency-Key", b"body")
    bound = f"over {once.body} kept"
    await gateway.bind_once("acme", "0123456789ab", once.name, bound, ttl_ms=LEASE_MS)

    async def begin(record: RequestRecord, credit: int = 1) -> None:
        await gateway.submit(record, max_queued=100)
        [claimed] = await engine.claim(MODEL, ENGINE, credit=credit, lease_ms=LEASE_MS)
        assert claimed.record.id == record.id

    def frame(slot: int, ids: Sequence[int], **more: Any) -> Frame:
        return Frame(
            version=WIRE_VERSION,
            engine=ENGINE,
            pass_id=3,
            slots=[slot],
            attempts=[1],
            firsts=[0],
            counts=[len(ids)],
            tokens=ids,
            logged=[0],
            **more,
        )

    def entry(ids: Sequence[int], frame_id: str = "", **more: Any) -> LogEntry:
        return LogEntry(
            version=WIRE_VERSION,
            attempt=1,
            choices=[0],
            firsts=[0],
            counts=[len(ids)],
            tokens=ids,
            frame_id=frame_id,
            prompt_tokens=4,
            **more,
        )

    usage = Usage(prompt_tokens=4, completion_tokens=2, cached_tokens=1, decode_us=5)
    end = RowFinish(row=0, reason="FINISH_REASON_STOP", usage=usage)
    logprobs = RowLogprobs(
        row=0, width=1, chosen=[-0.5, -0.25], top_ids=[5, 6], top_values=[-0.5, -0.125]
    )

    # Its tenant is seen to have nothing more: the engine asked for two.
    await begin(_record("past", slot=0, tenant="quiet", band=2), credit=2)
    await engine.finish(
        *(MODEL, ENGINE, "past", 1),
        entry=LogEntry(),
        reason=FinishReason.LENGTH,
        usage=Usage(completion_tokens=3),
    )

    await begin(_record("over", slot=1))
    await engine.publish({GATEWAY: frame(1, [5, 6], finishes=[end], logprobs=[logprobs])})
    await engine.finish(
        *(MODEL, ENGINE, "over", 1),
        entry=entry([5, 6], finishes=[end], logprobs=[logprobs]),
        reason=FinishReason.STOP,
        usage=usage,
    )

    await begin(_record("left", slot=2))
    start = RowStart(row=0, prompt_tokens=4, cached_tokens=1, engine_queue_us=9)
    named = await engine.publish({GATEWAY: frame(2, [5, 6], starts=[start])})
    await engine.append_log(ENGINE, "left", 1, entry([5, 6], named[GATEWAY]))
    late = frame(2, [7])
    late.firsts[0] = 2
    await engine.publish({GATEWAY: late})
    await engine.release(MODEL, ENGINE, {"left": 1})
    # Taken up and left once more: a fence lies in the gateway's stream, an attempt has passed.
    [again] = await engine.claim(MODEL, ENGINE, credit=1, lease_ms=LEASE_MS)
    await engine.release(MODEL, ENGINE, {"left": again.attempt})

    [again] = await engine.claim(MODEL, ENGINE, credit=1, lease_ms=LEASE_MS)
    await begin(_record("running", slot=3, n=2))
    await engine.release(MODEL, ENGINE, {"left": again.attempt})
    await engine.append_log(ENGINE, "running", 1, entry([5]))
    mark = CancelMark(reason="FINISH_REASON_STOP", choice=1, at=3)
    await gateway.cancel(MODEL, "running", mark)
    await gateway.attach("running", OTHER_GATEWAY, 30, 1)
    await gateway.drain_engine(ENGINE, grace_ms=5000)

    await gateway.submit(_record("queued", slot=4, tenant="default", band=0), max_queued=100)
    long = [70_000] * (INLINE_RECORD_BYTES // 3 + 1)
    await gateway.submit(_record("large", slot=5, band=3, prompt=long), max_queued=100)
    for wire in (gateway, engine):
        await wire.close()


async def observe(url: str) -> Json:
    """What this version reads from a server where ``play`` was played, by whatever version."""
    gateway = await connect_gateway(url, options=OPTIONS)
    engine = await connect_engine(url, options=OPTIONS)
    seen: Json = {}
    seen["cards"] = [value_of(card) for card in await gateway.cards()]
    seen["file"] = await gateway.blob(sha256(FILE).hexdigest())
    seen["engines"] = await gateway.engines(MODEL)
    seen["keys"] = await gateway.api_keys()
    seen["live"] = sorted(await gateway.live_requests("acme", "0123456789ab", limit=9))
    rates = Rates(requests=600, tokens=60_000)
    left = await gateway.take_rate("acme", "0123456789ab", rates, requests=0, tokens=0, must=True)
    seen["requests of the minute are counted"] = left.requests_left < 600
    once = once_key("Idempotency-Key", b"body")
    place = ("acme", "0123456789ab", once.name)
    seen["bound"] = await gateway.bind_once(*place, "another", ttl_ms=LEASE_MS)
    seen["another may sweep"] = await gateway.take_sweep(OTHER_GATEWAY, ttl_ms=LEASE_MS)
    seen["depth"] = await gateway.queue_depth(MODEL)
    for name in ("over", "left", "running", "queued", "large"):
        state = await gateway.request_state(name)
        assert state is not None
        note = EdgeNote.decode(state.edge)
        seen[f"state of {name}"] = {**plain(state), "created_ms": 0, "edge": plain(note)}
        seen[f"log of {name}"] = [value_of(entry) for _, entry in await gateway.read_log(name)]
        if state.status != "finished":
            seen[f"standing of {name}"] = await gateway.standing(MODEL, name)
    for name in (GATEWAY, OTHER_GATEWAY):
        entries = await gateway.read_out(name, FIRST_FRAME, block_ms=1)
        seen[f"frames for {name}"] = [
            {type(each.item).__name__: value_of(each.item)} for each in entries if each.item
        ]
    control = await engine.read_control(ENGINE, "0-0", block_ms=1)
    seen["control"] = [value_of(entry) for _, entry in control if entry]
    renewed = await engine.renew(MODEL, ENGINE, {"running": 1}, lease_ms=LEASE_MS)
    seen["lost"] = list(renewed.lost)
    seen["marks"] = {
        request: [value_of(mark) for mark in marks] for request, marks in renewed.cancelled.items()
    }
    claimed = await engine.claim(MODEL, SUCCESSOR, credit=9, lease_ms=LEASE_MS)
    seen["claimed"] = {
        each.record.id: {
            "record": _short(value_of(each.record)),
            "attempt": each.attempt,
            "delivered": [list(ids) for ids in each.delivered],
            "crashes": each.crashes,
        }
        for each in claimed
    }
    settled = await engine.finish(
        *(MODEL, ENGINE, "running", 1),
        entry=LogEntry(version=WIRE_VERSION, attempt=1),
        reason=FinishReason.CANCELLED,
        usage=Usage(),
    )
    seen["its engine may end it"] = settled.ours
    refused = [*gateway.foreign.counts.values(), *engine.foreign.counts.values()]
    seen["records of another version"] = sum(refused)
    for wire in (gateway, engine):
        await wire.close()
    return cast("Json", json.loads(undated(json.dumps(plain(seen)).encode())))


def _short(record: Json) -> Json:
    """A long prompt is told by its length and digest."""
    prompt: list[int] = record["prompt"]
    if len(prompt) > 16:
        record["prompt"] = [len(prompt), sha256(repr(prompt).encode()).hexdigest()]
    return record


def plain(value: object) -> Any:
    """Data classes, sets and bytes as JSON has them."""
    match value:
        case Message():
            return value_of(value)
        case Mapping():
            pairs = cast("Mapping[object, object]", value)
            return {str(key): plain(each) for key, each in pairs.items()}
        case set() | frozenset():
            return sorted(plain(each) for each in cast("frozenset[object]", value))
        case list() | tuple():
            return [plain(each) for each in cast("list[object]", value)]
        case bytes():
            return text_of(value)
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value
