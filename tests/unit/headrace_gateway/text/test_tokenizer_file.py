"""Whatever a ``tokenizer.json`` holds is read, or refused in words."""

from __future__ import annotations

import pytest
from headrace_gateway.text.errors import TokenizerRejected
from headrace_gateway.text.tokenizer_file import as_list, as_map, id_of, kinds, parse, parts


@pytest.mark.parametrize(("data", "why"), [(b"{", "is not JSON"), (b"[]", "is not a JSON object")])
def test_a_file_that_is_none_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(TokenizerRejected, match=why):
        parse(data)


def test_parts_of_sequences_in_sequences_are_listed() -> None:
    inner = {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, None, 5]}
    outer = {"type": "Sequence", "pretokenizers": [inner, {"type": "ByteLevel"}]}
    assert [part["type"] for part in parts(outer)] == ["Digits", "ByteLevel"]
    assert kinds(outer) == {"Digits", "ByteLevel"}
    assert parts(None) == parts({}) == []


def test_what_is_of_another_kind_is_taken_for_nothing() -> None:
    assert as_map([1]) == {}
    assert as_list({"a": 1}) == []
    assert id_of({"id": "7"}) == -1
