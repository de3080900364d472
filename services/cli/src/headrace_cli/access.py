"""What it takes to reach a server: the local stack's, or another deployment's as its gateways are told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from headrace_gateway.settings import GatewaySecrets, GatewaySettings
from headrace_kit.errors import SettingsError
from headrace_kit.settings import load, load_secrets, without_credentials
from headrace_transport.address import Access
from headrace_transport.connection import connect_gateway
from headrace_transport.errors import RecordRejected, TransportError
from headrace_transport.interface import GatewayWire

from headrace_cli.errors import CommandFailed, no_stack
from headrace_cli.state import StateDir


def find_server(
    redis_url: str | None, state: StateDir, environ: Mapping[str, str]
) -> tuple[str, Access, str | None]:
    """URL, access and pepper: the named server's by the environment, else the local stack's.

    The pepper is None where the environment has none. Raises CommandFailed.
    """
    url = redis_url or environ.get("HEADRACE_GATEWAY_REDIS_URL")
    if url is None:
        running = state.running_now()
        if running is None:
            raise no_stack("--redis-url", "HEADRACE_GATEWAY_REDIS_URL")
        access = Access(password=state.secret(state.redis_password_file))
        return running.redis_url, access, state.secret(state.pepper_file)
    try:
        hidden = load_secrets(GatewaySecrets, environ)
        access = Access.of(load(GatewaySettings, environ=environ), hidden)
    except SettingsError as error:
        raise CommandFailed(str(error)) from error
    return url, access, None if hidden.pepper is None else hidden.pepper.get_secret_value()


@asynccontextmanager
async def open_wire(redis_url: str, access: Access) -> AsyncGenerator[GatewayWire]:
    """The wire over a server. Raises CommandFailed for one that cannot be used, then or later, and for
    a name that none can have.
    """
    try:
        wire = await connect_gateway(redis_url, access=access)
        try:
            yield wire
        finally:
            await wire.close()
    except RecordRejected as error:
        raise CommandFailed(f"{error}.") from error
    except TransportError as error:
        shown = without_credentials(redis_url)
        raise CommandFailed(f"The server {shown} cannot be used: {error}") from error
