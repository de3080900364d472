"""Generated tokens to text, piece by piece: whole characters only, every byte accounted for."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final

from headrace_gateway.text.tokenizer import Tokenizer

_UTF8: Final = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one choice's tokens.

    Invariants
        the pieces joined equal ``decode`` of all tokens at once, however they are cut
        at most three bytes are held back, and none after ``final``
        bytes that can no longer become a character are U+FFFD at once
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = _UTF8("replace")

    def push(self, tokens: Sequence[int], *, final: bool = False) -> str:
        """Text that these tokens complete. ``final`` ends it: a cut character is U+FFFD."""
        return self._decoder.decode(self._tokenizer.shown_bytes(tokens), final=final)


def decode(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text of all tokens at once; special tokens are left out."""
    return tokenizer.shown_bytes(tokens).decode("utf-8", "replace")
