"""The doctor: one finding for each thing that can be wrong, with its remedy."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from headrace_cli import doctor
from headrace_cli.doctor import Finding
from headrace_cli.state import RunningStack, StateDir
from headrace_engine.default_model import DEFAULT_MODEL
from support import smollm2


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.mark.parametrize(
    ("version", "verdict"),
    [((3, 10), "wrong"), ((3, 11), "ok"), ((3, 13), "ok"), ((3, 14), "wrong")],
)
def test_python_versions(version: tuple[int, int], verdict: str) -> None:
    assert only(list(doctor.python(version, "Linux-6"))).verdict == verdict


def test_other_platforms_get_a_warning() -> None:
    assert [f.verdict for f in doctor.python((3, 12), "macOS-15")] == ["ok", "warning"]


def test_packages_in_different_versions_are_wrong_and_no_torch_is_a_warning() -> None:
    assert [f.verdict for f in doctor.packages(lambda name: "1.0")] == ["ok", "ok"]
    mixed = list(doctor.packages(lambda name: "2.0" if name == "headrace-cli" else "1.0"))
    assert mixed[1].verdict == "wrong"
    assert "cli 2.0" in mixed[1].fact
    assert [f.verdict for f in doctor.packages(lambda name: None)] == ["warning", "wrong"]


def test_no_compiler_is_a_warning() -> None:
    assert only(list(doctor.compiler(lambda name: None))).verdict == "warning"
    assert only(list(doctor.compiler({"gcc": "/bin/gcc"}.get))).fact == "/bin/gcc"


def test_a_clock_in_the_past_is_wrong() -> None:
    assert only(list(doctor.clock(0))).verdict == "wrong"
    assert only(list(doctor.clock(1_900_000_000))).verdict == "ok"


def test_settings_that_the_services_would_refuse_are_named() -> None:
    assert only(list(doctor.settings({}))).verdict == "ok"
    for name, value in {
        "HEADRACE_ENGINE_MAX_BATHC": "8",
        "HEADRACE_GATEWAY_HTTP_PORT": "many",
        "HEADRACE_GATEWAY_PEPPER_FILE": "/no/such",
    }.items():
        found = only(list(doctor.settings({name: value})))
        assert found.verdict == "wrong"
        assert name in found.fact


def test_the_default_model_is_checked_by_its_hash() -> None:
    smollm2.model_path()
    found = only(list(doctor.model(DEFAULT_MODEL)))
    assert (found.verdict, "known SHA-256" in found.fact) == ("ok", True)


def test_a_missing_model_is_wrong() -> None:
    assert only(list(doctor.model("/no/such"))).verdict == "wrong"


def test_the_embedded_server_runs() -> None:
    found = only(list(doctor.embedded_server()))
    assert found.verdict == "ok"
    assert "Valkey" in found.fact


def test_files_that_others_can_read_are_wrong(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s")
    assert "will be made" in only(list(doctor.state_dir(state))).fact
    state.open()
    assert next(doctor.state_dir(state)).verdict == "ok"
    state.secret(state.pepper_file)
    state.pepper_file.chmod(0o644)
    found = next(doctor.state_dir(state))
    assert (found.verdict, found.mend) == ("wrong", f"chmod -R go= {state.path}")


def test_ports_in_use_are_wrong() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        assert [f.verdict for f in doctor.free_ports(port, 0)] == ["wrong", "ok"]


async def test_a_stack_that_does_not_answer_is_wrong(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s").open()
    running = RunningStack(1, ("http://127.0.0.1:1",), (2,), "redis://127.0.0.1:1/0", "m")
    assert [f.verdict for f in await doctor.stack(running, state)] == ["wrong", "wrong"]


async def test_servers_that_settings_name_are_asked_each_once_without_telling_passwords() -> None:
    one, other = "redis://me:hush@127.0.0.1:1/0", "redis//nonsense"
    assert await doctor.configured_servers({}) == []
    both = {"HEADRACE_ENGINE_REDIS_URL": one, "HEADRACE_GATEWAY_REDIS_URL": one}
    found = only(await doctor.configured_servers(both))
    assert (found.verdict, found.what) == ("wrong", "server redis://***@127.0.0.1:1/0")
    assert "hush" not in repr(found)
    found = only(await doctor.configured_servers({"HEADRACE_GATEWAY_REDIS_URL": other}))
    assert "does not begin with redis://" in found.fact


async def test_everything_is_looked_at_and_the_verdict_is_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    smollm2.model_path()
    question = doctor.Question(StateDir(tmp_path / "s"), {}, 0, 0, None)
    findings = await doctor.examine(question)
    assert {"Python", "torch", "model", "embedded server"} <= {f.what for f in findings}
    assert doctor.print_findings(findings)
    assert not doctor.print_findings([*findings, Finding("x", "wrong", "broken", "mend it")])
    out = capsys.readouterr().out
    assert "WRONG   x: broken\n        -> mend it\n1 wrong\n" in out
