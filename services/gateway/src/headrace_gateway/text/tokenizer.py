"""Text to token ids and the exact bytes behind each id, for one model.

Two alphabets never mix by accident: *control tokens* (special tokens, and added tokens that
look like markup, ``<think>``) are only made by ``encode_with_control``; ``encode_text`` takes
every character as a character. Next: headrace_gateway.text.templates
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import tokenizers

from headrace_gateway.text.bound import bound_of
from headrace_gateway.text.errors import PromptRejected, TextTooLong, TokenizerRejected
from headrace_gateway.text.tokenizer_file import (
    TOKENIZER_FILE,
    as_list,
    as_map,
    id_of,
    kinds,
    parse,
)

_MARKUP: Final = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_FALLBACK_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK: Final = "\u2581"


@dataclass(frozen=True, slots=True)
class _Control:
    """One control token, and whether it swallows the white space beside it."""

    id: int
    lstrip: bool
    rstrip: bool


class Tokenizer:
    """A model's tokenizer. Immutable after construction; safe to use from several threads.

    Invariants
        ``encode_text`` never gives the id of a control token
        ``b"".join(map(token_bytes, encode_text(t))) == t.encode()`` for byte-level models
        without a normalizer, if every byte of it is a token (else the byte is left out, as the
        model's own tokenizer does)
    """

    def __init__(self, data: bytes, *, vocabulary: int) -> None:
        """``data`` is a ``tokenizer.json``; ``vocabulary`` the rows of the model's embedding.

        Raises TokenizerRejected.
        """
        spec = parse(data)
        added = [as_map(token) for token in as_list(spec.get("added_tokens"))]
        hidden = frozenset(id_of(token) for token in added if token.get("special") is True)
        self._control: dict[str, _Control] = {}
        special: set[str] = set()
        for token in added:
            content = str(token.get("content"))
            if content and token.get("special") is True:
                special.add(content)
            if content and (content in special or _MARKUP.fullmatch(content)):
                self._control[content] = _Control(
                    id_of(token), token.get("lstrip") is True, token.get("rstrip") is True
                )
                # The library leaves special tokens alone when it is told to; see _load.
                token["special"] = True
        self._control_ids = frozenset(control.id for control in self._control.values())
        self._splitter = _splitter(self._control)
        self._first = _load(spec)
        self._later = _load(_without_first_prefix(spec)) if _prefixes_first(spec) else self._first
        self._bytes = self._table(spec, vocabulary)
        self._shown = [b"" if i in hidden else raw for i, raw in enumerate(self._bytes)]
        self._bound = bound_of(spec, self._bytes)
        self.vocabulary = vocabulary
        """Ids are below this."""
        self.control_tokens = frozenset(self._control)
        """Their texts."""
        self.special_tokens = frozenset(special)
        """Texts of those control tokens that are not mere markup."""

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], *, vocabulary: int) -> Tokenizer:
        """Builds the tokenizer from the files of a model card, by name."""
        if TOKENIZER_FILE not in files:
            raise TokenizerRejected(f"the model card has no {TOKENIZER_FILE}")
        return cls(files[TOKENIZER_FILE], vocabulary=vocabulary)

    def encode_text(self, text: str) -> list[int]:
        """Tokens of plain text: what looks like a control token is characters.

        Raises PromptRejected for lone surrogates.
        """
        _checked(text)
        return self._plain(text, first=True)

    def encode_with_control(
        self, text: str, *, restore: Mapping[int, int] | None = None, below: int | None = None
    ) -> list[int]:
        """Tokens of text in which control tokens are parsed.

        ``restore`` is applied (``str.translate``) to what lies between them, so that characters
        which were replaced beforehand cannot take part in a control token. Raises PromptRejected
        for lone surrogates, and TextTooLong, at once, where by its length alone the text cannot
        have fewer tokens than ``below``.
        """
        data = _checked(text)
        if below is not None and self._bound is not None:
            for stand_in, char in (restore or {}).items():
                data = data.replace(chr(stand_in).encode(), chr(char).encode())
            if (least := self._bound.tokens(data)) >= below:
                raise TextTooLong(least_tokens=least, limit_tokens=below)
        ids: list[int] = []
        done = 0
        while (match := self._splitter.search(text, done)) is not None:
            control = self._control[match[0]]
            first, end = match.span()
            while control.lstrip and first > done and text[first - 1].isspace():
                first -= 1
            ids += self._run(text, done, first, restore)
            ids.append(control.id)
            while control.rstrip and end < len(text) and text[end].isspace():
                end += 1
            done = end
        ids += self._run(text, done, len(text), restore)
        return ids

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes of a token; of a special one, its name. Empty for unused ids."""
        return self._bytes[token]

    def token_text(self, token: int) -> str:
        """The token as text; bytes that are no character alone are shown as U+FFFD."""
        return self._bytes[token].decode("utf-8", "replace")

    def shown_bytes(self, tokens: Sequence[int]) -> bytes:
        """The bytes of generated tokens as a reader sees them: special tokens are left out."""
        shown = self._shown
        return b"".join([shown[token] for token in tokens])

    def _run(self, text: str, first: int, end: int, restore: Mapping[int, int] | None) -> list[int]:
        if first == end:
            return []
        run = text[first:end]
        return self._plain(run.translate(restore) if restore else run, first=first == 0)

    def _plain(self, text: str, *, first: bool) -> list[int]:
        library = self._first if first else self._later
        # As a batch of one: ``encode`` keeps the interpreter's lock for as long as it runs, and a
        # long prompt in a thread of its own would stop the event loop all the same.
        ids = library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if self._control_ids.isdisjoint(ids):
            return ids
        # Rare (Unigram vocabularies list their control tokens): cut the token's text in two.
        at = next(i for i, token in enumerate(ids) if token in self._control_ids)
        encoding = library.encode_batch([text], add_special_tokens=False)[0]  # with offsets
        cut = encoding.offsets[at][0] + 1
        if cut >= len(text):
            raise PromptRejected("The text holds a character that is a control token.")
        return self._plain(text[:cut], first=first) + self._plain(text[cut:], first=False)

    def _table(self, spec: Mapping[str, object], vocabulary: int) -> list[bytes]:
        names = self._first.get_vocab(with_added_tokens=True)
        added = {id_of(as_map(token)) for token in as_list(spec.get("added_tokens"))}
        raw_bytes = _raw_bytes(spec)
        table = [b""] * vocabulary
        for name, token in names.items():
            if token >= vocabulary:
                raise TokenizerRejected(
                    f"token {name!r} has id {token}, but the model has {vocabulary} rows"
                )
            table[token] = name.encode() if token in added else raw_bytes(name)
        return table


class _RawBytes(Protocol):
    def __call__(self, name: str, /) -> bytes: ...


def _raw_bytes(spec: Mapping[str, object]) -> _RawBytes:
    """How this kind of tokenizer spells bytes in the names of its tokens."""
    found = kinds(spec.get("decoder")) | kinds(spec.get("pre_tokenizer"))
    if "ByteLevel" in found:
        return _byte_level_bytes
    model = as_map(spec.get("model"))
    if model.get("byte_fallback") is True or found & {"ByteFallback", "Metaspace"}:
        return _sentencepiece_bytes
    raise TokenizerRejected(
        f"a tokenizer of the kind {model.get('type')!r} with {sorted(found)} is not supported: "
        "only byte-level and SentencePiece-like ones are"
    )


def _byte_alphabet() -> dict[int, str]:
    """For ``str.translate``: the printable stand-ins that byte-level vocabularies use for the 256
    bytes become characters of Latin-1; what stands for no byte becomes none of it.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    strangers = dict.fromkeys(others, _NO_BYTE)
    return strangers | {256 + i: chr(byte) for i, byte in enumerate(others)}


_NO_BYTE: Final = "\uffff"
_BYTES: Final = _byte_alphabet()


def _byte_level_bytes(name: str) -> bytes:
    try:
        return name.translate(_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return name.encode()


def _sentencepiece_bytes(name: str) -> bytes:
    if (match := _FALLBACK_BYTE.fullmatch(name)) is not None:
        return bytes((int(match[1], 16),))
    return name.replace(_SPACE_MARK, " ").encode()


class _Branch(dict[str, "_Branch"]):
    """What may follow in a set of words; the empty key ends a word."""


def _splitter(words: Collection[str]) -> re.Pattern[str]:
    """Finds words, of those that begin at one place the longest.

    Words share their beginnings, so that a text takes time by its length and not by their number.
    """
    root = _Branch()
    for word in words:
        branch = root
        for char in word:
            branch = branch.setdefault(char, _Branch())
        branch[""] = _Branch()
    return re.compile(_pattern(root) if root else "(?!)")


def _pattern(branch: _Branch) -> str:
    ways = [re.escape(char) + _pattern(rest) for char, rest in branch.items() if char]
    if not ways:
        return ""
    joined = ways[0] if len(ways) == 1 and "" not in branch else f"(?:{'|'.join(ways)})"
    return joined + ("?" if "" in branch else "")


def _load(spec: Mapping[str, object]) -> tokenizers.Tokenizer:
    try:
        loaded = tokenizers.Tokenizer.from_buffer(json.dumps(spec, ensure_ascii=False).encode())
    except Exception as error:  # the library raises bare Exception; translated at this one seam
        raise TokenizerRejected(f"{TOKENIZER_FILE} cannot be loaded: {error}") from error
    loaded.no_truncation()
    loaded.no_padding()
    loaded.encode_special_tokens = True
    return loaded


def _prefixes_first(spec: Mapping[str, object]) -> bool:
    return '"prepend_scheme": "first"' in json.dumps(spec.get("pre_tokenizer"))


def _without_first_prefix(spec: Mapping[str, object]) -> Mapping[str, object]:
    """For what follows a control token: only the very start of a text gets a space prefix."""
    pre = json.dumps(spec.get("pre_tokenizer"))
    never = pre.replace('"prepend_scheme": "first"', '"prepend_scheme": "never"')
    return {**spec, "pre_tokenizer": json.loads(never)}


def _checked(text: str) -> bytes:
    """In UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise PromptRejected(
            f"The text holds a lone surrogate, U+{ord(text[error.start]):04X}, "
            f"at character {error.start}."
        ) from error
