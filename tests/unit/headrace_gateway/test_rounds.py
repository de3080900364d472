"""Rounds that the server spoils."""

from __future__ import annotations

import pytest
from headrace_gateway.errors import BackendUnavailable
from headrace_gateway.rounds import Rounds
from headrace_transport.errors import CommandFailed, TransportUnavailable
from structlog.testing import capture_logs


def test_what_cannot_be_read_is_told_once_until_a_round_goes_well() -> None:
    rounds = Rounds("job.missed")

    def go(error: Exception | None) -> list[str]:
        with capture_logs() as said, rounds.guarded():
            if error is not None:
                raise error
        return [each["log_level"] for each in said]

    bad = CommandFailed("a record cannot be read")
    assert go(bad) == ["error"]
    assert go(bad) == []
    assert go(TransportUnavailable()) == ["debug"]
    assert go(BackendUnavailable("away", retry_after_s=1)) == ["debug"]
    assert go(bad) == []
    assert go(None) == []
    assert go(bad) == ["error"]


def test_one_part_ends_alone_and_an_unreachable_server_ends_the_round() -> None:
    rounds = Rounds("job.missed")

    def go(**errors: Exception | None) -> tuple[list[str], list[str]]:
        done: list[str] = []
        with capture_logs() as said, rounds.guarded():
            for name, error in errors.items():
                with rounds.one(name):
                    if error is not None:
                        raise error
                    done.append(name)
        return done, [str(each.get("of", each["log_level"])) for each in said]

    bad = CommandFailed("a record cannot be read")
    assert go(a=bad, b=None) == (["b"], ["a"])
    assert go(a=bad, b=bad) == ([], ["b"])
    assert go(a=None, b=bad) == (["a"], [])
    assert go(a=bad, b=TransportUnavailable(), c=None) == ([], ["a", "debug"])


def test_a_defect_of_the_job_itself_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), Rounds("job.missed").guarded():
        raise ZeroDivisionError
