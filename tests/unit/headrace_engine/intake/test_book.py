"""The book of rows: routes, publication, and what the log lacks."""

from __future__ import annotations

import random

import numpy as np
import pytest
from headrace_engine.intake.book import RowBook
from headrace_engine.intake.columns import Int64, row_key
from headrace_engine.intake.held import Held
from support.held import make_held


def keys_of(held: Held) -> list[int]:
    """Keys of every choice."""
    return [row_key(held.handle, choice) for choice in range(held.choices)]


def rows_of(book: RowBook, held: Held) -> Int64:
    """Rows of every choice."""
    return book.find(np.array(keys_of(held), np.int64))


def publish(book: RowBook, row: int, first: int, tokens: list[int]) -> None:
    """Notes published tokens of one row."""
    book.published(
        np.array([row]),
        np.array([first], np.int32),
        np.array([len(tokens)], np.int32),
        np.array(tokens, np.int32),
    )


def test_choices_get_slots_that_follow_each_other() -> None:
    book, held = RowBook(), make_held(n=3, slot=40)
    book.add(held, keys_of(held), [0, 0, 0])

    rows = rows_of(book, held)

    assert book.slots[rows].tolist() == [40, 41, 42]
    assert [book.owner(row) for row in rows.tolist()] == [held] * 3
    assert book.choices[rows].tolist() == [0, 1, 2]


def test_a_key_that_is_not_held_has_no_row() -> None:
    book, held = RowBook(), make_held(handle=3)
    assert book.find(np.array([1], np.int64)).tolist() == [-1]

    book.add(held, keys_of(held), [0])
    unknown = [row_key(make_held(handle=2).handle, 0), row_key(make_held(handle=4).handle, 0)]
    assert book.find(np.array(unknown, np.int64)).tolist() == [-1, -1]


def test_rerouted_rows_go_to_the_new_gateway() -> None:
    book, held = RowBook(), make_held(n=2)
    book.add(held, keys_of(held), [0, 0])

    book.route(keys_of(held), "other", 90)

    rows = rows_of(book, held)
    assert [book.gateway_names[index] for index in book.gateways[rows].tolist()] == ["other"] * 2
    assert book.slots[rows].tolist() == [90, 91]


def test_what_is_published_stays_unlogged_until_the_log_has_it() -> None:
    book, held = RowBook(), make_held()
    book.add(held, keys_of(held), [0])
    row = int(rows_of(book, held)[0])

    publish(book, row, 0, [1, 2, 3])
    book.appended(row, 2)
    publish(book, row, 3, [4])

    assert book.unlogged(row).tolist() == [3, 4]
    assert int(book.logged[row]) == 2


def test_rows_told_twice_are_noted_once() -> None:
    book, held = RowBook(), make_held()
    book.add(held, keys_of(held), [0])
    row = int(rows_of(book, held)[0])

    publish(book, row, 0, [1, 2])
    book.appended(row, 1)
    publish(book, row, 0, [1, 2])

    assert book.unlogged(row).tolist() == [2]
    assert int(book.ends[row]) == 2


def test_the_log_cannot_hold_more_than_was_published() -> None:
    book, held = RowBook(), make_held()
    book.add(held, keys_of(held), [0])
    row = int(rows_of(book, held)[0])
    publish(book, row, 0, [1])

    book.appended(row, 5)

    assert (int(book.logged[row]), int(book.ends[row])) == (1, 1)


def test_a_successor_starts_behind_what_was_delivered() -> None:
    book, held = RowBook(), make_held(attempt=2)
    book.add(held, keys_of(held), [5])
    row = int(rows_of(book, held)[0])

    publish(book, row, 5, [9])

    assert (int(book.logged[row]), book.unlogged(row).tolist()) == (5, [9])


def test_the_buffer_grows_for_an_outage_and_shrinks_after_it() -> None:
    book, held = RowBook(), make_held()
    book.add(held, keys_of(held), [0])
    row = int(rows_of(book, held)[0])
    publish(book, row, 0, list(range(500)))
    assert book.unlogged(row).tolist() == list(range(500))
    grown = book.buffer_bytes

    book.appended(row, 490)
    book.shrink()

    assert book.unlogged(row).tolist() == list(range(490, 500))
    assert book.buffer_bytes < grown


def test_a_removed_request_leaves_nothing_behind_for_the_next_one() -> None:
    book, first, second = RowBook(), make_held(handle=1), make_held(handle=2)
    book.add(first, keys_of(first), [0])
    publish(book, int(rows_of(book, first)[0]), 0, [1])
    book.remove(keys_of(first))

    book.add(second, keys_of(second), [0])

    row = int(rows_of(book, second)[0])
    assert rows_of(book, first).tolist() == [-1]
    assert (len(book), int(book.ends[row]), len(book.unlogged(row))) == (1, 0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_many_requests_come_and_go(seed: int) -> None:
    rng, book = random.Random(seed), RowBook()
    live: dict[int, tuple[Held, list[list[int]], list[int]]] = {}
    handle = 0
    for _ in range(400):
        if rng.random() < 0.4:
            handle += 1
            held = make_held(handle=handle, n=rng.randint(1, 4))
            book.add(held, keys_of(held), [0] * held.choices)
            live[handle] = (held, [[] for _ in range(held.choices)], [0] * held.choices)
        for held, told, logged in live.values():
            rows = rows_of(book, held).tolist()
            for choice, row in enumerate(rows):
                tokens = [rng.randrange(1000) for _ in range(rng.randint(0, 3))]
                publish(book, row, len(told[choice]), tokens)
                told[choice] += tokens
                if rng.random() < 0.3:
                    logged[choice] = rng.randint(logged[choice], len(told[choice]))
                    book.appended(row, logged[choice])
                assert book.unlogged(row).tolist() == told[choice][logged[choice] :]
        if live and rng.random() < 0.35:
            gone = rng.choice(list(live))
            book.remove(keys_of(live.pop(gone)[0]))
    assert len(book) == sum(held.choices for held, _, _ in live.values())


def test_names_of_gateways_that_have_gone_are_forgotten() -> None:
    book = RowBook()
    first = make_held(handle=1, gateway="first")
    book.add(first, keys_of(first), [0])
    for handle in range(2, 1000):
        held = make_held(handle=handle, gateway=f"gateway-{handle}")
        book.add(held, keys_of(held), [0])
        if handle != 500:
            book.remove(keys_of(held))

    assert len(book.gateway_names) <= 257
    assert book.gateway_names[book.gateways[rows_of(book, first)[0]]] == "first"
    middle = rows_of(book, make_held(handle=500))[0]
    assert book.gateway_names[book.gateways[middle]] == "gateway-500"


def test_a_row_that_is_told_again_takes_nothing_back() -> None:
    book, held = RowBook(), make_held()
    book.add(held, keys_of(held), [0])
    [row] = rows_of(book, held).tolist()
    publish(book, row, 0, [1, 2, 3])

    publish(book, row, 0, [1])

    assert book.ends[row] == 3
    assert book.unlogged(row).tolist() == [1, 2, 3]
