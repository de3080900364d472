"""Words and names that do not belong in the repository are found with their lines."""

from __future__ import annotations

import pytest
from check_words import name_problems, word_problems


@pytest.mark.parametrize(
    "text",
    [
        "see https://" + "pypi" + ".org/simple",
        "cd /" + "work/main",
        "read .." + "/shared/design.md",
        "<" * 7 + " HEAD",
    ],
)
def test_forbidden_word_is_found_on_its_line(text: str) -> None:
    (problem,) = word_problems("a.md", f"first\n{text}\n")
    assert problem.startswith("a.md:2: ")


def test_ordinary_words_pass() -> None:
    assert word_problems("a.md", "the workshop is shared; a package index; x <<<< y") == []


@pytest.mark.parametrize("name", ["BlockManager", "PathHelper", "TextUtils", "PoolImpl", "PoolV2"])
def test_empty_suffix_is_found(name: str) -> None:
    (problem,) = name_problems("a.py", f"x = 1\nclass {name}:\n    pass\n")
    assert problem.startswith(f"a.py:2: class {name}")


def test_name_that_says_what_it_is_passes() -> None:
    assert name_problems("a.py", "class BlockPool:\n    pass\n") == []
