"""No text has fewer tokens than its bytes say; where that is not sure, nothing is said."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from typing import cast

import pytest
from headrace_gateway.text.bound import SHRINKS, Bound, bound_of
from headrace_gateway.text.errors import TextTooLong
from headrace_gateway.text.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st
from support import smollm2, toy_tokenizers

TEXTS = st.text() | st.text("\u2581 \u1fef\u212bhi\x04\r\u0301", max_size=60)


def file_of(data: bytes, **changed: object) -> bytes:
    return json.dumps({**json.loads(data), **changed}).encode()


def bound(data: bytes, vocabulary: int = 300) -> Bound | None:
    tokenizer = Tokenizer(data, vocabulary=vocabulary)
    spec = cast("Mapping[str, object]", json.loads(data))
    return bound_of(spec, [tokenizer.token_bytes(i) for i in range(vocabulary)])


@cache
def smollm2_bound() -> Bound:
    data = smollm2.tokenizer_files().files["tokenizer.json"]
    found = bound(data, smollm2.VOCABULARY)
    assert found is not None
    return found


def test_the_default_models_bound_is_its_longest_token() -> None:
    found = smollm2_bound()
    assert found.token_bytes == 81  # a line break and 80 spaces
    assert found.tokens(b" " * 81 * 1000) == 1000
    assert found.tokens(b"\x04" * 1000) == 0  # the model has no such byte


@given(TEXTS)
def test_no_text_of_the_default_model_has_fewer_tokens(text: str) -> None:
    tokens = len(smollm2.tokenizer().encode_with_control(text))
    assert smollm2_bound().tokens(text.encode()) <= tokens


@cache
def small(make: Callable[[], bytes], form: str | None) -> tuple[Bound, Tokenizer]:
    data = file_of(make(), normalizer=None if form is None else {"type": form})
    found = bound(data)
    assert found is not None
    return found, Tokenizer(data, vocabulary=300)


@given(TEXTS)
@pytest.mark.parametrize("form", [None, "NFC", "NFD"])
@pytest.mark.parametrize("make", [toy_tokenizers.byte_level, toy_tokenizers.sentencepiece])
def test_no_text_of_small_vocabularies_has_fewer_tokens(
    make: Callable[[], bytes], form: str | None, text: str
) -> None:
    found, tokenizer = small(make, form)
    assert found.tokens(text.encode()) <= len(tokenizer.encode_with_control(text))


def test_normal_forms_shrink_no_more_than_is_said() -> None:
    """Every character that they make, against the longest way to write its parts."""
    chars = (chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i < 0xE000)
    parts = {char: apart for char in chars if (apart := unicodedata.normalize("NFD", char)) != char}
    longest: dict[str, int] = {}
    for char, apart in parts.items():
        longest[apart] = max(longest.get(apart, len(apart.encode())), len(char.encode()))
    worst = 0.0
    for char, apart in parts.items():
        most = sum(longest.get(part, len(part.encode())) for part in apart)
        assert len(char.encode()) <= most  # so that no half-composed way is longer
        for made in (apart, unicodedata.normalize("NFC", char)):
            worst = max(worst, most / len(made.encode()))
    assert worst == 3.5
    assert worst <= SHRINKS


@pytest.mark.parametrize(
    "changed",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": ""}},
        {
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "NFC"},
                    {"type": "Strip", "strip_left": True, "strip_right": True},
                ],
            }
        },
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "Removed",
                "invert": False,
            }
        },
    ],
)
def test_nothing_is_said_of_what_may_leave_out_text(changed: Mapping[str, object]) -> None:
    assert bound(toy_tokenizers.byte_level()) == Bound(1)
    assert bound(file_of(toy_tokenizers.byte_level(), **changed)) is None


@cache
def swallowing(strip: str, special: bool) -> tuple[Bound, Tokenizer]:
    data = toy_tokenizers.byte_level([("<e>", special), ("word", False)], **{strip: True})
    found = bound(data)
    assert found is not None
    return found, Tokenizer(data, vocabulary=300)


SPACES = "".join(char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace())
PIECES = st.lists(st.sampled_from(["<e>", "word", "x", "\u8a9e", *SPACES, SPACES]), max_size=30)


@given(PIECES.map("".join))
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("strip", ["lstrip", "rstrip"])
def test_white_space_that_a_token_may_swallow_does_not_count(
    strip: str, special: bool, text: str
) -> None:
    found, tokenizer = swallowing(strip, special)
    assert found.tokens(text.encode()) <= len(tokenizer.encode_with_control(text))
    assert found.tokens(text.encode() + b"x" * 400) >= 100


def test_nothing_is_said_where_one_token_stands_for_all_that_is_unknown() -> None:
    assert bound(toy_tokenizers.unigram(), 9) is None


def test_only_what_a_normalizer_can_shorten_counts_for_less() -> None:
    found, _ = small(toy_tokenizers.byte_level, "NFC")
    assert found.tokens(b"x" * 8) == 8
    assert found.tokens("\u1fef\u1fef".encode() + b"xx") == 2


def test_a_space_mark_in_a_text_counts_as_a_space() -> None:
    found, _ = small(toy_tokenizers.sentencepiece, None)
    assert found.token_bytes == 5  # of "<unk>"
    assert found.tokens("\u2581".encode() * 8) == 2


def test_special_tokens_count_as_well() -> None:
    assert bound(toy_tokenizers.byte_level([("<|end|>", True)])) == Bound(7)


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized() -> None:
    tokenizer = Tokenizer(toy_tokenizers.byte_level([("<|end|>", True)]), vocabulary=300)
    assert len(tokenizer.encode_with_control("<|end|>" * 9, below=10)) == 9
    with pytest.raises(TextTooLong, match=r"length is 10 tokens\. .* has 10 or more"):
        tokenizer.encode_with_control("<|end|>" * 10, below=10)


def test_what_stands_in_for_a_character_counts_as_that() -> None:
    tokenizer = Tokenizer(toy_tokenizers.byte_level(), vocabulary=300)
    guarded, restore = "\U00100000" * 9, {0x100000: ord("<")}
    assert len(tokenizer.encode_with_control(guarded, restore=restore, below=10)) == 9
    with pytest.raises(TextTooLong, match="has 10 or more"):
        tokenizer.encode_with_control(guarded + "<", restore=restore, below=10)
