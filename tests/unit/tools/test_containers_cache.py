"""What asks a mirror is tried again, and the last refusal is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from containers import cache

TRY = 'echo x >>"$0"; [ "$(wc -l <"$0")" -ge "$1" ] && echo whole || { echo no room >&2; exit 3; }'
"""Succeeds at the try whose number is ``$1``."""


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_PAUSES_S", (0.0, 0.0))


def test_what_fails_is_tried_again(tmp_path: Path) -> None:
    assert cache.fetch(["sh", "-c", TRY, tmp_path / "tries", "3"]) == "whole\n"


def test_what_fails_too_often_ends_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"failed \(3\)\n(.*\n)*no room"):
        cache.fetch(["sh", "-c", TRY, tmp_path / "tries", "4"])
    assert (tmp_path / "tries").read_text() == "x\nx\nx\n"
