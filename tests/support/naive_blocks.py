"""The block system as one writes it first: lists, searched from end to end, and nothing clever.

Written from the contract (``services/engine/CONTRACT.md``), to be compared with the engine's. It has
no hash, no reference counts, no free lists and no undo log: what those stand for is counted again
each time somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Path = tuple[str, bytes, tuple[int, ...]]
"""Tenant, salt, and every token from the beginning to a block's end: what a block's content is."""


@dataclass(eq=False)
class NaiveBlock:
    """Some token positions, perhaps with memory behind them."""

    index: int
    """Its place among the blocks of a sequence."""
    holders: list[NaiveSequence]
    path: Path | None = None
    """While others can find it."""
    memory: bool = False
    valid: bool = False
    publisher: int = 0
    last_use: int = 0
    """When the last holder left, or somebody copied from it."""
    origins: frozenset[int] = frozenset()
    """Whose content it was made of, by a copy."""


@dataclass(eq=False)
class NaiveSequence:
    """One choice of one request."""

    number: int
    handle: int
    choice: int
    tenant: str
    salt: bytes
    band: int
    tokens: list[int]
    """Known to the host."""
    prompt: int
    """Tokens of the prompt."""
    limit: int
    stops: frozenset[int]
    min_new: int
    future: list[int]
    """What it says when it runs alone, from ``tokens`` on."""
    status: str = "waiting"
    blocks: list[NaiveBlock] = field(default_factory=list[NaiveBlock])
    sibling: tuple[NaiveBlock, int] | None = None
    """A block that begins like its first block that is not shared, and for how many tokens."""
    origins: dict[int, int] = field(default_factory=dict[int, int])
    """Whose content it copied, and from where on it depends on that."""
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

    def path(self, blocks: int) -> Path:
        """Content of its first so many blocks' tokens."""
        return self.tenant, self.salt, tuple(self.tokens[:blocks])


class NaiveBlocks:
    """Every block there is."""

    def __init__(
        self,
        total: int,
        size: int,
        *,
        prefix_cache: bool,
        colliding: bool,
        choose: Callable[[], tuple[Path, int] | None],
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
        self.sequences: list[NaiveSequence] = []
        """Whose blocks count."""
        self._clock = 0

    # what there is

    def everything(self) -> list[NaiveBlock]:
        """Each block once."""
        found = list(self.indexed)
        for sequence in self.sequences:
            found += [b for b in sequence.blocks if b not in found]
        return found

    @property
    def free(self) -> int:
        """Memory for so many blocks is nobody's."""
        return self.total - sum(b.memory for b in self.everything())

    def cached(self) -> list[NaiveBlock]:
        """Memory that nobody holds, the oldest first."""
        return sorted(
            (b for b in self.everything() if b.memory and not b.holders), key=lambda b: b.last_use
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
        found: list[NaiveBlock] = []
        for other in self.indexed:
            if other.path is None or block.path is None or other.index != block.index + 1:
                continue
            tenant, salt, tokens = other.path
            if (tenant, salt, tokens[: len(block.path[2])]) == block.path:
                found.append(other)
        return found

    def refs(self, block: NaiveBlock) -> int:
        """Everything that keeps it."""
        return len(block.holders) + len(self.children(block)) + block.memory

    # what happens

    def admit(self, sequence: NaiveSequence) -> None:
        """It shares what is known and offers what is not."""
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
            self._find_sibling(sequence, shared)

    def _find_sibling(self, sequence: NaiveSequence, shared: int) -> None:
        begin = shared * self.size
        wanted = sequence.tokens[begin : begin + self.size]
        alike: list[tuple[NaiveBlock, int]] = []
        for block in self.indexed:
            if block.index != shared or block is sequence.blocks[shared] or block.path is None:
                continue
            tenant, salt, tokens = block.path
            if (tenant, salt, tokens[:begin]) == sequence.path(begin):
                common = 0
                while wanted[: common + 1] == list(tokens[begin : begin + common + 1]):
                    common += 1
                    if common == len(wanted):
                        break
                alike.append((block, common))
        if not alike:
            return
        most, chosen = max(common for _, common in alike), self._choose()
        if chosen is None:
            assert not most, "a sibling was overlooked"
            return
        block = self.find(chosen[0])
        assert block is not None
        assert (block, chosen[1]) in alike
        assert chosen[1] == most, "another has more in common"
        sequence.sibling = (block, most)

    def usable(self, sequence: NaiveSequence, resume: int) -> tuple[NaiveBlock, int] | None:
        """Its sibling, if it goes on just there and earlier passes wrote it."""
        if sequence.sibling is None:
            return None
        block, common = sequence.sibling
        if block.index * self.size != resume or not block.valid or block.path is None:
            return None
        return block, common

    def copy(self, sequence: NaiveSequence, source: NaiveBlock) -> None:
        """It goes on with what another computed."""
        here = [s.number for s in self.sequences]
        position = source.index * self.size
        for number in (source.publisher, *source.origins):
            if number in here and number != sequence.number:
                known = sequence.origins.get(number, position)
                sequence.origins[number] = min(position, known)
        if not source.holders:
            self._clock += 1
            source.last_use = self._clock

    def cover(self, sequence: NaiveSequence) -> None:
        """A block for every known token."""
        while len(sequence.blocks) * self.size < len(sequence.tokens):
            self.extend(sequence)

    def extend(self, sequence: NaiveSequence) -> NaiveBlock:
        """One private block more."""
        block = NaiveBlock(len(sequence.blocks), [sequence])
        sequence.blocks.append(block)
        return block

    def publish(self, sequence: NaiveSequence, written: int) -> None:
        """What is full, known, valid and written can be found by others."""
        for i in range(self.chained(sequence), min(written, len(sequence.tokens)) // self.size):
            if not sequence.chain_open or not sequence.blocks[i].valid:
                return
            self._index(sequence, i)

    def _index(self, sequence: NaiveSequence, i: int) -> None:
        path = sequence.path((i + 1) * self.size)
        if self.find(path) is not None or (self._colliding and self.indexed):
            sequence.chain_open = False
            return
        sequence.blocks[i].path = path
        self.indexed.append(sequence.blocks[i])

    def leave(self, sequence: NaiveSequence) -> None:
        """It lets its blocks go, the last first."""
        for block in reversed(sequence.blocks):
            block.holders.remove(sequence)
            if block.holders or not block.memory:
                continue
            if block.path is not None and block.valid:
                self._clock += 1
                block.last_use = self._clock
            else:
                self.take_memory(block)
        sequence.blocks = []
        self.sequences.remove(sequence)
        self.sweep()

    def take_memory(self, block: NaiveBlock) -> None:
        """Its content is gone."""
        block.memory = block.valid = False
        block.publisher = 0
        block.origins = frozenset()

    def sweep(self) -> None:
        """What nothing keeps is gone."""
        while gone := [b for b in self.indexed if not self.refs(b)]:
            for block in gone:
                self.indexed.remove(block)
                block.path = None

    def poisoned_by(self, sequence: NaiveSequence) -> list[NaiveBlock]:
        """What it computed, and everything that was made from that."""
        bad = [b for b in sequence.blocks if b.publisher == sequence.number]
        for other in self.sequences:
            if sequence.number in other.origins:
                bad += [b for b in other.blocks if sequence.number in b.origins and b not in bad]
        for block in self.indexed:
            made = block.publisher == sequence.number or sequence.number in block.origins
            if made and block not in bad:
                bad.append(block)
        for block in bad:
            bad += [child for child in self.children(block) if child not in bad]
        return bad

    def invalidate(self, block: NaiveBlock) -> None:
        """Its content is not to be believed; without a holder it is no use at all."""
        block.valid = False
        block.publisher = 0
        block.origins = frozenset()
        if not block.holders:
            self.take_memory(block)
