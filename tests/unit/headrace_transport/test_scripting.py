"""The scripts as they are sent."""

from __future__ import annotations

import re
from hashlib import sha1
from math import prod

from headrace_contracts.limits import INLINE_RECORD_BYTES, MAX_CHOICES, MAX_RECORD_BYTES
from headrace_transport.options import WireOptions
from headrace_transport.scripting import model_arguments, model_keys, script


def test_script_is_named_by_its_checksum() -> None:
    found = script("depth")
    assert found.sha == sha1(found.text.encode(), usedforsecurity=False).hexdigest()
    assert script("depth") is found


def test_prelude_stands_between_flags_and_script() -> None:
    text = script("finish").text
    assert text.startswith("#!lua flags=allow-oom\n-- Prelude")
    assert text.index("local function end_request") < text.index("-- Ends a request that")
    assert "prelude common" not in script("beat").text


def test_keys_and_arguments_are_those_that_the_prelude_reads() -> None:
    text = script("claim").text
    numbers = {int(number) for number in re.findall(r"KEYS\[(\d+)\]", text)}
    assert numbers == set(range(1, len(model_keys("m")) + 1))
    arguments = model_arguments("m", WireOptions())
    fixed = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", text)}
    assert fixed == set(range(1, len(arguments) + 1))
    assert f"for i = {len(arguments) + 1}, #ARGV do A[i - {len(arguments)}]" in text


def test_scripts_believe_as_many_choices_as_a_request_may_have() -> None:
    assert f" n = {MAX_CHOICES}, " in script("claim").text
    assert f" n > {MAX_CHOICES} " in script("append_log").text


def test_scripts_believe_records_as_large_as_those_that_are_queued() -> None:
    bounds = re.findall(r"^local (INLINE_MAX|RECORD_MAX) = ([0-9* ]+)$", script("claim").text, re.M)
    assert {name: prod(map(int, size.split(" * "))) for name, size in bounds} == {
        "INLINE_MAX": INLINE_RECORD_BYTES,
        "RECORD_MAX": MAX_RECORD_BYTES,
    }


def test_keys_of_a_model_share_its_hash_tag() -> None:
    assert all("{m/x}" in key for key in model_keys("m/x")[:-1])
    assert len(set(model_keys("m/x"))) == len(model_keys("m/x"))
