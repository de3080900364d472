"""Jobs beside the requests: one that fails is its own fault; those that serve are everybody's."""

from __future__ import annotations

import asyncio

import pytest
from headrace_gateway.inference.tasks import Tasks


async def fail() -> None:
    """Fails."""
    raise ValueError("on purpose")


async def test_a_job_that_fails_ends_nothing_else() -> None:
    done = asyncio.Event()

    async def work() -> None:
        done.set()

    async with Tasks() as tasks:
        tasks.spawn(fail(), name="a")
        await asyncio.sleep(0)
        tasks.spawn(work(), name="b")
        async with asyncio.timeout(20):
            await done.wait()


async def test_a_serving_job_that_fails_ends_the_group() -> None:
    async def service() -> None:
        async with asyncio.timeout(20), Tasks() as tasks:
            tasks.serve(fail(), name="a")
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await service()
    assert caught.group_contains(ValueError, match="on purpose")


async def test_leaving_cancels_what_still_runs_and_drops_what_comes_later() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async with Tasks() as tasks:
        tasks.spawn(forever(), name="a")
        await asyncio.sleep(0)
    tasks.spawn(forever(), name="late")
    assert ended == ["cancelled"]


async def test_a_job_that_never_began_is_closed_with_the_group() -> None:
    began: list[bool] = []

    async def work() -> None:
        began.append(True)

    job = work()
    async with Tasks() as tasks:
        tasks.spawn(job, name="late")
    assert not began
    # A coroutine that was neither run nor closed would warn when it is freed.
    assert job.cr_frame is None
