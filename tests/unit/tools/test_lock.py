"""Compiled sets come from what the members declare, and fit one another."""

from __future__ import annotations

import re

import lock


def pins(name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (lock.OUT / name).read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^ ;]+)(?: ;.*)?", line)
            assert match, f"{name}: {line!r} is not a plain pin"
            found[match[1].lower()] = match[2]
    return found


def test_our_own_packages_are_not_asked_of_a_registry() -> None:
    asked = lock.external_dependencies()
    assert asked
    assert not [line for line in asked if line.startswith("headrace")]


def test_every_declared_dependency_is_pinned() -> None:
    pinned = pins("runtime.txt")
    for line in lock.external_dependencies():
        name = re.split(r"[\[><=;! ]", line)[0].lower().replace("_", "-")
        assert name in pinned, f"{name} is not in runtime.txt: run `make lock`"


def test_sets_agree_on_every_package_they_share() -> None:
    runtime = pins("runtime.txt")
    for name in ("dev.txt", "peers.txt", "torch.txt"):
        for package, version in pins(name).items():
            assert runtime.get(package, version) == version, f"{name}: {package}"


def test_torch_is_in_no_compiled_set() -> None:
    for name in ("runtime.txt", "dev.txt", "peers.txt"):
        assert "torch" not in pins(name)
        assert not [package for package in pins(name) if package.startswith("nvidia")]
