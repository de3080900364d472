"""A scheduler's state between two passes, put into a fresh scheduler.

Owner    a replay
Writes   the fresh scheduler
Never    holds token ids
Rules    journal.snapshot-is-whole
Next     headrace_engine.scheduler.journal_replay
"""

# One of two modules that look into the parts of a scheduler, so that they need no second interface.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from headrace_contracts.codes import FinishReason
from headrace_contracts.prefix_key import PrefixKey
from numpy.typing import NDArray

from headrace_engine.cache.block import (
    UNHELD,
    CacheBlock,
    HeldRun,
    LogicalBlock,
    SequenceBlocks,
    Sibling,
    as_bytes,
)
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.cache.trie import RootIdentity
from headrace_engine.memory.objects import Allocation
from headrace_engine.scheduler.journal import Arrival, State
from headrace_engine.scheduler.order import Tenant
from headrace_engine.state.request import (
    FINGERPRINT_BYTES,
    MediaSpan,
    Request,
    RequestHandle,
    Sampling,
)
from headrace_engine.state.sequence import Sequence, Status

if TYPE_CHECKING:  # the scheduler imports what takes its state, and that imports this
    from headrace_engine.scheduler.scheduler import Scheduler

COLUMNS = ("base", "capacity", "charged", "choice", "handle", "inflight", "known", "limit", "live",
            "logprobs", "planned", "prompt", "sampled")  # fmt: skip
FIELDS = ("slot", "filled", "reached", "trusted", "first_pass_s", "preemptions")

_FINGERPRINT = b"\1" * FINGERPRINT_BYTES
"""Of every media item in a replay: tokens that stand in tell blocks apart."""

KeyContent = Callable[[PrefixKey], NDArray[np.int32]]
"""Tokens that stand for the block with this key: equal for equal keys only."""
Contents = Callable[[int], NDArray[np.int32]]
"""Tokens that stand for those of a sequence, as far as it ever gets."""


def make_sequence(arrival: Arrival, content: NDArray[np.int32]) -> Sequence:
    """A sequence with stand-ins for its tokens."""
    request = Request(
        id=arrival.id,
        handle=RequestHandle(arrival.number),
        prompt=content[: arrival.prompt_tokens],
        sampling=Sampling(max_new_tokens=max(1, arrival.limit - arrival.prompt_tokens)),
        tenant=arrival.tenant,
        band=arrival.band,
        cache_salt=bytes.fromhex(arrival.salt),
        deadline_s=arrival.deadline_s,
        media=tuple(
            MediaSpan(first, end, _FINGERPRINT if known else b"")
            for first, end, known in arrival.media
        ),
    )
    return Sequence(
        request=request,
        choice=arrival.choice,
        number=arrival.number,
        tokens=content[: arrival.length].copy(),
        length=arrival.length,
        prompt_tokens=arrival.prompt_tokens,
        limit=arrival.limit,
        limit_message="",
        arrived_s=arrival.arrived_s,
    )


def restore(
    scheduler: Scheduler, state: State, key_content: KeyContent, contents: Contents
) -> None:
    """Puts a captured state into a scheduler that has done nothing.

    Raises ``KeyError``, ``IndexError``, ``TypeError``, ``ValueError`` or ``AssertionError`` when
    the state is none.
    """
    scheduler.passes = state["passes"]
    if scheduler.pace is not None:
        scheduler.pace.restore(state["pace"])
    _restore_sequences(scheduler, state, contents)
    _restore_blocks(scheduler, state, key_content)
    _restore_lists(scheduler, state)
    residents, columns = scheduler.residents, scheduler.residents.columns
    for name, values in state["columns"].items():
        getattr(columns, name)[:] = values
    for sequence in residents.sequences.values():
        if sequence.slot is not None:
            base, known = int(columns.base[sequence.slot]), int(columns.known[sequence.slot])
            content = contents(sequence.number)[base:known]
            columns.recent[sequence.slot, : len(content)] = content


def _restore_sequences(scheduler: Scheduler, state: State, contents: Contents) -> None:
    residents, order = scheduler.residents, scheduler.residents.order
    for name, counter, at, count in state["tenants"]:
        weight = scheduler.settings.tenant_weights.get(name, 1.0)
        tenant = order._tenants[name] = Tenant(name, weight, counter, at, count)
        if count:
            order.watch(tenant)
    order.arrived = state.get("arrived", False)
    for fields in state["sequences"]:
        arrival = Arrival(**fields["arrival"])
        sequence = make_sequence(arrival, contents(arrival.number))
        sequence.status = Status(fields["status"])
        if fields["end"] is not None:
            sequence.end_reason = FinishReason[fields["end"]]
        for name in FIELDS:
            setattr(sequence, name, fields[name])
        if fields["raised"] is not None:
            order._bands[sequence.number] = fields["raised"]
        residents.sequences[sequence.number] = sequence
        if sequence.slot is not None:
            residents.by_slot[sequence.slot] = sequence
            residents.running[sequence.slot] = sequence.status is Status.RUNNING
        if sequence.status is Status.RUNNING:
            band = order.band(sequence)
            residents.bands[band] = residents.bands.get(band, 0) + 1
        if sequence.status is Status.WAITING:
            residents.waiting.add(sequence)
        if sequence.status in (Status.WAITING, Status.PAUSED):
            residents.reasons.enter(sequence.number, sequence.arrived_s)


def _restore_blocks(scheduler: Scheduler, state: State, key_content: KeyContent) -> None:
    pool, residents, trie = scheduler.pool, scheduler.residents, scheduler.pool.trie
    version, kv_dtype = residents._model
    roots = [
        trie.root(RootIdentity(version, kv_dtype, tenant, "", bytes.fromhex(salt)))
        for tenant, salt in state["roots"]
    ]
    blocks: list[LogicalBlock] = []
    numbers: dict[LogicalBlock, list[int]] = {}

    def at(place: int) -> LogicalBlock:
        return blocks[place] if place >= 0 else roots[-1 - place]

    for i, row in enumerate(state["blocks"]):
        (
            offset,
            key,
            parent,
            valid,
            publisher,
            address,
            held_by,
            maker,
            offered,
            written,
            made_of,
            places,
        ) = row
        block = LogicalBlock(offset, pool.block_tokens)
        block.slot = CacheBlock(pool.block_type, block)
        block.maker = maker
        pool.alive += 1
        blocks.append(block)
        marks = tuple(bytes.fromhex(place) + _FINGERPRINT for place in places)
        if offered:
            trie.offer(block, at(parent), bytes(4 * offered), marks)
        elif parent is not None:
            tokens = as_bytes(key_content(PrefixKey(bytes.fromhex(key))))
            inserted = trie.insert(block, at(parent), tokens, marks)
            assert inserted, "a block stands twice"
        if address >= 0:
            # Keys of allocations are no part of a decision; below zero they meet no new one.
            _attach(pool, block, -1 - i, (address,))
        block.valid, block.publisher, block.written = valid, publisher, written
        block.origins = frozenset(made_of)
        numbers[block] = held_by
    holders = {row[0]: _restore_holder(pool, row, blocks, at) for row in state["holders"]}
    residents.holders.update(holders)
    for holder in holders.values():
        _restore_runs(holder, holders, numbers)
    states = [
        _restore_state(pool, i, row, blocks, holders) for i, row in enumerate(state["states"])
    ]
    unheld: list[int] = state["unheld"]
    for i in unheld:
        slot = (blocks[i] if i >= 0 else states[-1 - i]).slot
        assert slot is not None
        if slot.listed:  # a checkpoint, when it was attached
            pool.slots.sorted.remove(slot)
        pool.slots.sorted.add(slot)


def _restore_holder(
    pool: LogicalBlockPool,
    row: list[Any],
    blocks: list[LogicalBlock],
    at: Callable[[int], LogicalBlock],
) -> SequenceBlocks:
    number, root, chain, chained, held, eligible, sibling, checkpointed, made_of = row
    holder = pool.enter(number, at(root))
    if sibling is not None:
        place, common = sibling
        holder.sibling = Sibling(at(place), common)
    holder.checkpointed, holder.origins = checkpointed, dict(made_of)
    holder.chain = None if chain is None else at(chain)
    holder.chained, holder.eligible = chained, eligible
    holder.blocks = [blocks[i] for i in held]
    return holder


def _restore_runs(
    holder: SequenceBlocks,
    holders: dict[int, SequenceBlocks],
    numbers: dict[LogicalBlock, list[int]],
) -> None:
    """``numbers`` are those of each block's holders, in order."""
    run = UNHELD
    for index, block in enumerate(holder.blocks):
        if block.run is UNHELD:
            if not index or len(numbers[block]) < len(run.holders):
                run = HeldRun({holders[n]: None for n in numbers[block]}, index, index)
            run.end = index + 1
            block.run = run
        run = block.run


def _restore_state(
    pool: LogicalBlockPool,
    index: int,
    row: list[Any],
    blocks: list[LogicalBlock],
    holders: dict[int, SequenceBlocks],
) -> LogicalBlock:
    place: int | None = row[1]
    position, _, numbers, addresses, valid, publisher, made_of = row
    if place is None:
        (number,) = numbers
        state = holders[number].frontier
        assert state is not None, "a state of a model that has none"
        state.offset = position
    else:
        state = pool.make_checkpoint(position)
    if addresses:
        _attach(pool, state, -1 - len(blocks) - index, tuple(addresses))
    if place is not None:
        pool.attach_state(blocks[place], state)
    state.valid, state.publisher, state.origins = valid, publisher, frozenset(made_of)
    return state


def _attach(
    pool: LogicalBlockPool, block: LogicalBlock, key: int, addresses: tuple[int, ...]
) -> None:
    assert block.slot is not None
    allocation = Allocation(key, block.slot.type, addresses)
    pool.slots.objects.claim(allocation)
    pool.slots.attach(block.slot, allocation)
    block.refs += 1


def _restore_lists(scheduler: Scheduler, state: State) -> None:
    residents = scheduler.residents
    residents.prefilling = {n: residents.sequences[n] for n in state["prefilling"]}
    residents.paused = [residents.sequences[n] for n in state["paused"]]
    residents.retiring = [residents.sequences[n] for n in state["retiring"]]
    residents._free_slots = list(state["free_slots"])
    residents._decoding = dict.fromkeys(state["decoding"])
    residents._decoding_array = None
