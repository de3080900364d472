"""What a loop does to the scheduler's columns when a batch comes back, without a device.

Owner    whoever replays or simulates
Writes   SequenceColumns of the scheduler it is given
Never    decides; knows time
Rules    batch.generating-first, loop.overshoot-dropped
Next     headrace_engine.scheduler.journal_replay
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace_engine.scheduler.commit import PassPlan
from headrace_engine.scheduler.residents import Residents
from headrace_engine.state.sequence import Sequence

Contents = Callable[[int], NDArray[np.int32]]
"""Every token that a sequence, by number, has or will have."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch that was handed over."""

    slots: NDArray[np.intp]
    generating: int
    """The first so many rows sample."""


def flight_of(plan: PassPlan) -> Flight:
    """The batch of a plan, as ``loop.setup`` would lay it out. Taken before anything else."""
    slots = [chunk.sequence.slot for chunk in plan.chunks]
    sampling = len(plan.decode.slots) + sum(chunk.generating for chunk in plan.chunks)
    return Flight(np.concatenate([plan.decode.slots, np.array(slots, np.intp)]), sampling)


def land(flight: Flight, residents: Residents) -> None:
    """The batch is back."""
    columns = residents.columns
    columns.inflight[flight.slots] -= 1
    assert (columns.inflight[flight.slots] >= 0).all(), "a row came back twice"


def give_tokens(flight: Flight, residents: Residents, contents: Contents) -> NDArray[np.intp]:
    """Each live sampling row of a landed batch gets its token. Returns their slots."""
    columns = residents.columns
    slots = flight.slots[: flight.generating]
    slots = slots[columns.live[slots]]
    known = columns.known[slots]
    tokens = np.empty(len(slots), np.int32)
    for row, (sequence, position) in enumerate(zip(residents.at(slots), known, strict=True)):
        tokens[row] = contents(sequence.number)[position]
    columns.put(slots, known, tokens)
    return slots


def flush(sequence: Sequence, residents: Residents) -> None:
    """What is known of a sequence goes into it, as before every end."""
    if sequence.slot is not None:
        residents.columns.flush(sequence.slot, sequence)
