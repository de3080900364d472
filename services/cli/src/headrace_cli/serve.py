"""The local stack: an embedded server, one engine, some gateways, as real processes on loopback.

The same programs run in a cluster; here they are supervised by one command.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from typing import Final, cast

import httpx
from headrace_gateway.auth.keys import KeyStore
from headrace_gateway.auth.tokens import PREFIX, check_adopted
from headrace_kit.clock import SystemClock
from headrace_transport.connection import connect_gateway
from headrace_transport.errors import TransportError

from headrace_cli import ports
from headrace_cli.errors import CommandFailed
from headrace_cli.local_key import KeyKeeper, usable_key
from headrace_cli.output import Console
from headrace_cli.processes import Processes, ServeOptions
from headrace_cli.state import RunningStack, StateDir
from headrace_cli.supervisor import SupervisionFailed, Supervisor

READY_POLL_S: Final = 0.05
READY_WITHIN_S: Final = 120.0
"""From all processes up to the first request that can be served."""
KEYS_POLL_S: Final = 2.0
"""A server that came back empty has the keys again within this time."""


def serve(options: ServeOptions, state: StateDir) -> None:
    """Runs the stack until a signal. Raises CommandFailed with the reason when it cannot go on."""
    check_given_key(options.api_key)
    os.umask(0o077)  # for the children too: what they write is its owner's alone
    state.open()
    with state.lock():
        http = ports.choose(options.http_port, options.gateways, flag="--http-port")
        grpc = ports.choose(options.grpc_port, options.gateways, flag="--grpc-port", taken=http)
        stack = _Stack(options, state, http, grpc, Console.standard(quiet=options.quiet))
        try:
            asyncio.run(stack.run())
        finally:
            state.withdraw()


def check_given_key(key: str | None) -> None:
    """Refuses a key that no gateway would take. Raises CommandFailed.

    The checksum of one that was made here needs the pepper, and is looked at later.
    """
    if key is None or key.startswith(PREFIX):
        return
    fault = check_adopted(key.strip("\r\n"))  # as the file ends that it was read from
    if fault is not None:
        raise CommandFailed(f"--api-key: this API key cannot be used: {fault}")


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
        self._given_key = options.api_key
        self._state = state
        self._http_ports = http_ports
        self._grpc_ports = grpc_ports
        self._console = console
        self._processes = Processes(
            options,
            state,
            os.environ,
            http_ports=http_ports,
            grpc_ports=grpc_ports,
            redis_port=ports.free()[0],
        )
        self._key = ""
        self._key_known = asyncio.Event()

    async def run(self) -> None:
        stop, kill = asyncio.Event(), asyncio.Event()
        _on_signals(stop, kill, self._console)
        self._console.note(f"state in {self._state.path}, logs in {self._state.logs}")
        failure = await self._supervise(stop, kill)
        if failure is not None:
            raise CommandFailed(
                f"The stack stopped: {failure}.", hint="`headrace doctor` looks for causes."
            ) from failure
        self._console.say("stopped")

    async def _supervise(
        self, stop: asyncio.Event, kill: asyncio.Event
    ) -> SupervisionFailed | None:
        made = self._processes
        async with asyncio.TaskGroup() as group:
            keeper = group.create_task(self._keep_keys(), name="keys")
            try:
                await Supervisor(self._console).run(
                    [[made.valkey()], [made.engine(), *made.gateways()]],
                    stop=stop,
                    kill=kill,
                    after={"valkey": self._ensure_key},
                    on_ready=self._ready,
                )
            except SupervisionFailed as error:
                return error
            finally:
                keeper.cancel()
        return None

    async def _ensure_key(self) -> None:
        stored = self._state.read(self._state.key_file.name)
        made = self._processes
        try:
            wire = await connect_gateway(made.redis_url, password=made.redis_password)
            try:
                keys = KeyStore(wire, made.pepper, SystemClock())
                self._key = await usable_key(keys, made.pepper, self._given_key, stored)
            finally:
                await wire.close()
        except TransportError as error:
            raise SupervisionFailed(f"the embedded server cannot be used: {error}") from error
        except ValueError as error:
            raise SupervisionFailed(f"--api-key: {error}") from error
        if self._key != stored:
            self._state.write(self._state.key_file.name, self._key)
        self._key_known.set()

    async def _keep_keys(self) -> None:
        """Puts keys back when the server lost them; runs until cancelled."""
        await self._key_known.wait()
        made = self._processes
        keeper: KeyKeeper | None = None
        async with AsyncExitStack() as wires:
            while True:
                try:
                    if keeper is None:
                        wire = await connect_gateway(made.redis_url, password=made.redis_password)
                        wires.push_async_callback(wire.close)
                        keeper = KeyKeeper(wire)
                    if restored := await keeper.look():
                        self._console.note(f"API keys put back that the server lost: {restored}")
                except TransportError:
                    pass  # it restarts; what it lost is seen at the next look
                await asyncio.sleep(KEYS_POLL_S)

    async def _ready(self) -> None:
        """Waits until requests can be served, then says so."""
        urls = tuple(f"http://{ports.HOST}:{port}" for port in self._http_ports)
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            try:
                async with asyncio.timeout(READY_WITHIN_S):
                    for url in urls:
                        await until_ready(client, url)
                    model = await first_model(client, urls[0], self._key)
            except TimeoutError:
                raise SupervisionFailed(
                    f"the gateways were not ready within {READY_WITHIN_S:g} s"
                ) from None
        self._state.announce(
            RunningStack(
                pid=os.getpid(),
                urls=urls,
                grpc_ports=tuple(self._grpc_ports),
                redis_url=self._processes.redis_url,
                model=model,
            )
        )
        self._console.say(
            welcome(urls[0], self._grpc_ports[0], model, self._key, self._state.key_file)
        )
        for url in urls[1:]:
            self._console.say(f"also at {url}")
        self._console.say(f"ready {urls[0]}")


async def until_ready(client: httpx.AsyncClient, url: str) -> None:
    """Returns once a gateway says that it can serve. Has no deadline of its own."""
    while True:
        try:
            response = await client.get(f"{url}/health/ready")
            if response.is_success:
                return
        except httpx.TransportError:
            pass  # it restarts, perhaps; the deadline is the caller's
        await asyncio.sleep(READY_POLL_S)


async def first_model(client: httpx.AsyncClient, url: str, key: str) -> str:
    """Name of the served model. Raises SupervisionFailed."""
    response = await client.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
    if not response.is_success:
        raise SupervisionFailed(f"GET /v1/models answered {response.status_code}: {response.text}")
    listed = cast("dict[str, list[dict[str, object]]]", response.json())
    return str(listed["data"][0]["id"])


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


def welcome(url: str, grpc_port: int, model: str, key: str, key_file: object) -> str:
    """What a person needs to talk to the stack."""
    return f"""
Headrace serves {model}
  HTTP     {url}/v1
  gRPC     {ports.HOST}:{grpc_port}
  API key  {key}
           (kept in {key_file})

curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' \\
  -H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "max_tokens": 64, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key}")
print(client.chat.completions.create(
    model="{model}", max_tokens=64, messages=[{{"role": "user", "content": "Hello!"}}]
).choices[0].message.content)
"""
