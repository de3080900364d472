"""The block system as one writes it first: lists, searched from end to end, and nothing clever.

Written from the contract (``services/engine/CONTRACT.md``), to be compared with the engine's. It has
no hash, no reference counts, no free lists and no undo log: what those stand for is counted again
each time somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace_engine.state.request import MediaSpan

Symbol = tuple[int, object]
"""A token, and what begins with it: None, or an image by its length and digest, or, for an image that
is equal to nothing, an object that is equal to nothing."""
Path = tuple[str, bytes, tuple[Symbol, ...]]
"""Tenant, salt, and every symbol from the beginning to a block's end: what a block's content is."""
Name = tuple[int, int]
"""Who made a block, and its place among that one's blocks."""


class Nameless:
    """An image without a fingerprint."""


def symbols(tokens: Sequence[int], media: Sequence[MediaSpan] = ()) -> list[Symbol]:
    """The tokens, each with what begins there."""
    marks: dict[int, object] = {
        span.first: (span.end - span.first, span.fingerprint)
        if any(span.fingerprint)
        else Nameless()
        for span in media
    }
    return [(token, marks.get(at)) for at, token in enumerate(tokens)]


@dataclass(eq=False)
class NaiveState:
    """A recurrent state: the live one of a sequence, or a copy kept with a block."""

    position: int
    """Tokens that it has seen."""
    holders: list[NaiveSequence]
    """Whose live state it is."""
    block: NaiveBlock | None = None
    """With which it is kept."""
    memory: bool = False
    valid: bool = False
    publisher: int = 0
    written: int = 0
    last_use: int = 0
    origins: frozenset[int] = frozenset()


@dataclass(eq=False)
class NaiveBlock:
    """Some token positions, perhaps with memory behind them."""

    index: int
    """Its place among the blocks of a sequence."""
    holders: list[NaiveSequence]
    maker: int
    path: Path | None = None
    """While others can find it whole."""
    offer: Path | None = None
    """While others can find its beginning: up to where."""
    written: int = 0
    """Of what it offers: tokens that committed passes computed."""
    memory: bool = False
    valid: bool = False
    publisher: int = 0
    last_use: int = 0
    """When the last holder left, or somebody copied from it."""
    origins: frozenset[int] = frozenset()
    """Whose content it was made of, by a copy."""
    states: list[NaiveState] = field(default_factory=list[NaiveState])
    """Kept with it."""


NaiveThing = NaiveBlock | NaiveState
"""What has memory."""


@dataclass(eq=False)
class NaiveSequence:
    """One choice of one request."""

    number: int
    handle: int
    choice: int
    tenant: str
    salt: bytes
    band: int
    """As it is now: who waits long goes up."""
    tokens: list[int]
    """Known to the host."""
    prompt: int
    """Tokens of the prompt."""
    limit: int
    stops: frozenset[int]
    min_new: int
    future: list[int]
    """What it says when it runs alone, from ``tokens`` on."""
    media: tuple[MediaSpan, ...] = ()
    asked_band: int = 0
    arrived_s: float = 0.0
    deadline_s: float | None = None
    status: str = "waiting"
    blocks: list[NaiveBlock] = field(default_factory=list[NaiveBlock])
    sibling: tuple[NaiveBlock, int] | None = None
    """A block that begins like its first block that is not shared, and for how many tokens."""
    origins: dict[int, int] = field(default_factory=dict[int, int])
    """Whose content it copied, and from where on it depends on that."""
    frontier: NaiveState | None = None
    """Its live state, where the model has one."""
    checkpointed: int = 0
    """Where the last state was kept on the way to where it is."""
    chain_open: bool = True
    """Whether its next full block may be indexed."""
    planned: int = 0
    sampled: int = 0
    charged: int = 0
    inflight: int = 0
    filled: int = 0
    trusted: int | None = None
    live: bool = True
    decodes: bool = False
    has_slot: bool = False

    @property
    def running(self) -> bool:
        """Whether it is scheduled."""
        return self.status == "running"

    def __post_init__(self) -> None:
        self._marks = [mark for _, mark in symbols(self.tokens[: self.prompt], self.media)]

    def symbols(self, begin: int, end: int) -> list[Symbol]:
        """Its content there, as far as it is known."""
        end = min(end, len(self.tokens))
        return [
            (self.tokens[at], self._marks[at] if at < self.prompt else None)
            for at in range(begin, end)
        ]

    def comparable(self, begin: int, end: int) -> list[Symbol]:
        """The same, up to the first image that is equal to nothing."""
        found: list[Symbol] = []
        for symbol in self.symbols(begin, end):
            if isinstance(symbol[1], Nameless):
                break
            found.append(symbol)
        return found

    def path(self, end: int) -> Path:
        """Content of its first so many tokens."""
        return self.tenant, self.salt, tuple(self.symbols(0, end))

    def shows_image(self, begin: int, end: int) -> bool:
        """Whether a token of an image lies there."""
        return any(at in range(begin, end) for s in self.media for at in range(s.first, s.end))


class NaiveBlocks:
    """Every block there is."""

    def __init__(
        self,
        total: int,
        size: int,
        *,
        prefix_cache: bool,
        colliding: bool,
        choose: Callable[[], tuple[Name, int] | None],
    ) -> None:
        """``colliding``: every content has the same key, so that only one block can be indexed.

        ``choose`` says which of several equally good siblings was taken.
        """
        self._choose = choose
        self.total = total
        self.size = size
        self._prefix_cache = prefix_cache
        self._colliding = colliding
        self.indexed: list[NaiveBlock] = []
        """In order of insertion."""
        self.offered: list[NaiveBlock] = []
        """Blocks that are not full, of which others may find the beginning."""
        self.sequences: list[NaiveSequence] = []
        """Whose blocks count."""
        self._clock = 0

    # what there is

    def everything(self) -> list[NaiveBlock]:
        """Each block once."""
        found = self.indexed + self.offered
        for sequence in self.sequences:
            found += [b for b in sequence.blocks if b not in found]
        return found

    @property
    def free(self) -> int:
        """Memory for so many blocks is nobody's."""
        return self.total - sum(each.memory for each in self.things())

    def things(self) -> list[NaiveThing]:
        """Blocks and states."""
        fronts = [s.frontier for s in self.sequences if s.frontier is not None]
        blocks = self.everything()
        return [*blocks, *fronts, *(state for block in blocks for state in block.states)]

    def cached(self) -> list[NaiveThing]:
        """Memory that nobody holds, the oldest first."""
        return sorted(
            (t for t in self.things() if t.memory and not t.holders), key=lambda t: t.last_use
        )

    def chained(self, sequence: NaiveSequence) -> int:
        """Leading blocks of it that others can find as its own."""
        count = 0
        for block in sequence.blocks:
            if block.path != sequence.path((count + 1) * self.size):
                break
            count += 1
        return count

    def find(self, path: Path) -> NaiveBlock | None:
        """The block with exactly this content."""
        for block in self.indexed:
            if block.path == path:
                return block
        return None

    def children(self, block: NaiveBlock) -> list[NaiveBlock]:
        """Blocks whose content is this one's, continued."""
        return [] if block.path is None else self.behind(block.path)

    def behind(self, path: Path) -> list[NaiveBlock]:
        """Blocks that go on where this content ends."""
        begin = len(path[2])
        found: list[NaiveBlock] = []
        for other in self.indexed + self.offered:
            tenant, salt, content = self._content(other)
            if other.index * self.size == begin and (tenant, salt, content[:begin]) == path:
                found.append(other)
        return found

    def _content(self, block: NaiveBlock) -> Path:
        content = block.path if block.path is not None else block.offer
        assert content is not None
        return content

    def refs(self, block: NaiveBlock) -> int:
        """Everything that keeps it."""
        return len(block.holders) + len(self.children(block)) + block.memory + len(block.states)

    # what happens

    def admit(self, sequence: NaiveSequence, *, offers_all: bool) -> None:
        """It shares what is known, and lets others find what is not; also its last block, which is
        not full, if it ``offers_all`` or an image lies there."""
        if not self._prefix_cache:
            sequence.chain_open = False
        full = len(sequence.tokens) // self.size
        if sequence.chain_open:
            while len(sequence.blocks) < full:
                known = self.find(sequence.path((len(sequence.blocks) + 1) * self.size))
                if known is None:
                    break
                known.holders.append(sequence)
                sequence.blocks.append(known)
        shared = len(sequence.blocks)
        while sequence.chain_open and len(sequence.blocks) < full:
            self.extend(sequence)
            self._index(sequence, len(sequence.blocks) - 1)
        self.cover(sequence)
        if self._prefix_cache and len(sequence.blocks) > shared:
            at = shared * self.size
            wanted = sequence.comparable(at, at + self.size)
            if wanted:
                sequence.sibling = self._closest(sequence, shared, wanted)
        if sequence.chain_open and (offers_all or sequence.shows_image(full * self.size, 1 << 30)):
            self.offer(sequence, sequence.comparable(full * self.size, len(sequence.tokens)))

    def _closest(
        self, sequence: NaiveSequence, index: int, wanted: list[Symbol]
    ) -> tuple[NaiveBlock, int] | None:
        """Another block than its own there that begins so, for the most tokens; and how many."""
        begin = index * self.size
        alike: dict[Name, tuple[NaiveBlock, int]] = {}
        for block in self.behind(sequence.path(begin)):
            if block is not sequence.blocks[index]:
                common = 0
                for mine, its in zip(wanted, self._content(block)[2][begin:], strict=False):
                    if mine != its:
                        break
                    common += 1
                assert (block.maker, block.index) not in alike
                alike[block.maker, block.index] = block, common
        if not alike:
            return None
        most, chosen = max(common for _, common in alike.values()), self._choose()
        if chosen is None:
            assert not most, "a sibling was overlooked"
            return None
        block, common = alike[chosen[0]]
        assert chosen[1] == common == most, "another has more in common"
        return block, common

    def extent(self, block: NaiveBlock) -> int:
        """Its first tokens that others may copy."""
        if not block.valid:
            return 0
        return self.size if block.path is not None else block.written

    def usable(self, sequence: NaiveSequence, resume: int) -> tuple[NaiveBlock, int] | None:
        """Its sibling, if it goes on just there, as far as earlier passes wrote it."""
        if sequence.sibling is None:
            return None
        block, common = sequence.sibling
        common = min(common, self.extent(block))
        return (block, common) if common and block.index * self.size == resume else None

    def offer(self, sequence: NaiveSequence, content: list[Symbol]) -> None:
        """Others may find so much of its first block that is not indexed."""
        chained = self.chained(sequence)
        if content:
            block = sequence.blocks[chained]
            block.offer = sequence.path(chained * self.size + len(content))
            self.offered.append(block)

    def withdraw(self, block: NaiveBlock) -> None:
        """Nobody finds its beginning any more."""
        if block.offer is not None:
            block.offer, block.written = None, 0
            self.offered.remove(block)

    def keep_tail(self, sequence: NaiveSequence, written: int, *, generated: bool) -> None:
        """What it leaves of its last block, unless another has all of it."""
        at = self.chained(sequence)
        if not sequence.chain_open or at >= len(sequence.blocks) or not sequence.blocks[at].valid:
            return
        block, begin = sequence.blocks[at], at * self.size
        offered = 0 if block.offer is None else len(block.offer[2]) - begin
        own = len(sequence.comparable(begin, written)) if generated else 0
        content = sequence.symbols(begin, begin + max(own, offered))
        found = self._closest(sequence, at, content) if content else None
        if (
            found is not None
            and found[1] == len(content)
            and self.extent(found[0]) >= found[1]
            and len(found[0].states) >= len(block.states)
        ):
            self.withdraw(block)
        elif own > offered:
            self.withdraw(block)
            self.offer(sequence, content)
            block.written = own

    def copy(self, sequence: NaiveSequence, source: NaiveThing) -> None:
        """It goes on with what another computed: all of it depends on a state."""
        here = [s.number for s in self.sequences]
        position = source.index * self.size if isinstance(source, NaiveBlock) else 0
        for number in (source.publisher, *source.origins):
            if number in here and number != sequence.number:
                known = sequence.origins.get(number, position)
                sequence.origins[number] = min(position, known)
        if not source.holders:
            self._use(source)

    def _use(self, thing: NaiveThing) -> None:
        self._clock += 1
        thing.last_use = self._clock

    def keep_state(self, state: NaiveState, block: NaiveBlock) -> None:
        """The state stays with this block from now on."""
        state.block, state.valid, state.holders = block, True, []
        block.states.append(state)
        self._use(state)

    def cover(self, sequence: NaiveSequence) -> None:
        """A block for every known token."""
        while len(sequence.blocks) * self.size < len(sequence.tokens):
            self.extend(sequence)

    def extend(self, sequence: NaiveSequence) -> NaiveBlock:
        """One private block more."""
        block = NaiveBlock(len(sequence.blocks), [sequence], sequence.number)
        sequence.blocks.append(block)
        return block

    def publish(self, sequence: NaiveSequence, written: int) -> None:
        """What is full, known, valid and written can be found by others."""
        for i in range(self.chained(sequence), min(written, len(sequence.tokens)) // self.size):
            if not sequence.chain_open or not sequence.blocks[i].valid:
                return
            self._index(sequence, i)

    def _index(self, sequence: NaiveSequence, i: int) -> None:
        self.withdraw(sequence.blocks[i])
        path = sequence.path((i + 1) * self.size)
        nameless = len(sequence.comparable(0, len(path[2]))) < len(path[2])
        if nameless or self.find(path) is not None or (self._colliding and self.indexed):
            sequence.chain_open = False
            return
        sequence.blocks[i].path = path
        self.indexed.append(sequence.blocks[i])

    def leave(self, sequence: NaiveSequence) -> None:
        """It lets its blocks go, the last first."""
        sequence.frontier = None
        for block in reversed(sequence.blocks):
            block.holders.remove(sequence)
            if block.holders or not block.memory:
                continue
            if self._found(block) and block.valid:
                for state in block.states:
                    self._use(state)
                self._use(block)
            else:
                self.take_memory(block)
        sequence.blocks = []
        self.sequences.remove(sequence)
        self.sweep()

    def take_memory(self, thing: NaiveThing) -> int:
        """Its content is gone, and every state kept with it. Returns how many had memory."""
        count = int(thing.memory)
        if isinstance(thing, NaiveBlock):
            count += sum(self.take_memory(state) for state in thing.states)
        thing.memory = False
        self._distrust(thing)
        return count

    def _distrust(self, thing: NaiveThing) -> None:
        thing.valid = False
        thing.publisher = thing.written = 0
        thing.origins = frozenset()

    def _found(self, block: NaiveBlock) -> bool:
        return block.path is not None or block.offer is not None

    def sweep(self) -> None:
        """What nothing keeps is gone."""
        for block in self.everything():
            block.states = [state for state in block.states if state.memory]
        while gone := [b for b in self.indexed + self.offered if not self.refs(b)]:
            for block in gone:
                if block.path is not None:
                    self.indexed.remove(block)
                    block.path = None
                self.withdraw(block)

    def poisoned_by(self, sequence: NaiveSequence) -> list[NaiveBlock]:
        """What it computed, and everything that was made from that."""
        bad = [b for b in sequence.blocks if b.publisher == sequence.number]
        for other in self.sequences:
            if sequence.number in other.origins:
                bad += [b for b in other.blocks if sequence.number in b.origins and b not in bad]
        for block in self.indexed + self.offered:
            made = block.publisher == sequence.number or sequence.number in block.origins
            if made and block not in bad:
                bad.append(block)
        for block in bad:
            bad += [child for child in self.children(block) if child not in bad]
        for block in self.everything():
            for state in block.states:
                if state.publisher == sequence.number or sequence.number in state.origins:
                    self.take_memory(state)
        return bad

    def invalidate(self, block: NaiveBlock) -> None:
        """Its content is not to be believed; without a holder it is no use at all."""
        for state in block.states:
            self.take_memory(state)
        self._distrust(block)
        if not block.holders:
            self.take_memory(block)
