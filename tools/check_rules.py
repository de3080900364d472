"""Checks the engine's contract: every address lives, every rule is short, guarded and tested.

A rule of ``CONTRACT.md`` is ``## section`` and ``### leaf``, at most 80 words, with **Because**
and **Guarded by**. Code names rules in ``Rules`` header lines and ``# safe:`` comments, tests in
``@pytest.mark.rule("section.leaf")``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = ROOT / "services/engine/CONTRACT.md"
MAX_WORDS = 80

_ADDRESS = r"[a-z][a-z0-9-]*\.[a-z][a-z0-9-]*"
_MARK = re.compile(rf"mark\.rule\(\s*((?:\"{_ADDRESS}\"\s*,?\s*)+)\)")
_SAFE = re.compile(rf"#\s*safe:\s*({_ADDRESS}(?:\s*,\s*{_ADDRESS})*)")
_HEADER = re.compile(r"^Rules\s{2,}(\S.*(?:\n\s{9,}\S.*)*)", re.MULTILINE)
_GUARD = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Rule:
    """One leaf of the contract."""

    address: str
    line: int
    text: str

    @property
    def words(self) -> int:
        """How long it is."""
        return len(self.text.split())

    @property
    def guards(self) -> list[str]:
        """Code that the rule says guards it."""
        _, _, after = self.text.partition("**Guarded by**")
        return _GUARD.findall(after)


def parse(contract: str) -> list[Rule]:
    """The rules, in order."""
    rules: list[Rule] = []
    section, leaf, start, lines = "", "", 0, list[str]()

    def close() -> None:
        if leaf:
            rules.append(Rule(f"{section}.{leaf}", start, "\n".join(lines).strip()))

    for number, line in enumerate(contract.splitlines(), start=1):
        if line.startswith("## "):
            close()
            section, leaf = line[3:].strip(), ""
        elif line.startswith("### "):
            close()
            leaf, start, lines = line[4:].strip(), number, []
        else:
            lines.append(line)
    close()
    return rules


def cited(text: str) -> set[str]:
    """Addresses that a source file names."""
    found: set[str] = set()
    for pattern in (_SAFE, _HEADER):
        for match in pattern.finditer(text):
            found |= set(re.findall(_ADDRESS, match.group(1)))
    return found


def proved(text: str) -> set[str]:
    """Addresses that a test file marks."""
    return {
        address
        for match in _MARK.finditer(text)
        for address in re.findall(_ADDRESS, match.group(1))
    }


def rule_problems(rules: Iterable[Rule]) -> list[str]:
    """What is wrong with the rules themselves."""
    problems: list[str] = []
    seen: set[str] = set()
    for rule in rules:
        where = f"CONTRACT.md:{rule.line}: {rule.address}"
        if not re.fullmatch(_ADDRESS, rule.address):
            problems.append(f"{where}: an address is section.leaf in lower case")
        if rule.address in seen:
            problems.append(f"{where}: stands twice")
        seen.add(rule.address)
        if rule.words > MAX_WORDS:
            problems.append(f"{where}: {rule.words} words, at most {MAX_WORDS}")
        if "**Because**" not in rule.text or "**Guarded by**" not in rule.text:
            problems.append(f"{where}: needs **Because** and **Guarded by**")
    return problems


def guard_problems(rules: Iterable[Rule], code: str) -> list[str]:
    """Guards that no code defines: each part of ``Class.function`` must be defined or assigned."""
    problems: list[str] = []
    for rule in rules:
        for guard in rule.guards:
            for part in re.findall(r"[A-Za-z_]\w*", guard.split("(")[0]):
                if not re.search(rf"\b{part}\b", code):
                    problems.append(f"CONTRACT.md:{rule.line}: {rule.address}: no {part!r} in code")
    return problems


def main() -> int:
    """Prints what is wrong."""
    rules = parse(CONTRACT.read_text())
    known = {rule.address for rule in rules}
    sources = sorted((ROOT / "services/engine/src").rglob("*.py"))
    problems = rule_problems(rules)
    problems += guard_problems(rules, "\n".join(path.read_text() for path in sources))
    for path in sources:
        for address in sorted(cited(path.read_text()) - known):
            problems.append(f"{path.relative_to(ROOT)}: {address} is not in CONTRACT.md")
    tested: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.parent.name == "tools":
            continue  # the tests of this check make rules up
        marked = proved(path.read_text())
        tested |= marked
        for address in sorted(marked - known):
            problems.append(f"{path.relative_to(ROOT)}: {address} is not in CONTRACT.md")
    problems += [f"CONTRACT.md: {rule} has no test" for rule in sorted(known - tested)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
