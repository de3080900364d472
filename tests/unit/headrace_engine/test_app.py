"""The process around the engine: exit codes, names, health before it serves."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from headrace_engine.app import EngineProcess, main, process_id
from headrace_engine.settings import EngineSecrets, EngineSettings
from support.process import engine_process
from support.redis import redis_server


def test_a_process_id_is_its_name_and_a_nonce() -> None:
    first, second = process_id("pod-1"), process_id("pod-1")

    assert first.startswith("pod-1-")
    assert first != second


def test_a_name_with_odd_characters_still_makes_an_id() -> None:
    assert process_id("a b/ü").startswith("a-b---")


def test_settings_that_are_wrong_end_it_with_their_place(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE_MAX_BATCH", "many")

    assert main([]) == 2
    assert "HEADRACE_ENGINE_MAX_BATCH" in capsys.readouterr().err


def test_a_setting_that_does_not_exist_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE_MAX_BACH", "8")

    assert main([]) == 2
    assert "HEADRACE_ENGINE_MAX_BACH" in capsys.readouterr().err


async def test_before_it_serves_it_is_alive_and_not_ready() -> None:
    process = EngineProcess(EngineSettings(), EngineSecrets())

    assert process.alive
    assert process.problems == ["starting"]
    body, kind = process.exposition()
    assert (body, kind.split(";")[0]) == (b"", "text/plain")


def test_the_ready_file_appears_when_it_serves_and_goes_when_it_stops(tmp_path: Path) -> None:
    with redis_server() as server:
        process = engine_process(tmp_path, server.url)
        try:
            ready = process.ready
            assert ready["pid"] == process.pid
            assert json.loads(process.get("/health/ready")[1]) == {"ready": True, "problems": []}
        finally:
            process.signal(signal.SIGINT)
            code = process.wait()
        assert code == 0
        assert not (tmp_path / "ready").exists()


def test_a_signal_while_the_model_loads_ends_it(tmp_path: Path) -> None:
    with redis_server() as server:
        process = engine_process(
            tmp_path, server.url, "--echo-step-ms", "60000", module="support.slow_engine"
        )
        process.wait_for_log("slow.loading")
        process.signal(signal.SIGTERM)

        assert process.wait() == 0
