"""``headrace-engine compile``: what it refuses, and what it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine import app, compiling
from headrace_engine.executor.cuda_ahead import Compiled, Rehearsal
from headrace_engine.kernels.gpu.card import Card
from headrace_kit.process import FAILED, OK, REFUSED


def test_every_card_is_compiled_for_with_the_settings_of_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Rehearsal, int]] = []

    def compile(rehearsal: Rehearsal, jobs: int) -> Compiled:
        asked.append((rehearsal, jobs))
        return Compiled(3, 40)

    monkeypatch.setattr(compiling, "compile_apart", compile)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    cards = ["--card", "sm_90:132", "--card", "sm_80:108"]
    more = ["--jobs", "3", "--max-batch", "16", "--cache-dir", str(tmp_path)]
    assert app.main(["compile", *cards, *more]) == OK
    assert [(r.card, r.slots, jobs) for r, jobs in asked] == [
        (Card(9, 0, 132), 16, 3),
        (Card(8, 0, 108), 16, 3),
    ]
    # What an engine with the same settings would use.
    assert {r.block_tokens for r, _ in asked} == {64}
    assert {r.folder for r, _ in asked} == {str(tmp_path / "triton")}
    assert "sm_80:108: 40 kernels compiled, 3 there" in capsys.readouterr().err


def test_the_folder_that_is_asked_for_goes_before_tritons_own_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []

    def compile(rehearsal: Rehearsal, jobs: int) -> Compiled:
        folders.append(rehearsal.folder)
        return Compiled(3, 40)

    monkeypatch.setattr(compiling, "compile_apart", compile)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "tritons"))
    card = ["--card", "sm_90:132"]
    assert compiling.main(card) == OK
    assert compiling.main([*card, "--output", str(tmp_path / "asked")]) == OK
    assert folders == [str(tmp_path / "tritons"), str(tmp_path / "asked")]


def test_what_cannot_be_compiled_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = ["--card", "sm_90:132", "--output", str(tmp_path)]
    assert compiling.main([*card, "--model", "/nowhere"]) == REFUSED
    assert "/nowhere: no such file or folder" in capsys.readouterr().err
    assert compiling.main([*card, "--block-tokens", "24"]) == REFUSED
    assert "power of two" in capsys.readouterr().err

    def broken(rehearsal: Rehearsal, jobs: int) -> Compiled:
        raise RuntimeError("not compiled")

    monkeypatch.setattr(compiling, "compile_apart", broken)
    assert compiling.main(card) == FAILED
    assert capsys.readouterr().err == "headrace-engine compile: not compiled\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--card", "h100"],
        *(["--card", "sm_90:132", "--jobs", n] for n in ("0", "-", "x", "65")),
    ],
)
def test_a_card_and_processes_must_be_such(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compiling.main(arguments)
    assert ended.value.code == 2
