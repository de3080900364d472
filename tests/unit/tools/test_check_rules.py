"""The contract check finds each way in which normative text rots."""

from __future__ import annotations

import re

import pytest
from check_rules import Rule, cited, guard_problems, parse, proved, rule_problems

GOOD = """# Contract

## sched

### no-overtaking

A waiting sequence stops those behind it.
**Because** otherwise a long prompt starves. **Guarded by** `Scheduler._grant` and its rule test.

### one-commit

One writer. **Because** of reasons. **Guarded by** `commit_results`.

## blocks

### one-owner

One owner. **Because** of threads.
**Guarded by** `Affinity.check`.
"""


def only(text: str) -> Rule:
    (rule,) = parse(text)
    return rule


def test_rules_are_read_with_address_and_line() -> None:
    rules = parse(GOOD)
    assert [(rule.address, rule.line) for rule in rules] == [
        ("sched.no-overtaking", 5),
        ("sched.one-commit", 10),
        ("blocks.one-owner", 16),
    ]
    assert rules[0].guards == ["Scheduler._grant"]
    assert rule_problems(rules) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("## a\n### b\nText. **Because** x.", "needs \\*\\*Because"),
        ("## a\n### b\nText. **Guarded by** `x`.", "needs \\*\\*Because"),
        ("## a\n### B b\n**Because** **Guarded by** `x`", "lower case"),
        ("## a\n### b\n**Because** **Guarded by** " + "word " * 80, "83 words, at most 80"),
    ],
)
def test_faulty_rule_is_reported(text: str, complaint: str) -> None:
    problems = rule_problems(parse(text))
    assert any(re.search(complaint, problem) for problem in problems), problems


def test_repeated_address_is_reported() -> None:
    rule = only("## a\n### b\n**Because** **Guarded by** `x`")
    assert any("stands twice" in problem for problem in rule_problems([rule, rule]))


def test_guard_that_no_code_defines_is_reported() -> None:
    code = "class Scheduler:\n    def _grant(self): ...\n"
    problems = guard_problems(parse(GOOD), code)
    assert [problem.rsplit(": ", 1)[1] for problem in problems] == [
        "no 'commit_results' in code",
        "no 'Affinity' in code",
        "no 'check' in code",
    ]


def test_addresses_are_found_in_headers_and_comments() -> None:
    source = '''"""Blocks.

Owner    engine thread
Rules    blocks.one-owner, blocks.all-or-nothing,
         blocks.bytes-are-opaque
Next     headrace_engine.scheduler.grant
"""
x = 1  # safe: sched.no-overtaking, sched.one-commit
y = 2  # a remark about math.floor
'''
    assert cited(source) == {
        "blocks.one-owner",
        "blocks.all-or-nothing",
        "blocks.bytes-are-opaque",
        "sched.no-overtaking",
        "sched.one-commit",
    }


def test_marks_of_tests_are_found() -> None:
    marked = (
        '@pytest.mark.rule("a.b")\n@pytest.mark.rule(\n    "c.d",\n    "e.f",\n)\n# rule("g.h")\n'
    )
    assert proved(marked) == {"a.b", "c.d", "e.f"}
