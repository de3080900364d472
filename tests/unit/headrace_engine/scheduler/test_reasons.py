"""ReasonBook: one reason per sequence and pass, and durations that add up."""

from __future__ import annotations

import pytest
from headrace_engine.scheduler.reasons import Reason, ReasonBook, Waiting


@pytest.mark.rule("reasons.exactly-one")
def test_every_waiting_sequence_has_one_reason_and_durations_sum_to_the_wait() -> None:
    book = ReasonBook()
    book.enter(1, 0.0)
    book.enter(2, 1.0)
    assert book.of(1) == Waiting(Reason.PRIORITY)
    book.begin_pass(2.0)
    book.name(1, Reason.BLOCKS, 2.0, detail=3)
    assert book.of(1) == Waiting(Reason.BLOCKS, 3)
    assert book.counts() == {"blocks": 1, "priority": 1}
    with pytest.raises(AssertionError, match="two reasons"):
        book.name(1, Reason.PRODUCER, 2.0)
    book.begin_pass(5.0)
    book.name(1, Reason.PRODUCER, 5.0)
    spent = book.leave(1, 6.0)
    assert spent == {Reason.PRIORITY: 2.0, Reason.BLOCKS: 3.0, Reason.PRODUCER: 1.0}
    assert sum(spent.values()) == 6.0
    assert book.of(1) is None
    assert book.counts() == {"priority": 1}


@pytest.mark.rule("reasons.exactly-one")
def test_whom_a_pass_did_not_look_at_has_the_reason_of_all_others() -> None:
    book = ReasonBook()
    for number in (1, 2, 3):
        book.enter(number, 4.0, 1.0)
    book.begin_pass(5.0)
    book.name(1, Reason.BATCH_ROWS, 5.0)
    book.behind(Reason.BATCH_ROWS)
    assert book.of(2) == book.of(3) == Waiting(Reason.BATCH_ROWS)
    assert book.counts() == {"batch_rows": 3}
    book.enter(4, 6.0)
    book.begin_pass(7.0)
    assert book.of(1) == book.of(2) == Waiting(Reason.PRIORITY)
    book.name(2, Reason.BLOCKS, 7.0, detail=1)
    book.behind(Reason.TOKEN_BUDGET)
    assert book.others is Reason.TOKEN_BUDGET
    assert book.counts() == {"blocks": 1, "token_budget": 3}
    door = {Reason.PRIORITY: 4.0}  # three seconds at it, one until the first pass
    assert book.spent(1, 9.0) == {**door, Reason.BATCH_ROWS: 2.0, Reason.TOKEN_BUDGET: 2.0}
    assert book.spent(2, 9.0) == {**door, Reason.BATCH_ROWS: 2.0, Reason.BLOCKS: 2.0}
    assert book.leave(3, 9.0) == book.spent(1, 9.0)
    assert book.spent(4, 9.0) == {Reason.BATCH_ROWS: 1.0, Reason.TOKEN_BUDGET: 2.0}
    assert book.of(3) is None
    assert book.spent(3, 99.0) == book.spent(1, 9.0), "it waits no longer"


def test_a_sequence_that_waits_again_goes_on_adding() -> None:
    book = ReasonBook()
    book.enter(1, 0.0)
    book.leave(1, 1.0)
    book.enter(1, 5.0)
    assert book.leave(1, 7.0) == {Reason.PRIORITY: 3.0}
    book.forget(1)
    assert book.leave(1, 9.0) == {}
