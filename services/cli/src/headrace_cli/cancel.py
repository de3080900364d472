"""Ending a request by its id, whoever reads it."""

from __future__ import annotations

import httpx

from headrace_cli.endpoint import Endpoint, check, request_path
from headrace_cli.errors import CommandFailed


def run(endpoint: Endpoint, request_id: str) -> None:
    """Cancels it. Raises CommandFailed when it is unknown or over."""
    with endpoint.client() as client:
        try:
            answer = client.delete(request_path(request_id))
        except httpx.TransportError as error:
            raise CommandFailed(f"{endpoint.url} does not answer: {error}") from error
    check(answer)
    if answer.json().get("cancelled") is False:
        raise CommandFailed(f"{request_id} had ended already.")
    print(f"cancelled {request_id}")
