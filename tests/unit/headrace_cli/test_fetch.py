"""Bringing a model here from a hub on loopback: resumed, proved, and found whole without the hub."""

from __future__ import annotations

import random
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace

import pytest
from headrace_cli.errors import CommandFailed
from headrace_cli.fetch import run
from headrace_engine.model.loader.source import resolve
from support.hub import Hub, hub

WEIGHTS = random.Random(1).randbytes(1 << 16)
FILES = {
    "config.json": b'{"model_type": "llama"}\n',
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"the same weights in another form",
    "README.md": b"# tiny",
}
PINNED = f"hf://org/tiny@{'1' * 40}"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Hub]:
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    with hub(FILES) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        yield made


def quiet(_: str) -> None:
    pass


def test_what_an_engine_reads_is_downloaded_and_found_by_it(served: Hub) -> None:
    said: list[str] = []
    folder = run("hf://org/tiny@main", say=said.append)
    assert folder == resolve("hf://org/tiny@main")
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert any("model.safetensors: 65536 bytes, SHA-256 " in line for line in said)


def test_a_repository_of_packed_files_alone_is_refused_with_a_way_out(served: Hub) -> None:
    served.files.clear()
    served.files["tiny-q8_0.gguf"] = b"GGUF"
    served.files["tiny-q4_k_m.gguf"] = b"GGUF"
    with pytest.raises(CommandFailed, match=r"none of .*safetensors") as caught:
        run("hf://org/tiny@main", say=quiet)
    assert "download tiny-q4_k_m.gguf, or another, and give its path" in caught.value.hint


def test_a_download_that_broke_off_is_resumed(served: Hub) -> None:
    large = random.Random(2).randbytes(12 << 20)  # the client writes pieces of 10 MiB
    served.files["model.safetensors"] = large
    served.break_after["model.safetensors"] = 11 << 20
    folder = run("hf://org/tiny", say=quiet)
    assert (folder / "model.safetensors").read_bytes() == large
    assert f"GET {served.path('model.safetensors')} bytes={10 << 20}-" in served.asked


def test_a_pinned_model_that_is_whole_asks_nobody(served: Hub) -> None:
    folder = run(PINNED, say=quiet)
    served.asked.clear()
    assert run(PINNED, verify=True, say=quiet) == folder
    assert served.asked == []


def test_a_damaged_file_is_seen_and_fetched_again(served: Hub) -> None:
    folder = run(PINNED, say=quiet)
    path = folder / "model.safetensors"
    path.write_bytes(bytes([WEIGHTS[0] ^ 1]) + WEIGHTS[1:])
    assert run(PINNED, say=quiet) == folder  # its size is right: only --verify reads it
    assert run(PINNED, verify=True, say=quiet) == folder
    assert path.read_bytes() == WEIGHTS
    path.write_bytes(b"short")
    run(PINNED, say=quiet)
    assert path.read_bytes() == WEIGHTS


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_comes_damaged_is_refused_and_not_kept(served: Hub, name: str) -> None:
    served.damaged.add(name)
    with pytest.raises(CommandFailed, match=f"{name} came damaged"):
        run(PINNED, say=quiet)
    served.damaged.clear()
    folder = run(PINNED, say=quiet)
    assert (folder / name).read_bytes() == FILES[name]


def test_without_the_hub_what_is_whole_is_served_and_the_rest_is_not(
    served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    folder = run("hf://org/tiny", say=quiet)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert run("hf://org/tiny", say=said.append) == folder
    assert "cannot be reached" in said[-1]
    (folder / "config.json").resolve().unlink()
    with pytest.raises(CommandFailed, match="not whole"):
        run("hf://org/tiny", say=quiet)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("hf://org/other", "no such model"),
        ("hf://org/tiny@v9", "no revision v9"),
        ("hf://tiny", "expected hf://org/name@revision"),
        ("pkg://no_such_package/file", "is not installed"),
        ("/no/such/folder", "no such file or folder"),
    ],
)
def test_what_cannot_be_had_is_said(served: Hub, model: str, words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        run(model, say=quiet)


def test_a_full_volume_is_said_before_anything_is_fetched(
    served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def usage(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=1000)

    monkeypatch.setattr("shutil.disk_usage", usage)
    with pytest.raises(CommandFailed, match="free"):
        run(PINNED, say=quiet)
    assert not any("resolve" in line for line in served.asked)
