"""Tiny tokenizers made on the spot, for what the default model's tokenizer does not do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def added(token: int, content: str, *, special: bool = True, **flags: bool) -> dict[str, object]:
    """One entry of ``added_tokens``."""
    base: dict[str, object] = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    return {"id": token, "content": content, "special": special, **base, **flags}


def byte_level(extra: Sequence[tuple[str, bool]] = (), **flags: bool) -> bytes:
    """256 byte tokens (the id is not the byte), then ``(content, special)`` as added tokens."""
    chars = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = [chr(c) for c in chars] + [chr(256 + i) for i in range(256 - len(chars))]
    return _file(
        {name: i for i, name in enumerate(names)},
        [added(256 + i, text, special=special, **flags) for i, (text, special) in enumerate(extra)],
        pre_tokenizer={
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        decoder={
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
    )


def sentencepiece() -> bytes:
    """``<unk> <s> </s>``, 256 bytes, then the words hi and there; a space mark before the first."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in ("\u2581", "h", "i", "hi", "\u2581hi"):
        vocab[piece] = len(vocab)
    return _file(
        vocab,
        [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        merges=[("h", "i"), ("\u2581", "hi")],
        byte_fallback=True,
        pre_tokenizer={
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": "first",
            "split": False,
        },
        decoder={
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
    )


def unigram() -> bytes:
    """A vocabulary that lists its end token among the pieces, so that plain text can reach it."""
    pieces: list[tuple[str, float]] = [("<unk>", 0.0), ("</s>", 0.0), ("\u2581", -1.0)]
    pieces += [(char, -5.0) for char in "</s>ab"]
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [added(0, "<unk>"), added(1, "</s>")],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Metaspace",
                "replacement": "\u2581",
                "prepend_scheme": "never",
                "split": False,
            },
            "post_processor": None,
            "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never"},
            "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False},
        }
    ).encode()


def _file(
    vocab: Mapping[str, int],
    added_tokens: Sequence[Mapping[str, object]],
    *,
    pre_tokenizer: Mapping[str, object],
    decoder: Mapping[str, object],
    merges: Sequence[tuple[str, str]] = (),
    byte_fallback: bool = False,
) -> bytes:
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>" if byte_fallback else None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": byte_fallback,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added_tokens,
            "normalizer": None,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": None,
            "decoder": decoder,
            "model": model,
        }
    ).encode()
