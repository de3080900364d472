"""One version stands everywhere, or the check says where it does not."""

from __future__ import annotations

from pathlib import Path

from check_versions import problems_in


def workspace(root: Path, *, kit: str = "1.2.0", pin: str = "==1.2.0", log: str = "1.2.0") -> Path:
    for name, version, dependencies in (
        ("libs/contracts", "1.2.0", "[]"),
        ("libs/kit", kit, f'["headrace-contracts{pin}", "other>=3"]'),
    ):
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "x"\nversion = "{version}"\ndependencies = {dependencies}\n'
        )
    (root / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{log}]\n")
    return root


def chart(root: Path, version: str) -> None:
    folder = root / "charts/headrace"
    folder.mkdir(parents=True)
    (folder / "Chart.yaml").write_text(f"version: {version}\nappVersion: '{version}'\n")


def test_agreement_is_silent(tmp_path: Path) -> None:
    root = workspace(tmp_path)
    chart(root, "1.2.0")
    assert problems_in(root) == []


def test_member_of_another_version_is_named(tmp_path: Path) -> None:
    assert "libs/kit/pyproject.toml: version 1.3.0" in problems_in(workspace(tmp_path, kit="1.3.0"))


def test_loose_pin_on_our_own_package_is_named(tmp_path: Path) -> None:
    (problem,) = problems_in(workspace(tmp_path, pin=">=1.0"))
    assert "headrace-contracts>=1.0 is not ==1.2.0" in problem


def test_changelog_without_the_version_is_named(tmp_path: Path) -> None:
    assert problems_in(workspace(tmp_path, log="1.1.0")) == ["CHANGELOG.md has no section [1.2.0]"]


def test_chart_of_another_version_is_named(tmp_path: Path) -> None:
    root = workspace(tmp_path)
    chart(root, "1.1.0")
    assert len(problems_in(root)) == 2
