"""The mailboxes between io and the engine, over threads and over processes: one suite for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.errors import EngineDied, EngineDraining, EngineFailed, ModelRejected
from headrace_engine.settings import EngineSettings
from headrace_kit.errors import SettingsError
from support.faulty_engine import BREAK
from support.hosts import LIMIT_S, Hosted, Where, hosted, make_host


@pytest.fixture(params=["threads", "process"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Where:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))  # the process's executor
    return request.param


def settings(tmp_path: Path, **given: object) -> EngineSettings:
    base: dict[str, object] = {
        "executor": "echo",
        "echo_step_ms": 2.0,
        "cache_blocks": 256,
        "model_name": "m",
        "journal_dir": str(tmp_path / "journals"),
        "log_level": "error",
    }
    return EngineSettings.model_validate(base | given)


@pytest.fixture
async def engine(where: Where, tmp_path: Path) -> AsyncGenerator[Hosted]:
    async with hosted(where, settings(tmp_path)) as found:
        yield found


@pytest.mark.rule("threads.mailboxes-only")
async def test_a_request_goes_in_and_its_tokens_come_out_with_one_end(engine: Hosted) -> None:
    assert (engine.served.name, engine.served.shape.architecture) == ("m", "echo")
    assert engine.served.settings.pool_blocks == 256
    async with asyncio.TaskGroup() as group:
        run = group.create_task(engine.host.run(engine.hear))
        engine.push(1, [5, 6, 7], 7)
        await engine.until(lambda: bool(engine.ends(1)))
        engine.host.door.close()
        assert await asyncio.wait_for(run, LIMIT_S) is None

    assert engine.tokens(1) == [5, 6, 7, 5, 6, 7, 5]
    assert engine.reasons(1) == [(FinishReason.LENGTH, None)]
    snapshot = engine.host.snapshot()
    assert (snapshot.generated_tokens, snapshot.running, snapshot.draining) == (7, 0, True)


async def test_many_requests_keep_their_tokens_apart_and_in_order(engine: Hosted) -> None:
    async with asyncio.TaskGroup() as group:
        run = group.create_task(engine.host.run(engine.hear))
        for handle in range(1, 101):
            engine.push(handle, [handle, handle + 1], 20)
        await engine.until(lambda: all(engine.ends(handle) for handle in range(1, 101)))
        engine.host.door.close()
        assert await asyncio.wait_for(run, LIMIT_S) is None

    for handle in range(1, 101):
        assert engine.tokens(handle) == [handle, handle + 1] * 10
        assert engine.reasons(handle) == [(FinishReason.LENGTH, None)]


async def test_a_cancel_ends_what_runs_and_what_waits_and_is_no_error_afterwards(
    engine: Hosted,
) -> None:
    async with asyncio.TaskGroup() as group:
        run = group.create_task(engine.host.run(engine.hear))
        engine.push(1, [5], 2000)
        await engine.until(lambda: len(engine.tokens(1)) > 2)
        engine.push(2, [6], 2000)
        for handle in (2, 1, 1, 99):
            engine.cancel(handle)
        await engine.until(lambda: bool(engine.ends(1) and engine.ends(2)))
        engine.cancel(1)
        engine.host.door.close()
        assert await asyncio.wait_for(run, LIMIT_S) is None

    for handle in (1, 2):
        assert engine.reasons(handle) == [(FinishReason.CANCELLED, Code.CANCELLED)]


async def test_a_close_ends_what_runs(engine: Hosted) -> None:
    async with asyncio.TaskGroup() as group:
        run = group.create_task(engine.host.run(engine.hear))
        engine.push(1, [5], 2000)
        await engine.until(lambda: bool(engine.tokens(1)))
        engine.host.door.close()
        assert await asyncio.wait_for(run, LIMIT_S) is None

    assert engine.reasons(1) == [(FinishReason.CANCELLED, Code.DRAINING)]
    with pytest.raises(EngineDraining):
        engine.push(2, [5], 1)


async def test_a_batch_that_fails_is_told_to_all_before_the_engine_ends_and_its_journal_stays(
    engine: Hosted, tmp_path: Path
) -> None:
    async with asyncio.TaskGroup() as group:
        run = group.create_task(engine.host.run(engine.hear))
        engine.push(1, [5], 2000)
        await engine.until(lambda: bool(engine.tokens(1)))
        engine.push(2, [BREAK], 1)
        failure = await asyncio.wait_for(run, LIMIT_S)

    assert isinstance(failure, EngineFailed)
    assert not isinstance(failure, EngineDied), "it told everything"
    assert "the device is lost" in str(failure)
    for handle in (1, 2):
        assert engine.reasons(handle) == [(FinishReason.ERROR, Code.ENGINE_FAILED)]
    with pytest.raises(EngineDraining):
        engine.push(3, [5], 1)
    await engine.host.close()
    assert len(list((tmp_path / "journals").iterdir())) == 1


async def test_what_does_not_fit_is_refused_with_its_reason(where: Where, tmp_path: Path) -> None:
    model = make_host(where, settings(tmp_path, cache_blocks=1))
    journal = make_host(where, settings(tmp_path, journal_file=str(tmp_path / "no" / "file")))
    try:
        with pytest.raises(ModelRejected, match="less than two blocks"):
            await model.load(lambda _: None)
        with pytest.raises(SettingsError, match="journal_file"):
            await journal.load(lambda _: None)
    finally:
        await model.close()
        await journal.close()


async def test_one_that_was_never_loaded_is_closed_without_a_word(
    where: Where, tmp_path: Path
) -> None:
    await make_host(where, settings(tmp_path)).close()
