"""Traces: read strictly, made from a seed, taken from a journal."""

from __future__ import annotations

import pytest
from headrace_engine.scheduler.simulate.trace import (
    Synthetic,
    TraceRejected,
    read_trace,
    trace_of,
)
from support.journals import recorded


def test_lines_become_items_in_order_of_arrival_and_groups_share_their_prefix() -> None:
    items = read_trace(
        [
            '{"arrival_s": 2, "prompt_tokens": 6, "output_tokens": 2, "prefix_group": "x", '
            '"prefix_tokens": 4, "tenant": "a", "band": 0}\n',
            "\n",
            '{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 1, "prefix_group": "x"}\n',
        ]
    )
    assert [item.arrival_s for item in items] == [1, 2]
    assert [item.tenant for item in items] == ["", "a"]
    assert items[0].content[:2].tolist() == items[1].content[:2].tolist()
    assert items[0].content[2] != items[1].content[2]
    assert len(items[1].content) == 8


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x", "line 1"),
        ("[]", "no JSON object"),
        ('{"arrival_s": 0, "prompt_tokens": 3}', "no 'output_tokens'"),
        ('{"arrival_s": 0, "prompt_tokens": 0, "output_tokens": 1}', "at least 1"),
        ('{"arrival_s": NaN, "prompt_tokens": 1, "output_tokens": 1}', "at least 0"),
        ('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "x": 1}', "unknown x"),
        (
            '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "prefix_group": "g", '
            '"prefix_tokens": 2}',
            "not between 0 and",
        ),
        ('{"arrival_s": 0, "prompt_tokens": 1e400, "output_tokens": 1}', "line 1"),
        ('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 16777216}', "16777216 together"),
        ('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "band": 4}', "band is 4"),
        (r'{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "tenant": "\ud800"}', "line 1"),
        ("", "no request"),
    ],
)
def test_a_line_that_means_nothing_is_refused(line: str, message: str) -> None:
    with pytest.raises(TraceRejected, match=message):
        read_trace([line])


def test_a_seed_makes_the_same_trace_and_another_makes_another() -> None:
    first, again, other = (Synthetic(requests=20, seed=seed).items() for seed in (1, 1, 2))
    assert [i.arrival_s for i in first] == [i.arrival_s for i in again]
    assert all((a.content == b.content).all() for a, b in zip(first, again, strict=True))
    assert [i.arrival_s for i in first] != [i.arrival_s for i in other]


def test_a_journal_gives_its_arrivals_with_the_tokens_they_came_to() -> None:
    journal, rig = recorded(requests=6, new_tokens=5)
    items = trace_of(journal.segments[0])
    assert len(items) == len(rig.requests)
    assert sorted(i.output_tokens for i in items if i.cancel_s is None) == [5] * 6
    assert sum(i.cancel_s is not None for i in items) == 1
    assert items[0].arrival_s == 0
