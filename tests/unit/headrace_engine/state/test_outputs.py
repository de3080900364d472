"""What crosses to other threads is flat: it would cross to another process as it is."""

from __future__ import annotations

import pickle
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from headrace_contracts.codes import FinishReason
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.outputs import PassOutputs
from support.engine import Rig


def same(one: Any, other: Any) -> bool:
    """Equal in every field, arrays included."""
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if type(one) is np.ndarray:
        return bool(np.array_equal(one, other))
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.rule("outputs.flat")
def test_requests_cancels_and_outputs_cross_a_process_as_they_are() -> None:
    rig = Rig(phases=2)
    told: list[PassOutputs] = []
    hear = rig.hear

    def remember(outputs: PassOutputs) -> None:
        told.append(outputs)
        hear(outputs)

    rig.hear = remember
    handle = rig.push([1, 2, 3, 4, 5], 6, n=2, logprobs=1)
    cut = rig.push([1, 2, 3, 4, 6], 9)
    crossing: list[Any] = [
        rig.requests[handle],
        Cancel(rig.requests[cut].handle, FinishReason.STOP),
    ]
    rig.step()
    rig.cancel(rig.requests[cut].handle)
    rig.run()
    crossing += told
    assert any(outputs.ends for outputs in told)
    for item in crossing:
        assert same(item, pickle.loads(pickle.dumps(item)))
