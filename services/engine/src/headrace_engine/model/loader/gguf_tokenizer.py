"""The tokenizer that a GGUF file carries, as ``tokenizer.json`` for the ``tokenizers`` library.

``tokenizer.ggml.pre`` names how text is cut before the byte-level step. A name that is not in
the table is refused: a wrong cut gives wrong ids for some texts, silently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.tokenizer_files import (
    END_OF_TURN,
    TOKENIZER_FILE,
    TokenizerFiles,
)

_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4
_BYTE: Final = 6
_SPACE_MARK: Final = "\u2581"

_JsonMap = Mapping[str, object]

_GPT2_BYTES: Final[_JsonMap] = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_PLAIN_BYTES: Final[_JsonMap] = {**_GPT2_BYTES, "use_regex": False}


def _split(pattern: str) -> _JsonMap:
    return {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            },
            _PLAIN_BYTES,
        ],
    }


def _cut_with_digits(digits: str) -> _JsonMap:
    """The cut that newer byte-level models share; ``digits`` matches one run of digits."""
    return _split(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """How one value of ``tokenizer.ggml.pre`` treats text before the merges."""

    pre_tokenizer: _JsonMap
    normalizer: _JsonMap | None = None
    ignore_merges: bool = False
    """A piece that is a token as a whole is taken as it is."""
    adds_begin: bool = False
    """Where the file does not say."""


_CUTS: Final[Mapping[str, _Cut]] = {
    "gpt-2": _Cut(_GPT2_BYTES),
    "smollm": _Cut(
        {
            "type": "Sequence",
            # Digits go one by one, before the byte-level step.
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, _GPT2_BYTES],
        }
    ),
    "llama-bpe": _Cut(_cut_with_digits(r"\p{N}{1,3}"), ignore_merges=True, adds_begin=True),
    "qwen2": _Cut(_cut_with_digits(r"\p{N}"), normalizer={"type": "NFC"}),
}


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> TokenizerFiles:
    """Makes the tokenizer from a GGUF header's metadata, by key.

    Raises ModelRejected naming the key that is missing, malformed or of an unknown kind.
    """
    tokens = _strings(metadata, "tokens")
    kinds = _kinds(metadata, len(tokens))
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        cut = _cut(metadata)
        pipeline, adds_begin = _byte_level(metadata, cut, tokens), cut.adds_begin
    elif model == "llama":
        pipeline, adds_begin = _sentencepiece(metadata, tokens, kinds), True
    else:
        raise ModelRejected(
            f"tokenizer.ggml.model {model!r} is not supported: only byte-level BPE ('gpt2') and "
            "SentencePiece BPE ('llama') are; use the model's Hugging Face folder instead"
        )
    begin = _token_id(metadata, "bos_token_id", len(tokens))
    adds_begin = metadata.get("tokenizer.ggml.add_bos_token", adds_begin)
    template = metadata.get("tokenizer.chat_template", "")
    return TokenizerFiles(
        files={TOKENIZER_FILE: _tokenizer_json(pipeline, tokens, kinds)},
        chat_template=template if isinstance(template, str) else "",
        special_tokens=_special_tokens(metadata, tokens),
        end_token_ids=_end_ids(metadata, tokens, kinds),
        begin_token_id=begin,
        add_begin_token=begin is not None and adds_begin is True,
    )


def _cut(metadata: Mapping[str, object]) -> _Cut:
    name = metadata.get("tokenizer.ggml.pre")
    cut = _CUTS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise ModelRejected(
            f"tokenizer.ggml.pre {name!r} is not supported: only {', '.join(_CUTS)} are; "
            "use the model's Hugging Face folder instead"
        )
    return cut


def _tokenizer_json(pipeline: _JsonMap, tokens: Sequence[str], kinds: Sequence[int]) -> bytes:
    added = [
        {
            "id": i,
            "content": tokens[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER_DEFINED,
        }
        for i, kind in enumerate(kinds)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]
    file = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "post_processor": None,
        **pipeline,
    }
    return json.dumps(file, ensure_ascii=False, separators=(",", ":")).encode()


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    vocab = {text: i for i, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(text for i, text in enumerate(tokens) if vocab[text] != i)
        raise ModelRejected(f"tokenizer.ggml.tokens holds {twice!r} twice")
    return vocab


def _bpe(vocab: Mapping[str, int], merges: object, **differences: object) -> _JsonMap:
    plain: dict[str, object] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }
    return {**plain, **differences}


def _byte_level(metadata: Mapping[str, object], cut: _Cut, tokens: Sequence[str]) -> _JsonMap:
    vocab = _vocabulary(tokens)
    merges = _merges(metadata, vocab)
    return {
        "normalizer": cut.normalizer,
        "pre_tokenizer": cut.pre_tokenizer,
        "decoder": _GPT2_BYTES,
        "model": _bpe(vocab, merges, ignore_merges=cut.ignore_merges),
    }


def _sentencepiece(
    metadata: Mapping[str, object], tokens: Sequence[str], kinds: Sequence[int]
) -> _JsonMap:
    """Pieces with scores: the pair whose joint piece scores highest is merged first."""
    vocab = _vocabulary(tokens)
    unknown = _token_id(metadata, "unknown_token_id", len(tokens))
    marks: _JsonMap = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    prefix: _JsonMap = {"type": "Prepend", "prepend": _SPACE_MARK}
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True) is True
    has_bytes = sum(kind == _BYTE for kind in kinds) == 256
    spaces: _JsonMap = {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prefix, marks] if prefixed else [marks]},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}],
        },
        "model": _bpe(
            vocab,
            _merges_by_score(vocab, tokens, kinds, _scores(metadata, len(tokens))),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=has_bytes,
        ),
    }


def _merges_by_score(
    vocab: Mapping[str, int], tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, the best piece first."""
    whole = {i for i, kind in enumerate(kinds) if kind in (_UNKNOWN, _CONTROL, _BYTE)}
    ranked: list[tuple[float, int, int]] = []
    for i, piece in enumerate(tokens):
        if i in whole:
            continue
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut], -1), vocab.get(piece[cut:], -1)
            if left >= 0 and right >= 0 and left not in whole and right not in whole:
                ranked.append((-scores[i], left, right))
    return [(tokens[left], tokens[right]) for _, left, right in sorted(ranked)]


def _merges(metadata: Mapping[str, object], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for merge in _strings(metadata, "merges"):
        left, space, right = merge.partition(" ")
        if not space or left not in vocab or right not in vocab or left + right not in vocab:
            raise ModelRejected(f"tokenizer.ggml.merges: {merge!r} does not join two tokens to one")
        merges.append((left, right))
    return merges


def _end_ids(
    metadata: Mapping[str, object], tokens: Sequence[str], kinds: Sequence[int]
) -> tuple[int, ...]:
    ends = {i for i, kind in enumerate(kinds) if kind == _CONTROL and tokens[i] in END_OF_TURN}
    for name in ("eos_token_id", "eot_token_id", "eom_token_id"):
        if (found := _token_id(metadata, name, len(tokens))) is not None:
            ends.add(found)
    return tuple(sorted(ends))


def _special_tokens(metadata: Mapping[str, object], tokens: Sequence[str]) -> dict[str, str]:
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    found: dict[str, str] = {}
    for gguf_name, name in names.items():
        token = _token_id(metadata, f"{gguf_name}_token_id", len(tokens))
        if token is not None:
            found[f"{name}_token"] = tokens[token]
    return found


def _kinds(metadata: Mapping[str, object], count: int) -> Sequence[int]:
    value = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(value, list) or len(cast("list[object]", value)) != count:
        raise ModelRejected(f"tokenizer.ggml.token_type does not list {count} kinds")
    return cast("list[int]", value)


def _scores(metadata: Mapping[str, object], count: int) -> Sequence[float]:
    value = metadata.get("tokenizer.ggml.scores")
    if not isinstance(value, list) or len(cast("list[object]", value)) != count:
        raise ModelRejected(f"tokenizer.ggml.scores does not list {count} numbers")
    return cast("list[float]", value)


def _strings(metadata: Mapping[str, object], name: str) -> Sequence[str]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not value:
        raise ModelRejected(f"tokenizer.ggml.{name} is missing")
    return cast("list[str]", value)


def _token_id(metadata: Mapping[str, object], name: str, count: int) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < count:
        raise ModelRejected(f"tokenizer.ggml.{name} is {value!r}, outside the {count} tokens")
    return value
