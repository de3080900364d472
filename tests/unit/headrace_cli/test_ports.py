"""Loopback ports."""

from __future__ import annotations

import socket

import pytest
from headrace_cli import ports
from headrace_cli.errors import CommandFailed


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.create_server((ports.HOST, 0)) as server:
        port = int(server.getsockname()[1])
        with pytest.raises(CommandFailed, match=f"Port {port} cannot be used: another program"):
            ports.choose(port, 1, flag="--http-port")


def test_further_gateways_take_the_next_free_ports() -> None:
    first = ports.free()[0]
    chosen = ports.choose(first, 3, flag="--http-port")
    assert chosen[0] == first
    assert chosen == sorted(set(chosen))


def test_a_port_that_others_of_ours_take_is_skipped_or_refused() -> None:
    first = ports.free()[0]
    assert first + 1 not in ports.choose(first, 2, flag="--grpc-port", taken=[first + 1])
    with pytest.raises(CommandFailed, match="asked for twice"):
        ports.choose(first, 1, flag="--grpc-port", taken=[first])


def test_zero_takes_free_ports() -> None:
    chosen = ports.choose(0, 3, flag="--http-port")
    assert len(set(chosen)) == 3
    assert [ports.problem(port) for port in chosen] == [None] * 3
