"""Every family of keys has the type that its words say, or is none of those that are emptied."""

from __future__ import annotations

import inspect
from typing import Final

import pytest
from headrace_contracts import keys
from headrace_contracts.key_types import KeyType, type_of

WORDS: Final[dict[str, KeyType]] = {
    "Hash": "hash",
    "List": "list",
    "Set": "set",
    "Sorted set": "zset",
    "Stream": "stream",
    "String": "string",
}
NAMES: Final = ("a:b", "1", "c:d")
"""Names as awkward as they may be."""
STAND_FOR_THEMSELVES: Final = {"api_key", "blob", "body", "card", "log", "state"}
FUNCTIONS: Final = {
    name: function
    for name, function in vars(keys).items()
    if inspect.isfunction(function) and name != "limits"  # a prefix, no key
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_key_has_the_type_that_its_words_say(name: str) -> None:
    function = FUNCTIONS[name]
    key = function(*NAMES[: len(inspect.signature(function).parameters)])
    kind = WORDS[(inspect.getdoc(function) or "").partition(":")[0].partition(",")[0]]
    assert type_of(key) == (None if name in STAND_FOR_THEMSELVES else kind)


def test_keys_of_whole_deployments() -> None:
    for key in (keys.MODELS, keys.GATEWAYS, keys.FORGOTTEN_KEYS):
        assert type_of(key) == "zset"
    assert type_of(keys.SWEEPER) == "string"
    assert type_of(keys.API_KEYS) is None  # it says which keys there are, and nothing else does


@pytest.mark.parametrize(
    "key", ["", "hr:", "hr:model", "hr:{}:queued", "xhr:models", "hr:models2", "hr:{m}:queued\n"]
)
def test_what_is_no_key_of_ours_has_no_type(key: str) -> None:
    assert type_of(key) is None
