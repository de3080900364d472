"""The notice lists whatever a running service may load."""

from __future__ import annotations

import tomllib
from email.message import Message

import notice
import pytest
from setup_env import MEMBERS


def test_every_pinned_package_is_listed() -> None:
    text = (notice.ROOT / "NOTICE").read_text()
    for name in notice.pinned():
        assert f"\n{name}: " in text, f"{name} is not in NOTICE: run `make lock`"
    assert "SmolLM2-135M-Instruct" in text


@pytest.mark.parametrize("member", MEMBERS)
def test_every_member_carries_licence_and_notice_into_its_wheel(member: str) -> None:
    folder = notice.ROOT / member
    for name in ("LICENSE", "NOTICE"):
        same = (folder / name).read_bytes() == (notice.ROOT / name).read_bytes()
        assert same, f"{member}/{name} is not the root's: run `make lock`"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["license-files"] == ["LICENSE", "NOTICE"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("License-Expression", "MIT"), ("License", "whole text")], "MIT"),
        ([("Classifier", "License :: OSI Approved :: BSD License")], "BSD License"),
        ([("License", "BSD\nRedistribution and use")], "BSD"),
        ([], "see the package"),
    ],
)
def test_licence_is_read_from_what_the_package_states(
    fields: list[tuple[str, str]], expected: str
) -> None:
    message = Message()
    for name, value in fields:
        message[name] = value
    assert notice.licence_of(message) == expected  # pyright: ignore[reportArgumentType]
