"""A captured state is JSON, changes nothing, and is restored or refused."""

from __future__ import annotations

import json

import pytest
from headrace_engine.errors import JournalRejected
from headrace_engine.scheduler.journal_replay import Replayer
from headrace_engine.scheduler.journal_snapshot import capture
from support.journals import recorded


@pytest.mark.rule("journal.snapshot-is-whole")
def test_a_restored_scheduler_has_the_state_it_was_restored_from() -> None:
    journal, _ = recorded(limit_bytes=4000)
    segment = journal.segments[-1]
    assert segment.state is not None
    replayer = Replayer(segment)
    replayer.scheduler.audit()
    again = capture(replayer.scheduler)
    recorded_state = dict(segment.state)
    del recorded_state["in_flight"]
    # Keys are of stand-ins now; everything else is the same.
    for state in (again, recorded_state):
        state["blocks"] = [[b[0], b[1] is None, *b[2:]] for b in state["blocks"]]
        state["roots"] = len(state["roots"])
        for sequence in state["sequences"]:
            sequence["arrival"] = {**sequence["arrival"], "salt": ""}
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(recorded_state))


@pytest.mark.parametrize("missing", ["blocks", "columns", "decoding", "tenants", "in_flight"])
def test_a_state_with_something_missing_is_refused(missing: str) -> None:
    journal, _ = recorded(limit_bytes=4000)
    segment = journal.segments[-1]
    assert segment.state is not None
    del segment.state[missing]
    with pytest.raises((JournalRejected, KeyError)):
        Replayer(segment)
