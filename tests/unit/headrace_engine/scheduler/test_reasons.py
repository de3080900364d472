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


def test_a_sequence_that_waits_again_goes_on_adding() -> None:
    book = ReasonBook()
    book.enter(1, 0.0)
    book.leave(1, 1.0)
    book.enter(1, 5.0)
    assert book.leave(1, 7.0) == {Reason.PRIORITY: 3.0}
    book.forget(1)
    assert book.leave(1, 9.0) == {}
