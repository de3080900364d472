"""What it takes to reach another deployment's server: as its gateways are told, by the environment."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_gateway.settings import GatewaySecrets, GatewaySettings
from headrace_kit.errors import SettingsError
from headrace_kit.settings import load, load_secrets
from headrace_transport.address import Access

from headrace_cli.errors import CommandFailed


def from_environment(environ: Mapping[str, str]) -> tuple[Access, GatewaySecrets]:
    """Password and certificates, and the secrets they are of. Raises CommandFailed."""
    try:
        hidden = load_secrets(GatewaySecrets, environ)
        return Access.of(load(GatewaySettings, environ=environ), hidden), hidden
    except SettingsError as error:
        raise CommandFailed(str(error)) from error
