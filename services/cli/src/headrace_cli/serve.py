"""The local stack: an embedded server, one engine, some gateways, as real processes on loopback.

The same programs run in a cluster; here they are supervised by one command.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import httpx
import yaml
from headrace_gateway.auth.keys import KeyStore
from headrace_gateway.auth.tokens import parse_token
from headrace_kit.clock import SystemClock
from headrace_transport.connection import connect_gateway
from headrace_transport.errors import TransportError

from headrace_cli import ports, valkey
from headrace_cli.errors import CommandFailed
from headrace_cli.output import Console
from headrace_cli.state import RunningStack, StateDir
from headrace_cli.supervisor import ChildSpec, SupervisionFailed, Supervisor

KEY_NAME: Final = "local stack"
GATEWAY_DRAIN_S: Final = 2.0
ENGINE_DRAIN_S: Final = 2.0
STOP_SLACK_S: Final = 4.0
"""Beyond its drain time, how long a process may take to stop."""
READY_POLL_S: Final = 0.05
READY_WITHIN_S: Final = 120.0
"""From all processes up to the first request that can be served."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What ``headrace serve`` was asked for. None: the service's own default."""

    model: str | None
    http_port: int
    grpc_port: int
    gateways: int
    api_key: str | None
    config_file: Path | None
    dtype: str | None
    executor: str | None
    quiet: bool


def serve(options: ServeOptions, state: StateDir) -> None:
    """Runs the stack until a signal. Raises CommandFailed with the reason when it cannot go on."""
    state.open()
    with state.lock():
        http = ports.choose(options.http_port, options.gateways, flag="--http-port")
        grpc = ports.choose(options.grpc_port, options.gateways, flag="--grpc-port", taken=http)
        stack = _Stack(options, state, http, grpc, Console.standard(quiet=options.quiet))
        try:
            asyncio.run(stack.run())
        finally:
            state.withdraw()


class _Stack:
    """One run of the stack."""

    def __init__(
        self,
        options: ServeOptions,
        state: StateDir,
        http_ports: list[int],
        grpc_ports: list[int],
        console: Console,
    ) -> None:
        self._options = options
        self._state = state
        self._http_ports = http_ports
        self._grpc_ports = grpc_ports
        self._console = console
        self._redis_port = ports.free()[0]
        self._redis_url = f"redis://{ports.HOST}:{self._redis_port}/0"
        self._password = state.secret(state.redis_password_file)
        self._pepper = state.secret(state.pepper_file)
        self._file = _config(options.config_file)
        self._key = ""

    async def run(self) -> None:
        stop, kill = asyncio.Event(), asyncio.Event()
        _on_signals(stop, kill, self._console)
        gateways = map(self._gateway, range(len(self._http_ports)))
        self._console.note(f"state in {self._state.path}, logs in {self._state.logs}")
        try:
            await Supervisor(self._console).run(
                [[self._valkey()], [self._engine(), *gateways]],
                stop=stop,
                kill=kill,
                after={"valkey": self._ensure_key},
                on_ready=self._ready,
            )
        except SupervisionFailed as error:
            raise CommandFailed(
                f"The stack stopped: {error}.", hint="`headrace doctor` looks for causes."
            ) from error
        self._console.say("stopped")

    async def _ensure_key(self) -> None:
        """The local stack's API key: the one asked for, the one stored, or a new one."""
        given = self._options.api_key
        stored = self._state.read(self._state.key_file.name)
        pepper = self._pepper.encode()
        try:
            wire = await connect_gateway(self._redis_url, password=self._password)
            try:
                keys = KeyStore(wire, pepper, SystemClock())
                self._key = await _usable_key(keys, pepper, given, stored)
            finally:
                await wire.close()
        except TransportError as error:
            raise SupervisionFailed(f"the embedded server cannot be used: {error}") from error
        if given is None and self._key != stored:
            self._state.write(self._state.key_file.name, self._key)

    async def _ready(self) -> None:
        """Waits until requests can be served, then says so."""
        urls = tuple(f"http://{ports.HOST}:{port}" for port in self._http_ports)
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            try:
                async with asyncio.timeout(READY_WITHIN_S):
                    for url in urls:
                        await _until_ready(client, url)
                    model = await _first_model(client, urls[0], self._key)
            except TimeoutError:
                raise SupervisionFailed(
                    f"the gateways were not ready within {READY_WITHIN_S:g} s"
                ) from None
        self._state.announce(
            RunningStack(
                pid=os.getpid(),
                urls=urls,
                grpc_ports=tuple(self._grpc_ports),
                redis_url=self._redis_url,
                model=model,
            )
        )
        self._console.say(_welcome(urls[0], self._grpc_ports[0], model, self._key, self._state))
        for url in urls[1:]:
            self._console.say(f"also at {url}")
        self._console.say(f"ready {urls[0]}")

    def _valkey(self) -> ChildSpec:
        config = valkey.write_config(self._state, self._redis_port)

        async def is_ready() -> bool:
            return await valkey.answers(self._redis_url, self._password)

        return ChildSpec(
            name="valkey",
            argv=[str(valkey.binary()), str(config)],
            environ=dict(os.environ),
            is_ready=is_ready,
            ready_within_s=60,
            log_file=self._log("valkey"),
        )

    def _engine(self) -> ChildSpec:
        asked = {
            "MODEL": self._options.model,
            "DTYPE": self._options.dtype,
            "EXECUTOR": self._options.executor,
        }
        values = {name: value for name, value in asked.items() if value is not None}
        return self._service("engine", "engine", values | {"HTTP_PORT": "0"}, ENGINE_DRAIN_S)

    def _gateway(self, i: int) -> ChildSpec:
        name = "gateway" if len(self._http_ports) == 1 else f"gateway-{i + 1}"
        values = {
            "NAME": name,
            "HTTP_HOST": ports.HOST,
            "GRPC_HOST": ports.HOST,
            "HTTP_PORT": str(self._http_ports[i]),
            "GRPC_PORT": str(self._grpc_ports[i]),
            "PEPPER_FILE": str(self._state.pepper_file),
        }
        return self._service(name, "gateway", values, GATEWAY_DRAIN_S)

    def _service(
        self, name: str, service: str, values: Mapping[str, str], drain_s: float
    ) -> ChildSpec:
        """A process of ours: set up by its environment, ready when its ready file is there."""
        ready_file = self._state.run / f"{name}.ready.json"
        prefix = f"HEADRACE_{service.upper()}_"
        environ = dict(os.environ)
        in_file = self._file.get(service, {})
        for key, value in {"LOG_FORMAT": "console", "DRAIN_S": f"{drain_s:g}"}.items():
            if key.lower() not in in_file:  # the environment would win over the file
                environ.setdefault(prefix + key, value)
        longest_drain = environ.get(prefix + "DRAIN_S", str(in_file.get("drain_s")))
        environ |= {prefix + key: value for key, value in values.items()}
        environ |= {
            prefix + "REDIS_URL": self._redis_url,
            prefix + "REDIS_PASSWORD_FILE": str(self._state.redis_password_file),
            prefix + "READY_FILE": str(ready_file),
            "PYTHONUNBUFFERED": "1",
        }
        environ.pop(prefix + "REDIS_PASSWORD", None)
        if self._options.config_file is not None:
            environ["HEADRACE_CONFIG_FILE"] = str(self._options.config_file.absolute())

        async def is_ready() -> bool:
            return ready_file.exists()

        return ChildSpec(
            name=name,
            argv=[sys.executable, "-m", f"headrace_{service}"],
            environ=environ,
            is_ready=is_ready,
            before_start=lambda: ready_file.unlink(missing_ok=True),
            stop_within_s=_seconds(longest_drain, drain_s) + STOP_SLACK_S,
            log_file=self._log(name),
        )

    def _log(self, name: str) -> Path:
        """This run's log file; the last run's is kept beside it."""
        path = self._state.logs / f"{name}.log"
        if path.exists():
            path.replace(path.with_suffix(".log.1"))
        path.touch(mode=0o600)
        return path


async def _usable_key(keys: KeyStore, pepper: bytes, given: str | None, stored: str | None) -> str:
    """A key that the server knows. A stored one that was revoked is replaced."""
    scopes = ("inference", "admin")
    try:
        if given is not None:
            await keys.adopt(given, name=KEY_NAME, scopes=scopes)
            return given
    except ValueError as error:
        raise SupervisionFailed(f"--api-key: {error}") from error
    token = None if stored is None else parse_token(stored.encode(), pepper)
    if stored is not None and token is not None:
        known = {key.public_id: key for key in await keys.list()}
        if token.public_id not in known:  # the server's data was lost
            await keys.adopt(stored, name=KEY_NAME, scopes=scopes)
            return stored
        if known[token.public_id].revoked_ms is None:
            return stored
    text, _ = await keys.create(name=KEY_NAME, scopes=scopes)
    return text


async def _until_ready(client: httpx.AsyncClient, url: str) -> None:
    while True:
        try:
            response = await client.get(f"{url}/health/ready")
            if response.is_success:
                return
        except httpx.TransportError:
            pass  # it restarts, perhaps; the deadline is the caller's
        await asyncio.sleep(READY_POLL_S)


async def _first_model(client: httpx.AsyncClient, url: str, key: str) -> str:
    response = await client.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
    if not response.is_success:
        raise SupervisionFailed(f"GET /v1/models answered {response.status_code}: {response.text}")
    listed = cast("dict[str, list[dict[str, object]]]", response.json())
    return str(listed["data"][0]["id"])


def _config(path: Path | None) -> dict[str, dict[str, object]]:
    """Sections of the configuration file; the services check their own."""
    if path is None:
        return {}
    try:
        loaded: object = yaml.safe_load(path.read_text())
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}.", hint="See --engine-config.") from error
    except yaml.YAMLError as error:
        raise CommandFailed(f"{path} is not YAML: {error}") from error
    if not isinstance(loaded, dict):
        raise CommandFailed(f"{path} has no sections `engine:` or `gateway:`.")
    return {
        str(name): cast("dict[str, object]", section)
        for name, section in cast("dict[object, object]", loaded).items()
        if isinstance(section, dict)
    }


def _seconds(text: str, otherwise: float) -> float:
    try:
        return float(text)
    except ValueError:
        return otherwise  # the service refuses it, with its name


def _on_signals(stop: asyncio.Event, kill: asyncio.Event, console: Console) -> None:
    """The first signal stops in order, the second at once."""

    def asked() -> None:
        if stop.is_set():
            kill.set()
            return
        console.note("stopping; again to stop at once")
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked)


def _welcome(url: str, grpc_port: int, model: str, key: str, state: StateDir) -> str:
    return f"""
Headrace serves {model}
  HTTP     {url}/v1
  gRPC     {ports.HOST}:{grpc_port}
  API key  {key}
           (kept in {state.key_file})

  curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="{key}")
  print(client.chat.completions.create(
      model="{model}", messages=[{{"role": "user", "content": "Hello!"}}]
  ).choices[0].message.content)
"""
