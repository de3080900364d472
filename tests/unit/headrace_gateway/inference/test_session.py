"""Rows and log entries in any order make one text; what must not count does not."""

from __future__ import annotations

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import LogEntry, RequestRecord, RowFinish, RowLogprobs
from headrace_gateway.errors import Internal
from headrace_gateway.inference.session import MISSING_LOGPROB, Outcome, Session, code_of
from headrace_gateway.text.pipeline import TextPipeline
from hypothesis import given
from hypothesis import strategies as st
from support.wire import END, toy_card, toy_files, toy_ids

TEXT = TextPipeline.from_card(toy_card(), toy_files())


def session(n: int = 1, *, stop: tuple[str, ...] = (), logprobs: int | None = None) -> Session:
    """A fresh session of ``n`` choices."""
    record = RequestRecord(id="r", model="toy", n=n)
    record.sampling.stop_token_ids.append(END)
    if logprobs is not None:
        record.sampling.logprobs = logprobs
    return Session(
        record,
        choice_text=lambda: TEXT.choice(stop=stop, stop_token_ids=(END,)),
        prompt_tokens=3,
        now=0.0,
        hidden=frozenset({END}),
    )


def take(it: Session, first: int, text: str | list[int], *, attempt: int = 1) -> Outcome:
    """One row of choice 0."""
    tokens = toy_ids(text) if isinstance(text, str) else text
    return it.take_row(0, attempt=attempt, first=first, tokens=tokens, logged=0, now=1.0)


def text(it: Session, choice: int = 0) -> str:
    """What the choice says so far."""
    return "".join(it.choices[choice].pieces) + it.choices[choice].tail


def test_a_stop_token_has_no_text_and_is_counted() -> None:
    it = session()
    take(it, 0, [*toy_ids("hi"), END])
    it.take_finish(0, FinishReason.STOP, None, "")
    assert text(it) == "hi"
    assert len(it.choices[0].tokens) == 3
    assert it.ended


def test_a_row_that_is_early_changes_nothing() -> None:
    it = session()
    assert take(it, 2, "c") & Outcome.BEHIND
    assert it.behind
    assert text(it) == ""
    assert take(it, 0, "ab") & Outcome.NEWS
    assert not it.behind
    assert text(it) == "ab"


def test_an_older_attempt_is_stale_from_its_fence_on() -> None:
    it = session()
    take(it, 0, "a")
    it.fence(2)
    assert take(it, 1, "X") == Outcome.STALE
    assert take(it, 1, "b", attempt=2) == Outcome.NEWS
    assert text(it) == "ab"


def test_the_first_row_is_told_once() -> None:
    it = session()
    assert take(it, 0, "a") == Outcome.BEGAN | Outcome.NEWS
    assert take(it, 1, "b") == Outcome.NEWS
    assert take(it, 0, "ab") == Outcome.DUPLICATE


def test_nothing_follows_a_stop_string() -> None:
    it = session(stop=("END",))
    assert take(it, 0, "aENDb") & Outcome.STOPPED
    assert len(it.choices[0].tokens) == 4
    assert take(it, 4, "cd") == Outcome.DUPLICATE
    it.take_finish(0, FinishReason.LENGTH, None, "")
    assert it.choices[0].finish is FinishReason.STOP
    assert text(it) == "a"


def test_the_log_is_believed_whatever_its_attempt() -> None:
    it = session()
    it.fence(5)
    entry = LogEntry(version=WIRE_VERSION, attempt=1, choices=[0], firsts=[0], counts=[2])
    entry.tokens.extend(toy_ids("ab"))
    assert it.take_log(entry, now=1.0) & Outcome.NEWS
    assert text(it) == "ab"
    assert it.choices[0].logged == 2


def test_an_end_in_the_log_carries_reason_code_and_message() -> None:
    it = session(2)
    entry = LogEntry(version=WIRE_VERSION, attempt=1, choices=[1], firsts=[0], counts=[0])
    entry.finishes.append(
        RowFinish(row=0, reason=FinishReason.ERROR.value, code=Code.POISONED.value, message="m")
    )
    it.take_log(entry, now=1.0)
    assert it.choices[1].finish is FinishReason.ERROR
    assert (it.choices[1].code, it.choices[1].message) == (Code.POISONED, "m")
    assert not it.ended


def test_a_failure_ends_it_once_and_wakes_its_readers() -> None:
    it = session()
    woken: list[int] = []
    it.listeners.add(lambda: woken.append(1))
    error = Internal("first")
    it.fail(error, 2.0)
    it.fail(Internal("second"), 3.0)
    assert it.failure is error
    assert it.ended_at == 2.0
    assert woken


def test_what_ended_well_cannot_fail_any_more() -> None:
    it = session()
    it.end_here(FinishReason.CANCELLED, 1.0)
    it.fail(Internal("late"), 2.0)
    assert it.failure is None


def test_logprobs_keep_step_with_tokens_and_missing_ones_are_marked() -> None:
    it = session(logprobs=1)
    columns = RowLogprobs(width=1, chosen=[-0.5], top_ids=[9], top_values=[-0.25])
    it.take_row(0, attempt=1, first=0, tokens=toy_ids("a"), logged=0, now=1.0, logprobs=columns)
    take(it, 1, "b")
    found = it.choices[0].candidates
    assert found is not None
    assert [each.chosen for each in found] == [-0.5, MISSING_LOGPROB]
    assert list(found[0].ids) == [9]
    assert list(found[1].ids) == []


def test_frames_are_pinned_until_the_log_holds_their_tokens() -> None:
    it = session()
    for i, logged in ((0, 0), (1, 0), (2, 2)):
        it.take_row(
            0,
            attempt=1,
            first=i,
            tokens=toy_ids("x"),
            logged=logged,
            now=1.0,
            pin=(100 + i, 0),
        )
    assert it.oldest_pin() == (102, 0)
    it.take_finish(0, FinishReason.LENGTH, None, "")
    assert it.oldest_pin() is None


@pytest.mark.parametrize(
    ("number", "code"), [(0, None), (31, Code.QUEUE_FULL), (9999, Code.INTERNAL)]
)
def test_unknown_codes_are_internal(number: int, code: Code | None) -> None:
    assert code_of(number) is code


@given(
    st.text(st.sampled_from("abEND\u00e9\U0001fae0"), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=12),
)
def test_any_order_of_overlapping_rows_gives_the_text_of_one_row(
    said: str, rows: list[tuple[int, int]]
) -> None:
    tokens = toy_ids(said)
    whole, pieces = session(stop=("END",)), session(stop=("END",))
    take(whole, 0, tokens)
    for first, count in [*rows, (0, len(tokens))]:
        first = min(first, len(tokens))
        take(pieces, first, tokens[first : first + count])
    whole.take_finish(0, FinishReason.LENGTH, None, "")
    pieces.take_finish(0, FinishReason.LENGTH, None, "")
    assert text(pieces) == text(whole)
    assert pieces.choices[0].tokens == whole.choices[0].tokens
