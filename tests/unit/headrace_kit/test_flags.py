"""Flags take what the environment takes."""

from __future__ import annotations

import argparse

import pytest
from headrace_kit.flags import add_flags, given_flags
from headrace_kit.settings import Settings, load, setting


class FlagSettings(Settings, env_prefix="HEADRACE_ENGINE_"):
    """Settings with flags."""

    max_batch: int = setting(64, ge=1, unit="sequences")
    """Sequences, up to 100 % of them."""
    prefix_cache: bool = setting(True)
    """Switch."""
    origins: tuple[str, ...] = setting(())
    """Origins."""


def parse(*arguments: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="x")
    add_flags(parser, FlagSettings)
    return given_flags(parser.parse_args(arguments))


def test_only_given_settings_are_returned() -> None:
    assert parse() == {}
    assert parse("--model", "y", "--max-batch=8") == {"max_batch": "8"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--prefix-cache"], True),
        (["--no-prefix-cache"], False),
        (["--prefix-cache", "off"], False),
        (["--prefix-cache=yes"], True),
    ],
)
def test_switch_has_every_spelling(arguments: list[str], expected: bool) -> None:
    assert load(FlagSettings, cli=parse(*arguments), environ={}).prefix_cache is expected


def test_help_shows_defaults_and_survives_percent_signs() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, FlagSettings)
    assert "100 % of them. (default 64)" in " ".join(parser.format_help().split())
