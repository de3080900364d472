"""Starting the gateway: what refuses to start says why, with the right exit code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
from headrace_gateway import app
from headrace_gateway.app import GatewayProcess, main, pepper_of
from headrace_gateway.settings import GatewaySecrets, GatewaySettings
from headrace_kit.errors import SettingsError
from headrace_kit.process import OK, REFUSED
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import ApiKey, GatewayWire
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.redis import free_port

PEPPER = "0123456789abcdef"


def test_without_a_pepper_it_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEADRACE_GATEWAY_PEPPER", raising=False)
    assert main([]) == REFUSED
    assert "HEADRACE_GATEWAY_PEPPER" in capsys.readouterr().err


def test_a_flag_out_of_bounds_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_GATEWAY_PEPPER", PEPPER)
    assert main(["--max-queued", "0"]) == REFUSED
    assert "--max-queued" in capsys.readouterr().err


def test_a_pepper_is_stripped_and_long_enough(tmp_path: Path) -> None:
    assert pepper_of(GatewaySecrets.model_validate({"pepper": f"{PEPPER}\n"})) == PEPPER.encode()
    for short in ("short", " " * 40, ""):
        with pytest.raises(SettingsError, match="16"):
            pepper_of(GatewaySecrets.model_validate({"pepper": short}))


async def test_a_taken_port_is_refused_before_the_server_is_asked() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = GatewaySettings(
            http_port=taken.getsockname()[1], redis_url=f"redis://127.0.0.1:{free_port()}/0"
        )
        assert await GatewayProcess(settings, PEPPER.encode()).run() == REFUSED


async def test_a_stop_while_it_waits_for_the_server_is_obeyed() -> None:
    settings = GatewaySettings(
        http_port=0, grpc_port=0, redis_url=f"redis://127.0.0.1:{free_port()}/0"
    )
    running = asyncio.create_task(GatewayProcess(settings, PEPPER.encode()).run())
    await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(20):
        assert await running == OK
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)


async def test_start_does_not_wait_for_keys_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Crowded(MemoryGatewayWire):
        warnings = ()

        async def api_keys(self) -> Sequence[ApiKey]:
            raise TransportUnavailable("too many to read in time")

    async def connected(*_: object, **__: object) -> GatewayWire:
        return Crowded(MemoryBroker())

    monkeypatch.setattr(app, "connect_gateway", connected)
    ready = tmp_path / "ready"
    settings = GatewaySettings(http_port=0, grpc_port=0, ready_file=str(ready), drain_notice_s=0.0)
    process = GatewayProcess(settings, PEPPER.encode(), initial_key="own-key-of-a-chart")
    running = asyncio.create_task(process.run())
    async with asyncio.timeout(30):
        while not ready.exists():
            assert not running.done()
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == OK
    gc.unfreeze()  # the gateway froze what this process has
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
