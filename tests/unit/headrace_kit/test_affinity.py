"""The affinity check stands where other code has a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from headrace_kit.affinity import Affinity
from headrace_kit.errors import AffinityError


def failure_on_another_thread(action: Callable[[], object]) -> BaseException | None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except AffinityError as error:
            caught.append(error)

    thread = threading.Thread(target=run, name="intruder")
    thread.start()
    thread.join()
    return caught[0] if caught else None


def test_before_bind_every_thread_passes() -> None:
    affinity = Affinity("engine")
    assert affinity.check()
    assert failure_on_another_thread(affinity.check) is None


def test_after_bind_only_the_owner_passes_and_the_error_names_both() -> None:
    affinity = Affinity("engine")
    affinity.bind()
    affinity.bind()
    assert affinity.check()
    message = str(failure_on_another_thread(affinity.check))
    assert "'engine'" in message
    assert "'intruder'" in message
    assert threading.current_thread().name in message


def test_owned_object_cannot_be_taken_or_released_by_another_thread() -> None:
    affinity = Affinity("engine")
    affinity.bind()
    assert failure_on_another_thread(affinity.bind) is not None
    assert failure_on_another_thread(affinity.release) is not None


def test_released_object_may_be_bound_elsewhere() -> None:
    affinity = Affinity("engine")
    affinity.bind()
    affinity.release()
    assert failure_on_another_thread(affinity.bind) is None
    with pytest.raises(AffinityError):
        affinity.check()
