"""Tokenizers from GGUF metadata: the right cut for each name, and no guess for any other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.gguf_tokenizer import tokenizer_from_gguf
from headrace_engine.model.loader.tokenizer_files import TOKENIZER_FILE
from hypothesis import given, settings
from hypothesis import strategies as st
from support import smollm2

TOKENS = ["a", "1", "2", "\u0120", "12", "<|x|>", "<u>", "<|im_end|>"]


def metadata(**changes: object) -> dict[str, object]:
    """A tiny byte-level vocabulary; a change of None removes the key."""
    fields: dict[str, object] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": TOKENS,
        "token_type": [1, 1, 1, 1, 1, 3, 4, 3],
        "merges": ["1 2"],
        "eos_token_id": 5,
    }
    fields.update(changes)
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None}


def loaded(fields: Mapping[str, object]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_buffer(tokenizer_from_gguf(fields).files[TOKENIZER_FILE])


def test_digits_are_cut_one_by_one_for_smollm_only() -> None:
    assert loaded(metadata()).encode("a 12").ids == [0, 3, 4]
    assert loaded(metadata(pre="smollm")).encode("a 12").ids == [0, 3, 1, 2]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "I'm 1234 ok\n\n x", ["I", "'m", " 1234", " ok", "\n\n", " x"]),
        ("smollm", "I'm 1234 ok", ["I", "'m", " ", "1", "2", "3", "4", " ok"]),
        ("llama-bpe", "I'M 12345 ok\n\n x", ["I", "'M", " ", "123", "45", " ok", "\n\n", " x"]),
        ("qwen2", "I'M 123 ok!\n\nx", ["I", "'M", " ", "1", "2", "3", " ok", "!\n\n", "x"]),
    ],
)
def test_text_is_cut_as_the_name_says(pre: str, text: str, pieces: list[str]) -> None:
    pre_tokenizer = loaded(metadata(pre=pre)).pre_tokenizer
    assert pre_tokenizer is not None
    spans = [span for _, span in pre_tokenizer.pre_tokenize_str(text)]
    assert [text[first:end] for first, end in spans] == pieces


def test_control_and_user_defined_tokens_are_added_tokens() -> None:
    files = tokenizer_from_gguf(metadata())
    spec = json.loads(files.files[TOKENIZER_FILE])
    added = [(token["id"], token["special"]) for token in spec["added_tokens"]]
    assert added == [(5, True), (6, False), (7, True)]


def test_end_ids_are_the_named_ones_and_known_ends_of_a_turn() -> None:
    assert tokenizer_from_gguf(metadata()).end_token_ids == (5, 7)
    assert tokenizer_from_gguf(metadata(eot_token_id=0)).end_token_ids == (0, 5, 7)


@pytest.mark.parametrize(
    ("changes", "adds"),
    [
        ({}, False),
        ({"bos_token_id": 5}, False),
        ({"bos_token_id": 5, "add_bos_token": True}, True),
        ({"add_bos_token": True}, False),
        ({"bos_token_id": 5, "pre": "llama-bpe"}, True),
        ({"bos_token_id": 5, "pre": "llama-bpe", "add_bos_token": False}, False),
    ],
)
def test_the_begin_token_is_added_where_the_file_or_its_kind_says_so(
    changes: dict[str, object], adds: bool
) -> None:
    files = tokenizer_from_gguf(metadata(**changes))
    assert files.add_begin_token is adds
    assert files.begin_token_id == changes.get("bos_token_id")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre": "tekken"}, "tokenizer.ggml.pre 'tekken' is not supported"),
        ({"pre": None}, "tokenizer.ggml.pre None is not supported"),
        ({"model": "t5"}, "tokenizer.ggml.model 't5' is not supported"),
        ({"model": "llama"}, "scores does not list 8 numbers"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": [*TOKENS[:-1], "a"]}, "holds 'a' twice"),
        ({"token_type": [1]}, "token_type does not list 8 kinds"),
        ({"merges": ["1 3"]}, "'1 3' does not join two tokens"),
        ({"merges": ["12"]}, "'12' does not join two tokens"),
        ({"eos_token_id": 8}, "eos_token_id is 8, outside the 8 tokens"),
    ],
)
def test_what_is_unknown_or_broken_is_refused_by_its_key(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ModelRejected, match=words):
        tokenizer_from_gguf(metadata(**changes))


class Pieces:
    """A SentencePiece model trained on the spot, and what a GGUF file would say of it."""

    def __init__(self, folder: Path) -> None:
        sentencepiece = pytest.importorskip("sentencepiece")
        source = folder / "text"
        source.write_text(TRAINING)
        sentencepiece.SentencePieceTrainer.train(
            input=str(source),
            model_prefix=str(folder / "m"),
            model_type="bpe",
            vocab_size=420,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            split_digits=True,
            minloglevel=2,
        )
        self.model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))
        ids = range(self.model.vocab_size())
        self.metadata: dict[str, object] = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [self.model.id_to_piece(i) for i in ids],
            "tokenizer.ggml.scores": [self.model.get_score(i) for i in ids],
            "tokenizer.ggml.token_type": [self._kind(i) for i in ids],
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }

    def _kind(self, i: int) -> int:
        if self.model.is_unknown(i):
            return 2
        if self.model.is_control(i):
            return 3
        return 6 if self.model.is_byte(i) else 1


TRAINING = "\n".join(
    f"{who} {does} {what} {n}."
    for who in ("The river", "A mill", "Somebody", "Das M\u00fchlrad")
    for does in ("turns", "carries", "stops", "brings  back")
    for what in ("water", "the wheel", "stones")
    for n in range(30)
)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Pieces:
    return Pieces(tmp_path_factory.mktemp("pieces"))


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "The river",
                " turns",
                " ",
                "wa",
                "ter",
                "12",
                "\u00fc",
                "\U0001fae0",
                ".",
                "\n",
                "stones",
            ]
        )
    ).map("".join)
)
def test_sentencepiece_vocabularies_give_the_ids_that_sentencepiece_gives(
    pieces: Pieces, text: str
) -> None:
    tokenizer = _built(pieces)
    assert tokenizer.encode(text, add_special_tokens=False).ids == pieces.model.encode(text)


@cache
def _built(pieces: Pieces) -> tokenizers.Tokenizer:
    return loaded(pieces.metadata)


def test_sentencepiece_models_want_a_begin_token_and_may_want_no_space(pieces: Pieces) -> None:
    files = tokenizer_from_gguf(pieces.metadata)
    assert (files.begin_token_id, files.add_begin_token, files.end_token_ids) == (1, True, (2,))
    bare = {**pieces.metadata, "tokenizer.ggml.add_space_prefix": False}
    ids = loaded(bare).encode("river", add_special_tokens=False).ids
    assert not pieces.model.id_to_piece(ids[0]).startswith("\u2581")


def test_the_default_model_has_the_facts_that_its_authors_publish() -> None:
    files = smollm2.tokenizer_files()
    assert files.end_token_ids == (0, 2)
    assert (files.begin_token_id, files.add_begin_token) == (1, False)
    assert files.special_tokens["eos_token"] == "<|im_end|>"
    assert "<|im_start|>assistant" in files.chat_template
