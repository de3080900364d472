"""What a reader of the offline API is told of each end."""

from __future__ import annotations

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.api_errors import RequestFailed, failure_of
from headrace_engine.errors import EngineDraining, EngineError, EngineFailed, RequestRejected
from headrace_engine.state.outputs import RowEnd, SequenceUsage

USAGE = SequenceUsage(1, 0, 0, 0.0, 0.0, 0.0, 0)


def end(reason: FinishReason, code: Code | None = None, message: str = "why") -> RowEnd:
    return RowEnd(0, reason, USAGE, code, message)


@pytest.mark.parametrize(
    "told",
    [
        end(FinishReason.STOP),
        end(FinishReason.LENGTH),
        end(FinishReason.DEADLINE, Code.DEADLINE_EXCEEDED),
        end(FinishReason.CANCELLED, Code.CANCELLED),
    ],
)
def test_what_the_caller_set_or_asked_for_is_no_error(told: RowEnd) -> None:
    assert failure_of(told) is None


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (end(FinishReason.CANCELLED, Code.DRAINING), EngineDraining),
        (end(FinishReason.ERROR, Code.DRAINING), EngineDraining),
        (end(FinishReason.ERROR, Code.ENGINE_FAILED), EngineFailed),
        (end(FinishReason.ERROR, Code.INVALID_REQUEST), RequestRejected),
        (end(FinishReason.ERROR, Code.PROMPT_NEVER_FITS), RequestRejected),
        (end(FinishReason.ERROR, Code.OUT_OF_MEMORY), RequestFailed),
        (end(FinishReason.ERROR, Code.NUMERIC_FAILURE), RequestFailed),
    ],
)
def test_every_other_end_is_an_error_with_code_and_words(
    told: RowEnd, kind: type[EngineError]
) -> None:
    failure = failure_of(told)

    assert failure is not None
    assert type(failure) is kind
    assert failure.code == told.code
    assert str(failure) == "why"


def test_a_failure_without_words_is_named_by_its_code() -> None:
    failure = failure_of(end(FinishReason.ERROR, Code.NUMERIC_FAILURE, ""))

    assert str(failure) == "the request failed: numeric_failure"
