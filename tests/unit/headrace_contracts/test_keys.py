"""Keys never collide, and what one script touches shares a hash slot."""

from __future__ import annotations

import inspect
import re
from itertools import product

from headrace_contracts import keys

FUNCTIONS = {
    name: function
    for name, function in vars(keys).items()
    if inspect.isfunction(function) and not name.startswith("_")
}


def key_of(name: str, *values: str) -> str:
    function = FUNCTIONS[name]
    return function(*values[: len(inspect.signature(function).parameters)])


def tag(key: str) -> str:
    """What Redis Cluster hashes: the first non-empty pair of braces, or the whole key."""
    found = re.search(r"\{([^}]+)\}", key)
    return found[1] if found else key


def test_every_key_begins_with_our_prefix() -> None:
    for name in FUNCTIONS:
        assert key_of(name, "a", "b", "c").startswith("hr:")


def test_keys_of_one_model_share_its_slot() -> None:
    of_a_model = [
        name
        for name, function in FUNCTIONS.items()
        if next(iter(inspect.signature(function).parameters)) == "model"
    ]
    assert len(of_a_model) > 8
    assert {tag(key_of(name, "smol", "1", "t")) for name in of_a_model} == {"smol"}


def test_keys_of_one_request_share_its_slot() -> None:
    assert {tag(f("r1")) for f in (keys.log, keys.state, keys.body)} == {"r1"}


def test_no_two_functions_make_the_same_key() -> None:
    made = [key_of(name, "x", "1", "y") for name in FUNCTIONS]
    made += [keys.MODELS, keys.GATEWAYS, keys.API_KEYS]
    assert len(set(made)) == len(made)


def test_work_streams_of_all_bands_and_tenants_differ() -> None:
    tenants = ["default", "acme", "acme:1", "1", ""]
    pairs = product(range(keys.BANDS), tenants)
    made = [keys.queue("m", band, tenant) for band, tenant in pairs]
    assert len(set(made)) == keys.BANDS * len(tenants)


def test_default_band_exists() -> None:
    assert 0 <= keys.DEFAULT_BAND < keys.BANDS
