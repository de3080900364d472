"""The collector stands still within a start, and is afterwards as it was."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import pytest
from headrace_engine.uncollected import uncollected


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """As it was before the test."""
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_afterwards_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


def test_a_start_that_fails_leaves_it_running() -> None:
    gc.enable()
    with contextlib.suppress(OSError), uncollected():
        raise OSError
    assert gc.isenabled()
