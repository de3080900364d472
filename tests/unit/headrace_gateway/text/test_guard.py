"""Guards replace one for one and give everything back."""

from __future__ import annotations

import pytest
from headrace_gateway.text.errors import PromptRejected
from headrace_gateway.text.guard import GuardFactory
from headrace_gateway.text.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st
from support import toy_tokenizers

TOKENIZER = Tokenizer(
    toy_tokenizers.byte_level([("<|end|>", True), ("[INST]", True), ("STOP", True)]), vocabulary=259
)
FACTORY = GuardFactory(TOKENIZER, "{{ '</think>' }}")
ANY_TEXT = st.text() | st.lists(st.sampled_from(["<|end|>", "[INST]", "<", "STOP", "ST"])).map(
    "".join
)


@given(ANY_TEXT)
def test_guarded_text_holds_no_control_token_and_comes_back(text: str) -> None:
    guard = FACTORY.guard([text])
    for guarded in (guard.text(text), guard.answer(text)):
        assert len(guarded) == len(text)
        assert guarded.translate(guard.restore) == text
        assert not any(token in guarded for token in TOKENIZER.control_tokens)


def test_known_markup_stays_in_an_answer() -> None:
    guard = FACTORY.guard([])
    assert "</think>" in guard.answer("a</think><|end|>")
    assert "</think>" not in guard.text("a</think>")


def test_the_role_stays_and_every_other_text_is_guarded() -> None:
    guard = FACTORY.guard([])
    message = guard.message({"role": "user", "content": "<", "tool_calls": [{"<": ["<", 1, None]}]})
    sign = guard.text("<")
    assert message == {"role": "user", "content": sign, "tool_calls": [{sign: [sign, 1, None]}]}


def test_text_that_uses_every_private_character_is_refused() -> None:
    with pytest.raises(PromptRejected, match="private"):
        FACTORY.guard(["".join(map(chr, range(0x100000, 0x10FFFE)))])
