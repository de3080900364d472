"""How few tokens a text can be, by its bytes: what can never fit is not tokenized to find that out.

The bound is given only where it is sure: every byte of a text stays, but for a normalizer whose
worst is known and bytes that are counted, and ends in one token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace_gateway.text.tokenizer_file import as_list, as_map, id_of, kinds, parts

SHRINKS: Final = 4
"""Bytes of UTF-8 that NFC and NFD make one of, at most: U+1FBE U+0308 U+0301, which are seven,
become U+0390 of two.
"""
_UTF8: Final = bytes([*range(0xC0), *range(0xC2, 0xF5)])
"""Bytes that occur in UTF-8."""
_KEEPING: Final = frozenset({"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split"})
"""What cuts texts and leaves out nothing, but for a ``behavior`` of "Removed"."""
_SPACE_MARK: Final = "\u2581".encode()
_SPACES: Final = frozenset(
    "".join(char for char in map(chr, range(0x3001)) if char.isspace()).encode()
)
"""Bytes of all white space: there is none beyond U+3000."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Of one tokenizer."""

    token_bytes: int
    """Bytes of a text that one token stands for, at most."""
    lost: bytes = b""
    """Bytes that may become no token, or any number of them one."""
    marks: bool = False
    """Whether a space mark in a text is the byte of a space to a token."""
    shrinks: int = 1
    """How much shorter the normalizer may make a text that is not ASCII."""

    def tokens(self, text: bytes) -> int:
        """A text is that many tokens or more."""
        kept = len(text) - sum(text.count(byte) for byte in self.lost)
        if self.marks:
            kept -= (len(_SPACE_MARK) - 1) * text.count(_SPACE_MARK)
        return -(-kept // (self.token_bytes * (1 if text.isascii() else self.shrinks)))


def bound_of(spec: Mapping[str, object], table: Sequence[bytes]) -> Bound | None:
    """The bound of a tokenizer, from its file and the bytes of each of its tokens; None where
    nothing is sure.
    """
    shrinks = _shrinks(spec)
    if shrinks is None or not all(map(_keeps, parts(spec.get("pre_tokenizer")))):
        return None
    added = [as_map(token) for token in as_list(spec.get("added_tokens"))]
    swallows = any(token.get(strip) is True for token in added for strip in ("lstrip", "rstrip"))
    spaces = (
        _SPACES if swallows else frozenset[int]()
    )  # such a token swallows all that is beside it
    own = set(range(len(table))) - {id_of(token) for token in added}
    missing = bytes(sorted(set(_UTF8) - {table[i][0] for i in own if len(table[i]) == 1}))
    model = as_map(spec.get("model"))
    longest = max(map(len, table), default=0) or 1
    if model.get("type") == "BPE" and kinds(spec.get("pre_tokenizer")) >= {"ByteLevel"}:
        return Bound(longest, lost=bytes(sorted({*missing, *spaces})), shrinks=shrinks)
    if model.get("byte_fallback") is True and not missing:
        return Bound(longest, lost=bytes(sorted(spaces)), marks=True, shrinks=shrinks)
    return None


def _shrinks(spec: Mapping[str, object]) -> int | None:
    """How much shorter, in bytes, a normalizer may make a text; None: nobody knows."""
    most = 1
    for part in parts(spec.get("normalizer")):
        if part.get("type") in ("NFC", "NFD"):
            most *= SHRINKS
        elif part.get("type") != "Prepend" and not _marks_spaces(part):
            return None
    return most


def _marks_spaces(part: Mapping[str, object]) -> bool:
    spaces = part.get("type") == "Replace" and as_map(part.get("pattern")) == {"String": " "}
    return spaces and part.get("content") == _SPACE_MARK.decode()


def _keeps(part: Mapping[str, object]) -> bool:
    return part.get("type") in _KEEPING and part.get("behavior") != "Removed"
