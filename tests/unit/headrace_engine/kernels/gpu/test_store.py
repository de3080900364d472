"""Compiled kernels are found by their place in a folder, and what came with the package goes first."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.kernels.gpu import card
from headrace_engine.kernels.gpu.store import (
    KernelStore,
    counts,
    keep_kernels,
    kernel_folder,
    know_triton,
)
from triton import knobs  # pyright: ignore[reportMissingTypeStubs]
from triton.runtime.cache import triton_key  # pyright: ignore[reportMissingTypeStubs]

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's folder, and none of the package."""
    # What is set is else set in the environment too, where it would stay.
    monkeypatch.setattr(knobs, "propagate_env", False)
    monkeypatch.setattr(knobs.cache, "dir", "before")
    monkeypatch.setattr(knobs.cache, "manager_class", None)
    monkeypatch.setattr(knobs.compilation, "listener", None)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.delenv("TRITON_CACHE_MANAGER", raising=False)
    monkeypatch.setattr(card, "PREBUILT", tmp_path / "package")
    keep_kernels(tmp_path / "own")
    return tmp_path / "own"


def compiled(key: str) -> None:
    """What Triton does once it has compiled a kernel."""
    store = KernelStore(key)
    paths = {name: store.put(b"binary", name) for name in ("k.cubin", "k.json")}
    store.put_group("k.json", paths)


def found(key: str) -> dict[str, str] | None:
    """What Triton asks before it compiles one."""
    return KernelStore(key).get_group("k.json")


def test_the_environment_says_where_kernels_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs.cache, "dir", "elsewhere")
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    keep_kernels(tmp_path)
    assert knobs.cache.dir == "elsewhere"


def test_a_start_with_a_folder_of_its_own_keeps_kernels_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another start came before it in the same process."""
    monkeypatch.setattr(knobs, "propagate_env", True)  # as it is outside tests
    for name in ("first", "second"):
        keep_kernels(tmp_path / name)
        assert kernel_folder() == tmp_path / name
    assert "TRITON_CACHE_DIR" not in os.environ, "what is there is the user's"
    assert knobs.propagate_env


def test_tritons_name_is_computed_ahead_for_every_key() -> None:
    triton_key.cache_clear()
    know_triton().join()
    assert triton_key.cache_info().currsize == 1
    triton_key()
    assert triton_key.cache_info().hits == 1


def test_a_module_that_cannot_be_built_is_told_in_words(
    own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "main.c"
    source.write_text("int main;")
    monkeypatch.setenv("CC", "/bin/false")
    build = knobs.build.impl
    assert build is not None
    with pytest.raises(ModelRejected, match=r"module launcher.*/bin/false.*takes a C compiler"):
        build("launcher", str(source), str(tmp_path), [], [], [])
    assert not list(own_folder.rglob("*.so"))
    assert knobs.build.impl is not None, "the next one is looked up as well"


def test_what_was_compiled_is_found_where_its_folder_was_moved(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found("A") is None
    compiled("A")
    moved = own_folder.with_name("moved")
    shutil.move(own_folder, moved)
    monkeypatch.setattr(knobs.cache, "dir", str(moved))
    assert found("A") == {name: str(moved / "A" / name) for name in ("k.cubin", "k.json")}


def test_the_package_goes_first_and_is_not_written(own_folder: Path, tmp_path: Path) -> None:
    compiled("A")
    package = tmp_path / "package"
    shutil.move(own_folder, package)
    paths = found("A")
    assert paths is not None
    assert all(Path(path).parent == package / "A" for path in paths.values())
    assert not (own_folder / "A").exists()
    # What is damaged there is compiled again, beside what this machine keeps.
    (package / "A" / "__grp__k.json").write_text("{")
    assert found("A") is None
    before = sorted((package / "A").iterdir())
    compiled("A")
    assert sorted((package / "A").iterdir()) == before
    # The next process finds that, and does not compile once more.
    assert found("A") == {name: str(own_folder / "A" / name) for name in ("k.cubin", "k.json")}


def test_a_group_that_is_cut_off_is_not_found(own_folder: Path) -> None:
    compiled("A")
    (own_folder / "A" / "k.cubin").unlink()
    assert found("A") is None


def test_what_was_found_and_compiled_is_counted() -> None:
    listener = knobs.compilation.listener
    assert listener is not None
    before = (counts.found, counts.compiled)
    for hit in (True, True, False):
        listener(src=None, metadata={}, metadata_group={}, times=None, cache_hit=hit)  # pyright: ignore[reportArgumentType]
    assert (counts.found - before[0], counts.compiled - before[1]) == (2, 1)
