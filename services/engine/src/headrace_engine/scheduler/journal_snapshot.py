"""Taking a scheduler's state for the journal, over as many passes as it takes.

Owner    engine thread; what was taken may be read by any
Writes   nothing of the scheduler; ``PrefixTrie.changes`` while it lasts
Never    holds up a pass for all blocks at once; holds token ids
Rules    journal.snapshot-is-whole
Next     headrace_engine.scheduler.journal_state

Blocks are looked at a few in each pass. What changes meanwhile is looked at again in the next one, so that
what was seen is never more than a pass behind; and at the end, between two passes, not at all.
"""

# As in journal_state, this looks into the parts of a scheduler, so that they need no second interface.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from numpy.typing import NDArray

from headrace_engine.cache.block import CacheBlock, LogicalBlock, SequenceBlocks, Sibling
from headrace_engine.cache.changes import Changes
from headrace_engine.cache.trie import RootIdentity
from headrace_engine.scheduler.commit import PassPlan
from headrace_engine.scheduler.grant import MemoryOp
from headrace_engine.scheduler.journal import (
    ARRIVAL_FIELDS,
    Arrival,
    Making,
    Part,
    State,
    made,
    make_arrival,
    salt_digest,
)
from headrace_engine.scheduler.journal_state import COLUMNS, FIELDS

if TYPE_CHECKING:  # the scheduler itself hands ``Taking`` to its journal
    from headrace_engine.scheduler.scheduler import Scheduler

Fields = tuple[Any, ...]
"""Of a block, as ``_BLOCK`` reads them."""

T = TypeVar("T")

_PART: Final = 200
"""Things in one step of making a state: less than 200 us."""

_BLOCK = attrgetter("key", "parent", "valid", "publisher", "slot.allocation", "offered", "written",
                    "origins", "fingerprints")  # fmt: skip
_HOLDER = attrgetter("number", "root", "chain", "chained", "eligible", "sibling", "checkpointed")
_KEY, _OFFERED = 0, 5
_ARRIVAL = attrgetter(*ARRIVAL_FIELDS)
_SEQUENCE = attrgetter("status", "end_reason", *FIELDS)


class Taking:
    """Begins between two passes; ``finish`` is called between two later ones, or the same.

    Invariants
        a block that changed since it was seen is in ``_changes.touched``, or in this pass's plan
    """

    __slots__ = ("_before", "_changes", "_fields", "_nodes", "_scheduler", "_since")

    def __init__(self, scheduler: Scheduler) -> None:
        trie = scheduler.pool.trie
        self._scheduler = scheduler
        self._before = trie.nodes()
        self._nodes = len(self._before)
        self._before += trie.offered
        self._fields: list[Fields] = []
        """Of those before it began, as far as they were seen."""
        self._since: dict[LogicalBlock, Fields] = {}
        """Of those that changed since, as they were when they were seen again."""
        assert trie.changes is None, "two at once"
        self._changes = trie.changes = Changes()

    def advance(self, blocks: int) -> bool:
        """Looks at what changed, and at so many more. True: all were seen."""
        self._look_again()
        seen = len(self._fields)
        self._fields += map(_BLOCK, self._before[seen : seen + blocks])
        return len(self._fields) == len(self._before)

    def planned(self, plan: PassPlan, ops: Many[MemoryOp]) -> None:
        """A pass has its effects: these blocks got memory, lost it, or are written."""
        touched = self._changes.touched
        for op in ops:
            touched[op.block] = None
        size, holders = self._scheduler.settings.block_tokens, self._scheduler.residents.holders
        for chunk in plan.chunks:
            held = holders[chunk.sequence.number].blocks
            touched.update(dict.fromkeys(held[chunk.begin // size : -(-chunk.end // size)]))

    def finish(self) -> Snapshot:
        """Everything that a later decision may depend on. All blocks were seen."""
        scheduler = self._scheduler
        pool, residents = scheduler.pool, scheduler.residents
        self._look_again()
        assert len(self._fields) == len(self._before)
        pool.trie.changes = None
        holders, sequences = list(residents.holders.values()), list(residents.sequences.values())
        private = {
            block: _BLOCK(block)
            for holder in holders
            for block in holder.blocks[holder.chained :]
            if not block.indexed and not block.offered
        }
        return Snapshot(
            passes=scheduler.passes,
            pace=None if scheduler.pace is None else scheduler.pace.state(),
            before=self._before,
            nodes=self._nodes,
            fields=self._fields,
            since=self._since,
            placed=self._changes.placed,
            private=private,
            states=[]
            if pool.state_type is None
            else _states([*pool.trie.nodes(), *pool.trie.offered, *private], holders),
            unheld=list(pool.slots.sorted),
            holders=list(map(_HOLDER, holders)),
            origins=[sorted(holder.origins.items()) for holder in holders],
            held=[holder.blocks.copy() for holder in holders],
            roots=pool.trie._identities.copy(),
            arrivals=list(map(_ARRIVAL, sequences)),
            moves=list(map(_SEQUENCE, sequences)),
            raised=residents.order._bands.copy(),
            lists={
                "prefilling": list(residents.prefilling),
                "paused": [s.number for s in residents.paused],
                "retiring": [s.number for s in residents.retiring],
                "free_slots": list(residents._free_slots),
                "decoding": list(residents._decoding),
            },
            columns={name: getattr(residents.columns, name).copy() for name in COLUMNS},
            tenants=[
                [t.name, t.counter, t.place, t.sequences] for t in residents.order._tenants.values()
            ],
            arrived=residents.order.arrived,
        )

    def _look_again(self) -> None:
        touched = self._changes.touched
        self._since.update(zip(touched, map(_BLOCK, touched), strict=True))
        touched.clear()


def capture(scheduler: Scheduler) -> State:
    """A scheduler's state at once."""
    taking = Taking(scheduler)
    taking.advance(1 << 62)
    return taking.finish().state()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A scheduler between two passes: what may change later is copied, the rest referred to.

    It is made into a state when somebody reads it.
    """

    passes: int
    pace: list[float | None] | None
    before: list[LogicalBlock]
    """Blocks that the trie knew when the taking began: nodes, then offered ones."""
    nodes: int
    """How many of them were nodes."""
    fields: list[Fields]
    """Of each of them."""
    since: dict[LogicalBlock, Fields]
    """Of those that changed since; they go before ``fields``."""
    placed: dict[LogicalBlock, None]
    """Those that came into the trie since, in that order."""
    private: dict[LogicalBlock, Fields]
    """Those that the trie does not know."""
    states: list[tuple[LogicalBlock, list[Any]]]
    """Recurrent ones: which, and [position, block, holders, addresses, valid, publisher, origins]."""
    unheld: list[CacheBlock]
    holders: list[tuple[Any, ...]]
    """See ``_HOLDER``."""
    origins: list[list[tuple[int, int]]]
    """Of each holder."""
    held: list[list[LogicalBlock]]
    """Blocks of each holder."""
    roots: dict[LogicalBlock, RootIdentity]
    arrivals: list[tuple[Any, ...]]
    """Of each sequence, see ``ARRIVAL_FIELDS``. Not the sequence: its token ids end with it."""
    moves: list[tuple[Any, ...]]
    """Of each sequence, see ``_SEQUENCE``."""
    raised: dict[int, int]
    lists: dict[str, list[int]]
    columns: dict[str, NDArray[Any]]
    tenants: list[list[Any]]
    arrived: bool

    def parts(self) -> list[Part]:
        """Whatever of it may be large."""
        many = [self.before, self.fields, self.unheld, self.arrivals, self.moves, *self.held]
        return [*many, self.since, self.placed, self.private]

    def state(self) -> State:
        """As JSON has it. May be asked of any thread: nothing of it changes any more."""
        return made(self.making())

    def making(self) -> Making:
        """As ``state``, a little with each step."""
        blocks = yield from self._blocks()
        at: dict[LogicalBlock, int] = {}
        for part in _parts(enumerate(blocks)):
            at.update((block, place) for place, block in part)
            yield
        roots: dict[LogicalBlock, int] = {}

        def place(block: LogicalBlock | None) -> int | None:
            if block is None:
                return None
            return at[block] if block.capacity else -1 - roots.setdefault(block, len(roots))

        numbers: dict[LogicalBlock, list[int]] = {}
        # One holds a block from its admission on, so that all stand in the order of admission.
        pairs = zip(self.holders, self.held, strict=True)
        for part in _parts((holder[0], block) for holder, held in pairs for block in held):
            for number, block in part:
                numbers.setdefault(block, []).append(number)
            yield
        rows: list[list[Any]] = []
        for part in _parts(blocks.items()):
            rows += [
                [block.offset, None if key is None else key.hex(), place(parent), valid, publisher,
                 -1 if allocation is None else allocation.addresses[0], numbers.get(block, []),
                 block.maker, offered, written, sorted(origins),
                 [mark[:8].hex() for mark in fingerprints]]
                for block, (key, parent, valid, publisher, allocation, offered, written, origins,
                            fingerprints)
                in part
            ]  # fmt: skip
            yield
        states = {state: index for index, (state, _) in enumerate(self.states)}
        unheld: list[int] = []
        for part in _parts(self.unheld):
            unheld += [
                at[owner] if (owner := slot.owner).capacity else -1 - states[owner] for slot in part
            ]
            yield
        holders: list[list[Any]] = []
        for part in _parts(zip(self.holders, self.origins, self.held, strict=True), 5):
            holders += [
                [number, place(root), place(chained_to), chained, [at[block] for block in held],
                 eligible, _sibling(at, sibling), checkpointed, origins]
                for (number, root, chained_to, chained, eligible, sibling, checkpointed), origins,
                    held
                in part
            ]  # fmt: skip
            yield
        sequences: list[dict[str, Any]] = []
        for part in _parts(zip(self.arrivals, self.moves, strict=True), 20):
            sequences += [_sequence(make_arrival(*a), moves, self.raised) for a, moves in part]
            yield
        return {
            "passes": self.passes,
            "pace": self.pace,
            "blocks": rows,
            "states": [
                [position, place(block), *rest] for _, (position, block, *rest) in self.states
            ],
            "unheld": unheld,
            "holders": holders,
            "roots": [
                [i.tenant, salt_digest(i.salt)] for i in (self.roots[root] for root in roots)
            ],
            "sequences": sequences,
            # Copies: the caller may do with the state as it likes, and another may be made.
            **{name: list(values) for name, values in self.lists.items()},
            "columns": {name: column.tolist() for name, column in self.columns.items()},
            "tenants": list(self.tenants),
            "arrived": self.arrived,
        }

    def _blocks(self) -> Generator[None, None, dict[LogicalBlock, Fields]]:
        """All there are, those that the trie knows in its order first."""
        fields: dict[LogicalBlock, Fields] = {}
        before = zip(self.before, self.fields, strict=True)
        for part in _parts(chain(before, self.since.items(), self.private.items())):
            fields.update(part)
            yield
        blocks: dict[LogicalBlock, Fields] = {}
        stayed, came = self.before, self.placed
        for candidates, known, leaves in (
            (islice(stayed, self.nodes), _KEY, came),
            (came, _KEY, ()),
            (islice(stayed, self.nodes, None), _OFFERED, came),
            (came, _OFFERED, ()),
        ):
            for part in _parts(candidates):
                blocks.update((b, fields[b]) for b in part if b not in leaves and fields[b][known])
                yield
        for part in _parts(self.private):
            blocks.update((b, fields[b]) for b in part)
            yield
        return blocks


def _parts(things: Iterable[T], size: int = _PART) -> Iterator[list[T]]:
    rest = iter(things)
    while part := list(islice(rest, size)):
        yield part


def _states(
    blocks: Iterable[LogicalBlock], holders: Iterable[SequenceBlocks]
) -> list[tuple[LogicalBlock, list[Any]]]:
    fronts = [holder.frontier for holder in holders if holder.frontier is not None]
    kept = [state for block in blocks if block.states for state in block.states]
    return [
        (
            state,
            [
                state.offset,
                state.parent,
                [holder.number for holder in state.holders],
                [] if (s := state.slot) is None or s.allocation is None else s.allocation.addresses,
                state.valid,
                state.publisher,
                sorted(state.origins),
            ],
        )
        for state in (*fronts, *kept)
    ]


def _sibling(blocks: dict[LogicalBlock, int], sibling: Sibling | None) -> list[int] | None:
    """None also where the source is gone: it never comes back."""
    if sibling is None or sibling.source not in blocks:
        return None
    return [blocks[sibling.source], sibling.common]


def _sequence(arrival: Arrival, moves: tuple[Any, ...], raised: dict[int, int]) -> dict[str, Any]:
    status, end, *fields = moves
    return {
        "arrival": {name: getattr(arrival, name) for name in Arrival.__slots__},
        "status": status.value,
        "raised": raised.get(arrival.number),
        "end": None if end is None else end.name,
        **dict(zip(FIELDS, fields, strict=True)),
    }
