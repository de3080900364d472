"""Prefix keys depend on everything that may not share a block, and on nothing else."""

from __future__ import annotations

import array

import pytest
from headrace_contracts.prefix_key import PrefixKey, fold, root_key
from hypothesis import given
from hypothesis import strategies as st


def root(
    weights_version: str = "w1",
    kv_dtype: str = "float32",
    tenant: str = "default",
    adapter: str = "",
    salt: bytes = b"",
) -> PrefixKey:
    return root_key(
        weights_version=weights_version,
        kv_dtype=kv_dtype,
        tenant=tenant,
        adapter=adapter,
        salt=salt,
    )


def ids(*tokens: int) -> bytes:
    return array.array("i", tokens).tobytes()


def test_key_has_sixteen_bytes_and_is_the_same_on_every_machine() -> None:
    assert root().hex() == "57afb9a29b14917bd367b15051a79f8f"
    assert fold(root(), ids(1, 2, 3)).hex() == "6b482b08b671cf9e6d916e632d81d0f3"
    assert len(root()) == len(fold(root(), b"")) == 16


def test_each_field_of_the_root_changes_the_key() -> None:
    made = {
        root(),
        root(weights_version="w2"),
        root(kv_dtype="float8"),
        root(tenant="acme"),
        root(adapter="a"),
        root(salt=b"s"),
    }
    assert len(made) == 6


fields = st.tuples(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))


@given(fields, fields)
def test_no_two_different_tuples_share_a_root(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    same = root(*one) == root(*other)
    assert same == (one == other)


def test_text_moved_between_neighbouring_fields_changes_the_key() -> None:
    assert root("ab", "c") != root("a", "bc")
    assert root(tenant="ab", adapter="") != root(tenant="a", adapter="b")


chains = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=4)


@given(chains, chains)
def test_chain_key_is_equal_exactly_for_equal_blocks(
    one: list[list[int]], other: list[list[int]]
) -> None:
    def chain(blocks: list[list[int]]) -> PrefixKey:
        key = root()
        for block in blocks:
            key = fold(key, ids(*block))
        return key

    assert (chain(one) == chain(other)) == (one == other)


def test_fingerprints_are_part_of_the_block_and_cannot_pass_for_tokens() -> None:
    assert fold(root(), ids(1), [b"a"]) != fold(root(), ids(1))
    assert fold(root(), ids(1), [b"ab", b"c"]) != fold(root(), ids(1), [b"a", b"bc"])
    assert fold(root(), ids(1), [ids(2)]) != fold(root(), ids(1, 2))
    assert fold(root(), ids(1), [b""]) != fold(root(), ids(1))


@pytest.mark.parametrize("tokens", [ids(), ids(0), ids(0, 0)])
def test_block_differs_from_its_parent(tokens: bytes) -> None:
    assert fold(root(), tokens) != root()
