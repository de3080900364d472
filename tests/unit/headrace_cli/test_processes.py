"""What each process of the local stack is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from headrace_cli.errors import CommandFailed
from headrace_cli.processes import Processes, ServeOptions
from headrace_cli.state import StateDir

NOTHING = ServeOptions(
    model=None,
    http_port=0,
    grpc_port=0,
    gateways=2,
    api_key=None,
    config_file=None,
    dtype=None,
    executor=None,
    quiet=False,
)


def processes(
    folder: Path,
    options: ServeOptions = NOTHING,
    environ: dict[str, str] | None = None,
) -> Processes:
    return Processes(
        options,
        StateDir(folder / "s").open(),
        environ or {},
        http_ports=[11, 12],
        grpc_ports=[21, 22],
        redis_port=6,
    )


def test_gateways_have_names_and_ports_of_their_own(tmp_path: Path) -> None:
    first, second = processes(tmp_path).gateways()
    assert (first.name, second.name) == ("gateway-1", "gateway-2")
    for spec, http, grpc in ((first, "11", "21"), (second, "12", "22")):
        assert spec.environ["HEADRACE_GATEWAY_HTTP_PORT"] == http
        assert spec.environ["HEADRACE_GATEWAY_GRPC_PORT"] == grpc
        assert spec.environ["HEADRACE_GATEWAY_HTTP_HOST"] == "127.0.0.1"
        assert spec.environ["HEADRACE_GATEWAY_REDIS_URL"] == "redis://127.0.0.1:6/0"


def test_no_secret_is_in_an_argument_or_a_variable(tmp_path: Path) -> None:
    made = processes(tmp_path)
    for spec in (made.valkey(), made.engine(), *made.gateways()):
        told = " ".join([*spec.argv, *spec.environ.values()])
        assert made.redis_password not in told
        assert made.pepper.decode() not in told


def test_only_what_was_asked_for_is_told_to_the_engine(tmp_path: Path) -> None:
    assert "HEADRACE_ENGINE_MODEL" not in processes(tmp_path).engine().environ
    asked = replace(NOTHING, model="/m", dtype="packed", executor="echo")
    environ = processes(tmp_path, asked, {"HEADRACE_ENGINE_MODEL": "/other"}).engine().environ
    found = [environ[f"HEADRACE_ENGINE_{name}"] for name in ("MODEL", "DTYPE", "EXECUTOR")]
    assert found == ["/m", "packed", "echo"]


def test_the_persons_environment_goes_before_our_defaults(tmp_path: Path) -> None:
    spec = processes(tmp_path).engine()
    assert spec.environ["HEADRACE_ENGINE_DRAIN_S"] == "2"
    assert spec.stop_within_s == 8
    assert spec.environ["HEADRACE_ENGINE_JOURNAL_DIR"] == str(tmp_path / "s" / "journals")
    own = {
        "HEADRACE_ENGINE_DRAIN_S": "9",
        "HEADRACE_ENGINE_LEASE_MS": "700",
        "HEADRACE_ENGINE_JOURNAL_DIR": "/j",
        "HOME": "/h",
    }
    spec = processes(tmp_path, environ=own).engine()
    assert own.items() <= dict(spec.environ).items()
    assert spec.stop_within_s == 15
    own = {"HEADRACE_GATEWAY_DRAIN_S": "9", "HEADRACE_GATEWAY_DRAIN_NOTICE_S": "3"}
    gateway = processes(tmp_path, environ=own).gateway(0)
    assert gateway.stop_within_s == 18


@pytest.mark.parametrize("by_flag", [False, True])
def test_the_file_goes_before_our_defaults(tmp_path: Path, by_flag: bool) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("engine:\n  drain_s: 5\n  log_format: json\n")
    if by_flag:
        spec = processes(tmp_path, replace(NOTHING, config_file=config)).engine()
    else:
        spec = processes(tmp_path, environ={"HEADRACE_CONFIG_FILE": str(config)}).engine()
    assert "HEADRACE_ENGINE_DRAIN_S" not in spec.environ
    assert "HEADRACE_ENGINE_LOG_FORMAT" not in spec.environ
    assert spec.environ["HEADRACE_ENGINE_LEASE_MS"] == "5000"
    assert spec.environ["HEADRACE_CONFIG_FILE"] == str(config)
    assert spec.stop_within_s == 11


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "No such file"),
        (b"a: [", "not YAML"),
        (b"\xff", "not YAML"),
        (b"[1]", "no sections"),
    ],
)
def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, data: bytes | None, words: str) -> None:
    config = tmp_path / "c.yaml"
    if data is not None:
        config.write_bytes(data)
    options = replace(NOTHING, config_file=config)
    with pytest.raises(CommandFailed, match=words):
        processes(tmp_path, options)


async def test_a_service_is_ready_when_its_own_file_is_there(tmp_path: Path) -> None:
    made = processes(tmp_path)
    spec = made.engine()
    state = StateDir(tmp_path / "s")
    name = spec.environ["HEADRACE_ENGINE_READY_FILE"].removeprefix(f"{state.path}/")
    state.write(name, "{}")
    assert await spec.is_ready()
    spec.before_start()
    assert not await spec.is_ready()


def test_the_engine_is_told_that_nobody_else_has_its_name(tmp_path: Path) -> None:
    environ = processes(tmp_path, environ={"HEADRACE_ENGINE_NAME": "mine"}).engine().environ
    assert environ["HEADRACE_ENGINE_NAME"] == "engine"
    assert environ["HEADRACE_ENGINE_SOLE_NAME"] == "true"


def test_the_last_runs_log_is_kept(tmp_path: Path) -> None:
    made = processes(tmp_path)
    log = made.engine().log_file
    assert log is not None
    log.write_text("old")
    made.engine()
    assert log.with_suffix(".log.1").read_text() == "old"
    assert log.read_text() == ""
