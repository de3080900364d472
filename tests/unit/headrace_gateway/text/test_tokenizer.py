"""The gateway's tokenizer: plain text, control tokens, and the bytes behind every id."""

from __future__ import annotations

import json
import threading
import time

import pytest
import tokenizers
from headrace_gateway.text.errors import PromptRejected, TokenizerRejected
from headrace_gateway.text.tokenizer import Tokenizer
from headrace_gateway.text.tokenizer_file import TOKENIZER_FILE
from hypothesis import given
from hypothesis import strategies as st
from support import smollm2, toy_tokenizers

SPECIAL = 17
"""The default model's special tokens have the ids below."""
CONTROL = [("<|end|>", True), ("<think>", False), ("\t\t", False)]


def byte_level() -> Tokenizer:
    return Tokenizer(toy_tokenizers.byte_level(CONTROL), vocabulary=300)


def test_plain_text_never_becomes_a_control_token_and_parsed_text_does() -> None:
    tokenizer = byte_level()
    assert len(tokenizer.encode_text("a<|end|>")) == 8
    assert tokenizer.encode_with_control("a<|end|>") == [*tokenizer.encode_text("a"), 256]


def test_markup_is_a_control_token_and_white_space_is_not() -> None:
    tokenizer = byte_level()
    assert tokenizer.control_tokens == {"<|end|>", "<think>"}
    assert tokenizer.special_tokens == {"<|end|>"}
    assert len(tokenizer.encode_text("<think>")) == 7
    assert tokenizer.encode_text("\t\t") == [258]
    assert tokenizer.encode_with_control("\t\t<think>") == [258, 257]


def test_the_longest_control_token_wins() -> None:
    data = toy_tokenizers.byte_level([("<e>", True), ("<e><e>", True)])
    tokenizer = Tokenizer(data, vocabulary=258)
    assert tokenizer.encode_with_control("<e><e><e>") == [257, 256]


@pytest.mark.timeout(20)
def test_many_control_tokens_and_near_misses_take_no_longer() -> None:
    reserved = [(f"<|reserved_{i}|>", True) for i in range(1000)]
    tokenizer = Tokenizer(toy_tokenizers.byte_level(reserved), vocabulary=1256)
    text = "<|reserved_9" * 50_000
    assert len(tokenizer.encode_with_control(text)) == len(text)
    assert tokenizer.encode_with_control("<|reserved_999|>") == [1255]


@pytest.mark.timeout(20)
def test_long_white_space_beside_a_swallowing_token_takes_no_longer() -> None:
    data = toy_tokenizers.byte_level([("<e>", True)], lstrip=True)
    tokenizer = Tokenizer(data, vocabulary=257)
    assert len(tokenizer.encode_with_control(" " * 200_000)) == 200_000
    assert tokenizer.encode_with_control("a" + " " * 200_000 + "<e>")[1:] == [256]


def test_other_threads_go_on_while_a_long_text_is_encoded() -> None:
    tokenizer = byte_level()
    encoded: list[int] = []
    worker = threading.Thread(target=lambda: encoded.append(len(tokenizer.encode_text(text))))
    text = "x" * 500_000
    turns = 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        turns += not encoded
    assert encoded == [len(text)]
    assert turns >= 10  # with the interpreter's lock held it is two or three


@given(st.lists(st.sampled_from(["<a>", "<ab>", "<a><a>", "<a", "b>", "x", " "]), max_size=8))
def test_control_tokens_are_found_as_the_library_finds_them(parts: list[str]) -> None:
    data = toy_tokenizers.byte_level([("<a>", True), ("<ab>", True), ("<a><a>", True)])
    text = "".join(parts)
    wanted = tokenizers.Tokenizer.from_buffer(data).encode(text, add_special_tokens=False).ids
    assert Tokenizer(data, vocabulary=259).encode_with_control(text) == wanted


def test_a_control_token_swallows_white_space_where_the_file_says_so() -> None:
    data = toy_tokenizers.byte_level([("<e>", True)], rstrip=True)
    tokenizer = Tokenizer(data, vocabulary=257)
    a, b = tokenizer.encode_text("a"), tokenizer.encode_text(" b")
    assert tokenizer.encode_with_control("a<e> \n b") == [*a, 256, b[1]]


def test_only_the_start_of_a_text_gets_the_space_mark() -> None:
    tokenizer = Tokenizer(toy_tokenizers.sentencepiece(), vocabulary=264)
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode_with_control("hi")] == [b" hi"]
    after = tokenizer.encode_with_control("<s>hi")
    assert [tokenizer.token_bytes(i) for i in after] == [b"<s>", b"hi"]


def test_fallback_bytes_and_space_marks_are_turned_into_bytes() -> None:
    tokenizer = Tokenizer(toy_tokenizers.sentencepiece(), vocabulary=264)
    ids = tokenizer.encode_text("\u00e9")
    assert b"".join(map(tokenizer.token_bytes, ids)) == b" \xc3\xa9"
    assert tokenizer.token_text(3 + 0xC3) == "\ufffd"


def test_a_control_token_that_plain_text_reaches_is_taken_apart() -> None:
    tokenizer = Tokenizer(toy_tokenizers.unigram(), vocabulary=9)
    assert 1 not in tokenizer.encode_text("a</s>b</s>")
    assert tokenizer.encode_with_control("a</s>")[-1] == 1
    ids = tokenizer.encode_text("a</s>b")
    assert b"".join(map(tokenizer.token_bytes, ids)) == b"a</s>b"


@pytest.mark.parametrize("text", ["cut \ud83d", "\ude00 cut"])
def test_a_lone_surrogate_is_refused_with_its_place(text: str) -> None:
    for encode in (byte_level().encode_text, byte_level().encode_with_control):
        with pytest.raises(PromptRejected, match=r"lone surrogate, U\+D[8E]"):
            encode(text)


@given(st.text())
def test_tokens_join_to_the_text_but_for_bytes_that_the_model_has_no_token_for(text: str) -> None:
    tokenizer = smollm2.tokenizer()
    known = {tokenizer.token_bytes(i) for i in range(smollm2.VOCABULARY)}
    unknown = bytes(byte for byte in range(256) if bytes((byte,)) not in known)
    assert len(unknown) < 40
    ids = tokenizer.encode_text(text)
    raw = b"".join(map(tokenizer.token_bytes, ids))
    assert raw == text.encode().translate(None, delete=unknown)
    assert min(ids, default=SPECIAL) >= SPECIAL


@given(st.lists(st.sampled_from(["<|im_end|>", "<|", "im_start|>", "a", " ", "7", "\n"])))
def test_control_text_as_plain_text_joins_to_the_text_too(parts: list[str]) -> None:
    tokenizer = smollm2.tokenizer()
    text = "".join(parts)
    ids = tokenizer.encode_text(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert min(ids, default=SPECIAL) >= SPECIAL


def test_the_default_model_has_the_facts_that_its_authors_publish() -> None:
    tokenizer = smollm2.tokenizer()
    assert tokenizer.encode_text("hello") == [28120]
    assert tokenizer.encode_text(" red,") == [2382, 28]
    assert tokenizer.encode_text("\U0001fae0") == [10813, 121, 250]
    assert [tokenizer.token_bytes(i) for i in (10813, 121, 250)] == [b"\xf0\x9f", b"\xab", b"\xa0"]
    assert tokenizer.encode_with_control("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert len(tokenizer.encode_text("12345")) == 5
    assert tokenizer.shown_bytes([28120, 2, 28]) == b"hello,"


def test_unused_rows_of_the_model_have_no_bytes() -> None:
    assert byte_level().token_bytes(299) == b""


def test_a_tokenizer_larger_than_the_model_is_refused() -> None:
    with pytest.raises(TokenizerRejected, match="but the model has 10 rows"):
        Tokenizer(toy_tokenizers.byte_level(), vocabulary=10)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"model":{"type":"Nonsense"}}', "cannot be loaded"),
        (b'{"added_tokens":[{"content":"x"}]}', "cannot be loaded"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(TokenizerRejected, match=words):
        Tokenizer(data, vocabulary=300)


def test_a_word_level_tokenizer_is_refused_by_its_kind() -> None:
    spec = json.loads(toy_tokenizers.byte_level())
    spec["pre_tokenizer"] = spec["decoder"] = None
    with pytest.raises(TokenizerRejected, match="'BPE'"):
        Tokenizer(json.dumps(spec).encode(), vocabulary=300)


def test_a_card_without_the_file_is_refused() -> None:
    with pytest.raises(TokenizerRejected, match=TOKENIZER_FILE):
        Tokenizer.from_files({"other": b""}, vocabulary=1)
