"""The import check sees what an installed member would fail on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import smoke


def import_all(folder: Path, *needs_torch: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", smoke.IMPORT_ALL, "demo_package", *needs_torch],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "demo_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "part.py").write_text("VALUE = 1\n")
    (folder / "__main__.py").write_text("raise SystemExit('must not run')\n")
    return folder


def test_every_module_is_imported_and_counted(package: Path) -> None:
    result = import_all(package.parent)
    assert result.returncode == 0, result.stderr
    assert "demo_package: 2 modules imported" in result.stdout


def test_undeclared_import_fails(package: Path) -> None:
    (package / "part.py").write_text("import surely_not_installed\n")
    assert import_all(package.parent).returncode != 0


def test_network_at_import_fails(package: Path) -> None:
    (package / "part.py").write_text(
        "import socket\nsocket.create_connection(('127.0.0.1', 9), timeout=1)\n"
    )
    result = import_all(package.parent)
    assert result.returncode != 0
    assert "the network was used" in result.stderr


def test_torch_may_be_missing_only_where_it_is_expected(package: Path) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    (package / "part.py").write_text(missing)
    assert import_all(package.parent).returncode != 0
    result = import_all(package.parent, "demo_package.part")
    assert result.returncode == 0
    assert "1 modules imported, 1 need torch" in result.stdout


def test_each_member_has_one_package() -> None:
    assert [smoke.package_of(member) for member in smoke.MEMBERS][:2] == [
        "headrace_contracts",
        "headrace_kit",
    ]
