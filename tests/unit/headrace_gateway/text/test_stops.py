"""Stop strings against a naive search, in every cut."""

from __future__ import annotations

import pytest
from headrace_gateway.text.stops import StopFinder, StopScan
from hypothesis import given
from hypothesis import strategies as st
from support.cuts import cut


def naive(text: str, stops: list[str], *, include: bool) -> str | None:
    """The text up to the match that is complete first, the longest of those; None: no match."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[:end] if include else text[: end - max(map(len, ending))]
    return None


def run(finder: StopFinder, pieces: list[str]) -> tuple[str, bool]:
    shown = ""
    for piece in pieces:
        scan = finder.push(piece)
        shown += scan.text
        if scan.stopped:
            return shown, True
    return shown + finder.flush(), False


SMALL = st.text(alphabet="ab", max_size=12)


@given(
    SMALL,
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.integers(0, 12)),
    st.booleans(),
)
def test_any_cut_gives_what_a_naive_search_gives(
    text: str, stops: list[str], at: list[int], include: bool
) -> None:
    pieces = [str(piece) for piece in cut(text, at)]
    wanted = naive(text, stops, include=include)
    shown, stopped = run(StopFinder(stops, include=include), pieces)
    assert stopped == (wanted is not None)
    assert shown == (text if wanted is None else wanted)


@given(SMALL, st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4))
def test_exactly_the_longest_beginning_of_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    scan = finder.push(text)
    if not scan.stopped:
        held = text[len(scan.text) :]
        ends = [text[len(text) - n :] for n in range(len(text) + 1)]
        longest = max((end for end in ends if any(stop.startswith(end) for stop in stops)), key=len)
        assert held == longest


def test_a_stop_string_split_across_two_pieces_is_still_found() -> None:
    assert run(StopFinder(["J K L"]), [" G", " H", " I", " J", " K", " L"]) == (" G H I ", True)


def test_a_near_miss_is_released_at_the_end() -> None:
    assert run(StopFinder(["I J Q"]), [" G", " H", " I", " J"]) == (" G H I J", False)


def test_the_earliest_match_wins_whatever_the_order_of_the_list() -> None:
    for stops in (["I J", "H I"], ["H I", "I J"]):
        assert run(StopFinder(stops), [" G", " H", " I", " J"]) == (" G ", True)


def test_a_match_that_does_not_count_is_shown_and_may_overlap_one_that_does() -> None:
    finder = StopFinder(["aba"])
    assert finder.push("xaba", counts=False).text == "xab"
    assert finder.push("ba") == StopScan("", stopped=True)
    assert finder.flush() == ""


def test_after_a_stop_nothing_more_is_shown() -> None:
    finder = StopFinder(["K"])
    assert finder.push(" K L").text == " "
    assert finder.push(" M").text == ""
    assert finder.flush() == ""


def test_an_included_match_is_shown_and_what_follows_is_not() -> None:
    assert run(StopFinder(["K"], include=True), [" J", " KL"]) == (" J K", True)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopFinder(["a", ""])
