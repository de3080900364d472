"""The layout check sees shadowed modules, empty files and missing tests."""

from __future__ import annotations

from pathlib import Path

import check_layout
import pytest


def module(root: Path, name: str, text: str = "X = 1\n") -> Path:
    path = root / "libs/demo/src/headrace_demo" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


LOGIC = "def f(x: int) -> int:\n" + "    x += 1\n" * 20 + "    return x\n"
PROTOCOL = "class P:\n" + '    def f(self) -> int:\n        """Doc."""\n        ...\n' * 20


def test_module_beside_a_package_of_its_name_is_found(tmp_path: Path) -> None:
    paths = [module(tmp_path, "a.py"), module(tmp_path, "a/__init__.py"), module(tmp_path, "b.py")]
    (problem,) = check_layout.shadowed(paths)
    assert "headrace_demo/a.py" in problem


def test_empty_file_is_found(tmp_path: Path) -> None:
    assert len(check_layout.empty([module(tmp_path, "a.py", " \n"), module(tmp_path, "b.py")])) == 1


def test_module_with_logic_needs_a_test_and_declarations_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_layout, "ROOT", tmp_path)
    paths = [
        module(tmp_path, "part/logic.py", LOGIC),
        module(tmp_path, "part/_hidden.py", LOGIC),
        module(tmp_path, "seam.py", PROTOCOL),
    ]
    assert check_layout.without_test(paths) == [
        "headrace_demo/part/logic.py: has no tests/unit/headrace_demo/part/test_logic.py",
        "headrace_demo/part/_hidden.py: has no tests/unit/headrace_demo/part/test_hidden.py",
    ]
    test = tmp_path / "tests/unit/headrace_demo/part/test_logic.py"
    test.parent.mkdir(parents=True)
    test.write_text("...")
    assert len(check_layout.without_test(paths)) == 1


def test_allowed_exception_that_is_no_longer_needed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_layout, "ROOT", tmp_path)
    monkeypatch.setattr(
        check_layout, "UNTESTED", {"headrace_demo/a.py": "a*.md", "headrace_demo/gone.py": "b*.md"}
    )
    path = module(tmp_path, "a.py", LOGIC)
    assert check_layout.without_test([path]) == []
    (tmp_path / "a1.md").write_text("...")
    assert check_layout.dead_entries() == [
        "UNTESTED names headrace_demo/gone.py, which does not exist",
        "UNTESTED[headrace_demo/gone.py] names b*.md, which does not exist",
    ]
    test = tmp_path / "tests/unit/headrace_demo/test_a.py"
    test.parent.mkdir(parents=True)
    test.write_text("...")
    assert "remove it from UNTESTED" in check_layout.without_test([path])[0]
