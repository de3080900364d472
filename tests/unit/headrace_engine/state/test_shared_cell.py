"""The snapshot that two processes see: whole, newest, and every field of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from headrace_engine.state.metrics import CacheStats, ScheduleMetrics, WaitingChoice
from headrace_engine.state.request import RequestHandle
from headrace_engine.state.shared_cell import SharedCell, SharedReader, shared_memory


@pytest.fixture
def memory() -> Generator[int]:
    descriptor = shared_memory()
    yield descriptor
    os.close(descriptor)


def full() -> ScheduleMetrics:
    """Every field different from its default, and from each other."""
    values: dict[str, Any] = {
        "waiting_by_reason": {"priority": 3},
        "finished": {"stop": 4, "length": 5},
        "waits": [WaitingChoice(RequestHandle(8), "memory", 2)],
        "cache": CacheStats(*range(10, 10 + len(fields(CacheStats)))),
    }
    for number, (name, kind) in enumerate(get_type_hints(ScheduleMetrics).items()):
        if name not in values:
            values[name] = kind(number + 1) if kind is not bool else True
    return ScheduleMetrics(**values)


@pytest.mark.rule("metrics.one-snapshot")
def test_every_field_is_seen_at_the_other_end(memory: int) -> None:
    reader = SharedReader(memory)
    assert reader.get() == ScheduleMetrics()  # nothing was written yet

    cell = SharedCell(full(), memory)

    assert cell.get() == full()
    assert reader.get() == full()


def test_a_mapping_that_is_changed_in_place_is_seen_as_it_is_now(memory: int) -> None:
    counts = {"stop": 1}
    cell, reader = SharedCell(ScheduleMetrics(finished=counts), memory), SharedReader(memory)
    assert reader.get().finished == {"stop": 1}

    counts["stop"] = 2
    cell.put(ScheduleMetrics(finished=counts))

    assert reader.get().finished == {"stop": 2}


def test_more_waits_than_fit_are_left_out_and_numbers_are_not(memory: int) -> None:
    waits = [WaitingChoice(RequestHandle(i), "a reason" * 20, i) for i in range(1000)]
    SharedCell(ScheduleMetrics(waiting=1000, waits=waits), memory)

    seen = SharedReader(memory).get()
    assert (seen.waiting, list(seen.waits)) == (1000, [])


def test_a_reader_never_sees_a_mixture(memory: int) -> None:
    cell, reader = SharedCell(ScheduleMetrics(), memory), SharedReader(memory)
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            finished = {"x" * (number % 50): number}
            cell.put(ScheduleMetrics(pass_id=number, pass_tokens=number, finished=finished))

    writer = threading.Thread(target=write)
    writer.start()
    last = reads = 0
    try:
        while reads < 3000 or last < 100:
            seen = reader.get()
            assert seen.pass_id == seen.pass_tokens
            assert seen.pass_id == sum(seen.finished.values())
            assert seen.pass_id >= last
            last, reads = seen.pass_id, reads + 1
    finally:
        over.set()
        writer.join()
