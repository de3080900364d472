"""Compiling and caching the kernels."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from headrace_engine.kernels import build
from headrace_engine.kernels.build import (
    Level,
    NativeUnavailable,
    built_library,
    default_cache_dir,
)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes one line, and counts how often it is asked to."""
    path = tmp_path / "bin" / "c++"
    path.parent.mkdir()
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo toy 1; exit 0; fi\n'
        f"echo run >> {tmp_path}/runs\n"
        'while [ "$1" != -o ]; do shift; done; echo library > "$2"\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    monkeypatch.setattr(build, "_COMPILERS", (str(path),))
    return path


def test_a_library_is_compiled_once_for_its_sources_and_compiler(
    compiler: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    first = built_library(cache)
    assert first.read_text() == "library\n"
    assert built_library(cache) == first
    assert (tmp_path / "runs").read_text() == "run\n"
    compiler.write_text(compiler.read_text().replace("toy 1", "toy 2"))
    assert built_library(cache) != first
    assert [path.suffix for path in (cache / "kernels").iterdir()] == [".so", ".so"]


def test_a_compiler_that_fails_is_quoted(compiler: Path, tmp_path: Path) -> None:
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] || { echo "no such flag" >&2; exit 3; }\n')
    with pytest.raises(NativeUnavailable, match="failed: no such flag"):
        built_library(tmp_path / "cache")
    assert not list((tmp_path / "cache" / "kernels").iterdir())


def test_no_compiler_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_COMPILERS", ("no-such-compiler",))
    with pytest.raises(NativeUnavailable, match=r"no C\+\+ compiler found"):
        built_library(tmp_path)


@pytest.mark.usefixtures("compiler")
def test_a_cache_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeUnavailable, match="cannot be written"):
        built_library(tmp_path / "file")


def test_the_cache_lies_in_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/xdg/headrace")


@pytest.mark.usefixtures("compiler")
def test_the_best_portable_library_that_the_processor_can_run_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_PREBUILT", tmp_path / "prebuilt")
    levels = (
        Level("best", ("-march=best",), frozenset({"avx2", "avx512f"})),
        Level("good", ("-march=good",), frozenset({"avx2"})),
        Level("any", ("-march=any",), frozenset()),
    )
    monkeypatch.setattr(build, "LEVELS", {platform.machine(): levels})
    assert build.prebuilt_library() is None
    made = build.build_portable()
    for abilities, expected in (("avx512f avx2", "best"), ("sse avx2", "good"), ("sse", "any")):
        monkeypatch.setattr(build, "_processor", lambda words=abilities: f"flags : {words}")
        found = build.prebuilt_library()
        assert found in made
        assert found is not None
        assert f"cpu-{expected}-" in found.name
        assert built_library(tmp_path / "cache") == found
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("compiler")
def test_a_portable_library_of_other_sources_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_PREBUILT", tmp_path / "prebuilt")
    build.build_portable()
    assert build.prebuilt_library() is not None
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "decoder.cpp").write_text("// newer\n")
    monkeypatch.setattr(build, "_SOURCES", sources)
    assert build.prebuilt_library() is None


def test_run_as_a_module_it_prints_the_path() -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    done = subprocess.run(
        [sys.executable, "-m", "headrace_engine.kernels.build"],
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )
    assert Path(done.stdout.strip()).is_file()


@pytest.mark.usefixtures("compiler")
def test_run_as_a_module_it_compiles_where_the_engine_will_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_ENGINE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(NativeUnavailable, match=f"{tmp_path}/file/kernels cannot be written"):
        build.main([])
