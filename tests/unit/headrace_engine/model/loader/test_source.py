"""Where model arguments point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.source import resolve


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "toy_model_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "weights.gguf").write_bytes(b"x")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return folder


def test_a_file_of_a_package_is_found_without_importing_it(package: Path) -> None:
    assert resolve("pkg://toy_model_package/weights.gguf") == package / "weights.gguf"
    assert "toy_model_package" not in sys.modules


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("pkg://toy_model_package/other.gguf", "holds no other.gguf"),
        ("pkg://no_such_package_here/w.gguf", "the package no_such_package_here is not installed"),
        ("pkg://toy_model_package/../secret", "expected pkg://package/file"),
        ("pkg://toy_model_package.inner/w.gguf", "must be a top-level one"),
        ("pkg://toy_model_package", "expected pkg://package/file"),
        ("s3://bucket/model", "unknown kind of model"),
        ("/no/such/folder", "no such file or folder"),
        ("hf://only-a-name", "expected hf://org/name@revision"),
        ("hf://org/name@" + "r" * 5000, "expected hf://org/name@revision"),
        ("f" * 5000, "File name too long"),
    ],
)
@pytest.mark.usefixtures("package")
def test_what_is_not_there_is_refused_in_words(model: str, words: str) -> None:
    with pytest.raises(ModelRejected) as caught:
        resolve(model)
    assert words in str(caught.value)
    assert model in str(caught.value)


def test_a_hub_name_is_looked_up_in_the_local_cache_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ModelRejected, match=r"not in the local cache .*headrace fetch hf://org/name"
    ):
        resolve("hf://org/name")
    folder = tmp_path / "models--org--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc123\n")
    (folder / "snapshots" / "abc123").mkdir(parents=True)
    assert resolve("hf://org/name") == folder / "snapshots" / "abc123"
    assert resolve("hf://org/name@main") == folder / "snapshots" / "abc123"
    assert resolve("hf://org/name@abc123") == folder / "snapshots" / "abc123"
