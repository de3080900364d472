"""Generated protobuf modules are what the protos say."""

from __future__ import annotations

from pathlib import Path

import gen_proto


def test_fresh_generation_equals_what_is_committed(tmp_path: Path) -> None:
    gen_proto.generate(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in gen_proto.OUT.glob("*.py*")}
    assert made == kept


def test_imports_are_absolute_within_our_package(tmp_path: Path) -> None:
    gen_proto.generate(tmp_path)
    for path in tmp_path.glob("*.py"):
        assert "from headrace.v1" not in path.read_text()
