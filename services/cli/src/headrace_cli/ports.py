"""Loopback ports: which are free, and whose turn is next."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from headrace_cli.errors import CommandFailed

HOST = "127.0.0.1"


def problem(port: int) -> str | None:
    """Why nothing can listen on a port; None when it is free."""
    with socket.socket() as probe:
        # As servers do it: connections that linger after a stop are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "another program listens on it"
            return error.strerror or str(error)
    return None


def free(count: int = 1) -> list[int]:
    """Ports that are free now, chosen by the system; all different."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def choose(first: int, count: int, *, flag: str, taken: Sequence[int] = ()) -> list[int]:
    """``first``, then the next free ports above it. 0: free ports of the system's choice.

    Raises CommandFailed when ``first`` is not free; the others are found.
    """
    if first == 0:
        return free(count)
    if first in taken:
        raise CommandFailed(f"Port {first} is asked for twice.", hint=f"Change {flag}.")
    if (reason := problem(first)) is not None:
        raise CommandFailed(
            f"Port {first} cannot be used: {reason}.",
            hint=f"Stop that program, or choose another port with {flag} (0 takes a free one).",
        )
    chosen = [first]
    port = first
    while len(chosen) < count:
        port += 1
        if port > 65_535:
            raise CommandFailed(f"There are no {count} free ports from {first} on.")
        if port not in taken and problem(port) is None:
            chosen.append(port)
    return chosen
