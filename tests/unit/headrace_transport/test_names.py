"""Names that may enter keys."""

from __future__ import annotations

import pytest
from headrace_transport.errors import RecordRejected
from headrace_transport.names import check_model, check_name, check_process
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("name", ["a", "chatcmpl-0.1", "t_1:x", "x" * 64])
def test_ordinary_names_pass(name: str) -> None:
    assert check_name("a tenant", name) == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a/b", "a b", "a\n", "{a}", "a%s", "é", "a\x00"])
def test_other_names_are_refused_with_what_they_are(name: str) -> None:
    with pytest.raises(RecordRejected, match="a tenant must be 1 to 64"):
        check_name("a tenant", name)


def test_long_name_is_not_told_whole() -> None:
    with pytest.raises(RecordRejected) as refused:
        check_name("a request id", "y" * 9000)
    assert len(str(refused.value)) < 200


def test_process_may_be_a_host_name_and_a_nonce() -> None:
    pod = "x" * 63 + "-0123abcd"
    assert check_process("an engine", pod) == pod
    for bad in ("", "x" * 129, "a b", "a/b", "{a}"):
        with pytest.raises(RecordRejected, match="an engine must be 1 to 128"):
            check_process("an engine", bad)


def test_model_may_have_an_organisation_and_a_revision() -> None:
    assert check_model("org/name@v1.0+q4") == "org/name@v1.0+q4"
    for bad in ("m{x}", "m x", "", "m" * 129, "m%s"):
        with pytest.raises(RecordRejected):
            check_model(bad)


@given(st.text(max_size=80))
def test_no_name_that_passes_can_break_a_key_or_a_pattern(name: str) -> None:
    try:
        check_name("x", name)
    except RecordRejected:
        return
    assert not set(name) & set("{}%*? \r\n\0/")
    assert name.isascii()
