"""Keys as text: made, parsed, and never mistaken."""

from __future__ import annotations

import pytest
from headrace_gateway.auth.tokens import (
    ALPHABET,
    check_adopted,
    check_pepper,
    digest,
    make_token,
    parse_token,
)
from hypothesis import given
from hypothesis import strategies as st

PEPPER = b"0123456789abcdef"


def test_a_made_key_is_parsed_back() -> None:
    text, token = make_token()
    assert parse_token(text.encode(), PEPPER) == token
    assert text.startswith(f"hr_{token.public_id}_")


def test_keys_differ_and_do_not_show_their_secret() -> None:
    text, token = make_token()
    assert make_token()[0] != text
    assert token.secret.decode() not in repr(token)


@given(st.integers(0, 70), st.sampled_from(ALPHABET))
def test_one_wrong_character_is_no_key_of_ours(position: int, char: str) -> None:
    text, _ = make_token()
    position %= len(text)
    wrong = text[:position] + char + text[position + 1 :]
    parsed = parse_token(wrong.encode(), PEPPER)
    assert wrong == text or parsed is None or not wrong.startswith("hr_")


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"hr_",
        b"short",
        b"caf\xe9 or longer",
        "🤖robots!".encode(),
        b"a" * 65536,
        b"with space",
    ],
)
def test_what_cannot_be_a_key_is_none(wrong: bytes) -> None:
    assert parse_token(wrong, PEPPER) is None


def test_a_key_cut_or_lengthened_is_none() -> None:
    text, _ = make_token()
    assert parse_token(text[:-1].encode(), PEPPER) is None
    assert parse_token(text.encode() + b"a", PEPPER) is None
    assert parse_token(text.encode() + b"\n", PEPPER) is None


def test_a_chosen_key_has_an_id_that_depends_on_the_pepper() -> None:
    mine, other = (parse_token(b"sk-test-123", pepper) for pepper in (PEPPER, b"x" * 16))
    assert mine is not None
    assert other is not None
    assert mine.public_id != other.public_id
    assert mine == parse_token(b"sk-test-123", PEPPER)
    assert digest(mine, PEPPER) != digest(other, b"x" * 16)


@pytest.mark.parametrize(
    "wrong", ["", "seven77", "hr_mine-mine", "has space", "ümlaut-key", "k\n" * 9]
)
def test_what_may_not_be_chosen_is_refused_with_a_reason(wrong: str) -> None:
    assert check_adopted(wrong)


def test_a_digest_needs_secret_id_and_pepper() -> None:
    _, token = make_token()
    _, other = make_token()
    made = {
        digest(token, PEPPER),
        digest(other, PEPPER),
        digest(type(token)(other.public_id, token.secret), PEPPER),
        digest(token, b"y" * 16),
    }
    assert len(made) == 4


def test_a_short_pepper_is_refused() -> None:
    assert check_pepper(b"p" * 16)
    with pytest.raises(ValueError, match="16"):
        check_pepper(b"p" * 15)
