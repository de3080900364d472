"""Appends that leave out what a log holds."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_contracts.pb.queue_pb2 import LogEntry, RowFinish, RowLogprobs
from headrace_transport.interface import Logged
from headrace_transport.logs import Append, append_all, beyond
from hypothesis import given
from hypothesis import strategies as st
from support.wires import entry


def test_what_the_log_holds_is_cut_off() -> None:
    rest = beyond(entry([1, 2, 3], first=4, frame_id="9-0"), [6])
    assert rest is not None
    assert (list(rest.firsts), list(rest.counts), list(rest.tokens)) == ([6], [1], [3])
    assert rest.frame_id == "9-0"


def test_nothing_new_is_nothing() -> None:
    assert beyond(entry([1, 2]), [2]) is None
    assert beyond(entry([1, 2]), [9]) is None
    assert beyond(LogEntry(version=1), [0]) is None


def test_gap_is_not_bridged() -> None:
    assert beyond(entry([1], first=3), [2]) is None
    assert beyond(entry([1], choice=1), [2]) is None


def test_side_columns_follow_their_rows() -> None:
    both = LogEntry(
        version=1,
        choices=[0, 1],
        firsts=[0, 0],
        counts=[2, 2],
        tokens=[1, 2, 3, 4],
        finishes=[RowFinish(row=1, reason="FINISH_REASON_STOP")],
        logprobs=[
            RowLogprobs(
                row=1, width=2, chosen=[-3, -4], top_ids=[3, 30, 4, 40], top_values=[-1, -2, -3, -4]
            )
        ],
    )
    rest = beyond(both, [2, 1])
    assert rest is not None
    assert (list(rest.choices), list(rest.tokens)) == ([1], [4])
    assert (rest.finishes[0].row, rest.logprobs[0].row) == (0, 0)
    assert list(rest.logprobs[0].chosen) == [-4]
    assert list(rest.logprobs[0].top_ids) == [4, 40]
    assert list(rest.logprobs[0].top_values) == [-3, -4]


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
def test_log_and_rest_together_are_the_tokens(held: int, first: int, count: int) -> None:
    tokens = list(range(100))
    rest = beyond(entry(tokens[first : first + count], first=first), [held])
    if first > held or first + count <= held:
        assert rest is None
    else:
        assert rest is not None
        assert tokens[:held] + list(rest.tokens) == tokens[: first + count]


async def test_only_what_overlapped_is_sent_again() -> None:
    sent: list[list[str]] = []
    held = {"fits": 0, "overlaps": 1, "lost": 0, "held": 5}

    async def append(engine: str, entries: Sequence[Append]) -> Sequence[Logged]:
        assert engine == "e-1"
        sent.append([request for request, _, _ in entries])
        outcome: list[Logged] = []
        for request, _, each in entries:
            if each.firsts[0] == held[request]:
                held[request] += each.counts[0]
            outcome.append(Logged(ours=request != "lost", lengths=[held[request]]))
        return outcome

    logged = await append_all(append, "e-1", [(name, 1, entry([1, 2])) for name in held])

    assert sent == [["fits", "overlaps", "lost", "held"], ["overlaps"]]
    assert [each.ours for each in logged] == [True, True, False, True]
    assert [list(each.lengths) for each in logged] == [[2], [2], [2], [5]]
