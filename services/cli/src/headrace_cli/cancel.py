"""Ending a request by its id, whoever reads it."""

from __future__ import annotations

from headrace_cli.endpoint import Endpoint, check, request_path, understood
from headrace_cli.errors import CommandFailed


def run(endpoint: Endpoint, request_id: str) -> None:
    """Cancels it. Raises CommandFailed when it is unknown or over."""
    with endpoint.client() as client, understood(endpoint.url):
        answer = client.delete(request_path(request_id))
        check(answer)
        ended = answer.json()["cancelled"] is False
    if ended:
        raise CommandFailed(f"{request_id} had ended already.")
    print(f"cancelled {request_id}")
