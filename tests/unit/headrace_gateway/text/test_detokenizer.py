"""The detokenizer: whatever the tokens and however they are cut, the text is the same."""

from __future__ import annotations

from headrace_gateway.text.detokenizer import Detokenizer, decode
from headrace_gateway.text.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st
from support import smollm2, toy_tokenizers
from support.cuts import cut

MELTING = [10813, 121, 250]
TOY = Tokenizer(toy_tokenizers.byte_level([("<e>", True)]), vocabulary=257)
BYTE_ID = {TOY.token_bytes(i)[0]: i for i in range(256)}


def ids_of(data: bytes) -> list[int]:
    return [BYTE_ID[byte] for byte in data]


@given(st.lists(st.integers(0, 256), max_size=40), st.lists(st.integers(0, 40)))
def test_the_pieces_of_any_bytes_join_to_the_text_of_all(ids: list[int], at: list[int]) -> None:
    detokenizer = Detokenizer(TOY)
    pieces = [detokenizer.push(part) for part in cut(ids, at)]
    pieces.append(detokenizer.push((), final=True))
    assert "".join(pieces) == decode(TOY, ids)
    for piece in pieces:
        piece.encode()  # every delta is valid UTF-8


@given(st.lists(st.integers(0, smollm2.VOCABULARY - 1), max_size=30), st.lists(st.integers(0, 30)))
def test_the_pieces_of_any_tokens_of_the_default_model_join(ids: list[int], at: list[int]) -> None:
    tokenizer = smollm2.tokenizer()
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(part) for part in cut(ids, at)]
    pieces.append(detokenizer.push((), final=True))
    assert "".join(pieces) == decode(tokenizer, ids)


@given(st.text(), st.lists(st.integers(0, 200)))
def test_valid_text_never_shows_a_replacement_character(text: str, at: list[int]) -> None:
    detokenizer = Detokenizer(TOY)
    pieces = [detokenizer.push(part) for part in cut(ids_of(text.encode()), at)]
    assert "".join(pieces) == text
    assert detokenizer.push((), final=True) == ""


def test_a_whole_emoji_arrives_in_one_delta() -> None:
    detokenizer = Detokenizer(smollm2.tokenizer())
    assert [detokenizer.push([token]) for token in MELTING] == ["", "", "\U0001fae0"]


def test_a_character_cut_at_the_end_is_replaced_once() -> None:
    detokenizer = Detokenizer(smollm2.tokenizer())
    assert detokenizer.push(MELTING[:2]) == ""
    assert detokenizer.push((), final=True) == "\ufffd"


def test_bytes_that_never_become_a_character_are_not_held_for_ever() -> None:
    detokenizer = Detokenizer(smollm2.tokenizer())
    pieces = [detokenizer.push([MELTING[0]]) for _ in range(6)]
    assert pieces == ["", *["\ufffd"] * 5]
    assert detokenizer.push((), final=True) == "\ufffd"


def test_special_tokens_are_left_out_even_inside_a_character() -> None:
    first, *rest = ids_of("\u00e9".encode())
    detokenizer = Detokenizer(TOY)
    assert detokenizer.push([first, 256]) == ""
    assert detokenizer.push(rest) == "\u00e9"
