"""Both APIs over TLS, with one certificate."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.certificates import make_certificates
from support.processes import gateway_program
from support.redis import redis_server


async def test_both_apis_speak_tls_and_nothing_else(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certificates")
    settings = {"tls_cert_file": made.cert, "tls_key_file": made.key}
    with redis_server("valkey") as server:
        async with gateway_program(server.url, tmp_path / "gateway", settings) as program:
            await program.ready()
            trusting = ssl.create_default_context(cafile=str(made.ca))
            async with httpx.AsyncClient(verify=trusting, timeout=20) as client:
                url = f"https://localhost:{program.http_port}/health/ready"
                assert (await client.get(url)).status_code == 200
                with pytest.raises(httpx.RemoteProtocolError):
                    await client.get(url.replace("https", "http"))
            credentials = grpc.ssl_channel_credentials(made.ca.read_bytes())
            target = f"localhost:{program.grpc_port}"
            async with grpc.aio.secure_channel(target, credentials) as channel:
                stub: Any = health_pb2_grpc.HealthStub(channel)
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
