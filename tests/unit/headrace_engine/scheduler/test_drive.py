"""The driver does to columns what the loop does: the same tokens at the same places."""

from __future__ import annotations

import numpy as np
from headrace_engine.scheduler.drive import flight_of, flush, give_tokens, land
from support.engine import Rig


def test_a_batch_lands_and_gives_each_live_row_its_token() -> None:
    rig = Rig(phases=1)
    first, second = rig.push([1, 2, 3], 4), rig.push([4, 5], 4)
    scheduler, residents = rig.scheduler, rig.scheduler.residents
    inbound = rig.door.pop(2, block=False)
    lifecycle_requests = inbound.requests
    assert [request.handle for request in lifecycle_requests] == [first, second]
    rig.door.push(lifecycle_requests[0])
    rig.door.push(lifecycle_requests[1])
    rig.step()
    plan = scheduler.schedule(1.0)
    flight = flight_of(plan)
    assert flight.generating == 2
    assert (residents.columns.inflight[flight.slots] == 1).all()
    land(flight, residents)
    assert (residents.columns.inflight[flight.slots] == 0).all()
    residents.columns.live[flight.slots[1]] = False
    content = np.arange(100, 164, dtype=np.int32)
    given = give_tokens(flight, residents, lambda number: content + 1000 * number)
    assert given.tolist() == [flight.slots[0]]
    (sequence,) = residents.at(given)
    flush(sequence, residents)
    known = int(residents.columns.known[given[0]])
    assert sequence.length == known
    assert sequence.tokens[known - 1] == content[known - 1] + 1000 * sequence.number
