"""What a cluster of one's own brings: a server behind a sentinel, over TLS and with users; a
certificate for the gateways; weights from a hub.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from support import hub, models, toy_tokenizers
from support.certificates import make_certificates
from support.chart import one, render
from support.kubernetes import Cluster, Release, until
from support.objects import made_of, pod, service
from support.policies import enforced, reaches
from support.timings import Timings

pytestmark = pytest.mark.timeout(600)

NAMESPACE: Final = "headrace-external"
SMALL: Final = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
NAMES: Final = ("redis", "sentinel", "headrace", f"headrace.{NAMESPACE}.svc")
VALUES: Final[dict[str, Any]] = {
    "valkey": {"enabled": False},
    "externalRedis": {
        "sentinel": {
            "nodes": ["sentinel:26379"],
            "service": "main",
            "passwordKey": "sentinel-password",
        },
        "tls": {"enabled": True, "caSecret": {"name": "tls"}, "clientSecret": "tls"},
        "existingSecret": "server",
        "gatewayUsername": "gateway",
        "engineUsername": "engine",
    },
    "gateway": {
        "replicas": 1,
        "minReadySeconds": 0,
        "settings": {"drain_notice_s": 2},
        "tls": {"enabled": True, "secretName": "tls"},
        "resources": SMALL,
    },
    "models": {
        "tiny": {
            "artifact": "hf://org/tiny@main",
            "settings": {"executor": "cpu", "dtype": "float32", "cache_bytes": 16 << 20},
            "loader": {"endpoint": "http://hub:8080", "resources": SMALL},
            "resources": SMALL,
            "shmSize": "64Mi",
        }
    },
    "tests": {"resources": SMALL},
    "networkPolicy": {"metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]},
}
OF_SENTINEL: Final = (
    "user sentinel on >of-sentinel allchannels +multi +slaveof +ping +exec +subscribe"
    " +config|rewrite +role +publish +info +client|setname +client|kill +script|kill\n"
)
"""Rights that its documentation asks for."""
SENTINEL: Final = """
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel monitor main redis 6379 1
sentinel auth-user main sentinel
sentinel auth-pass main of-sentinel
requirepass asked-for
"""
TLS: Final = (
    *("--port", "0", "--tls-replication", "yes", "--tls-cert-file", "/tls/tls.crt"),
    *("--tls-key-file", "/tls/tls.key", "--tls-ca-cert-file", "/tls/ca.crt"),
)
SERVE_HUB: Final = """
import pathlib, signal
from hub import hub
files = [path for path in pathlib.Path("/model").iterdir() if path.is_file()]
with hub({path.name: path.read_bytes() for path in files}, host="0.0.0.0", port=8080):
    signal.sigwait([signal.SIGTERM])
"""


def server(folder: Path) -> list[dict[str, Any]]:
    """Server and sentinel: only over TLS, only with a certificate, with the chart's own users."""
    data = one(render(), "Secret", "rel-headrace-valkey")["data"]
    text = {key: base64.b64decode(value).decode() for key, value in data.items()}
    made = make_certificates(folder, NAMES)
    given = {
        "gateway-password": text["gateway-password"],
        "engine-password": text["engine-password"],
        "sentinel-password": "asked-for",
    }
    files = {"users.acl": text["users.acl"] + OF_SENTINEL, "sentinel.conf": SENTINEL}
    certificates = {
        "ca.crt": made.ca.read_bytes(),
        "tls.crt": made.cert.read_bytes(),
        "tls.key": made.key.read_bytes(),
    }
    run_server = [
        *("valkey-server", *TLS, "--tls-port", "6379", "--aclfile", "/conf/users.acl"),
        *("--save", "", "--appendonly", "no", "--maxmemory", "64mb"),
        *("--maxmemory-policy", "noeviction", "--dir", "/tmp"),
    ]
    # It writes what it learns into its file, and wants to know the server's name at once.
    run_sentinel = (
        "cp /conf/sentinel.conf /tmp/ && until getent hosts redis; do sleep 0.2; done &&"
        f" exec valkey-server /tmp/sentinel.conf --sentinel --tls-port 26379 {' '.join(TLS)}"
    )
    image = "valkey/valkey:8.0"
    return [
        made_of("Secret", "server", **given),
        made_of("Secret", "tls", **certificates),
        made_of("ConfigMap", "server", **files),
        service("redis", 6379, "server"),
        service("sentinel", 26379, "server"),
        pod(
            "server",
            {"server": (image, run_server), "sentinel": (image, ["sh", "-c", run_sentinel])},
            {"/tls": {"secret": {"secretName": "tls"}}, "/conf": {"configMap": {"name": "server"}}},
        ),
    ]


def model_hub(folder: Path) -> list[dict[str, Any]]:
    """A hub with a model of random weights, whose longest answers last a while."""
    tiny = models.tiny_model(num_hidden_layers=1, max_position_embeddings=8192)
    models.save(tiny, folder)
    (folder / "tokenizer.json").write_bytes(toy_tokenizers.byte_level())
    weights = {file.name: file.read_bytes() for file in folder.iterdir()}
    source = {"hub.py": inspect.getsource(hub), "serve.py": SERVE_HUB}
    return [
        made_of("ConfigMap", "hub", **source),
        made_of("ConfigMap", "model", **weights),
        service("hub", 8080, "hub"),
        pod(
            "hub",
            {"hub": ("headrace-cli:0.1.0", ["python3", "/hub/serve.py"])},
            {"/hub": {"configMap": {"name": "hub"}}, "/model": {"configMap": {"name": "model"}}},
        ),
    ]


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, timings: Timings, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Release]:
    """The chart beside them."""
    cluster.make_namespace(NAMESPACE)
    made = Release(cluster, NAMESPACE, VALUES)
    try:
        folders = [tmp_path_factory.mktemp(name) for name in ("tls", "model")]
        items = [*server(folders[0]), *model_hub(folders[1])]
        objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        made.kubectl("create", "--filename=-", given=objects)
        with enforced(cluster, NAMESPACE):
            made.install()
            timings(
                "helm install --wait: server behind a sentinel over TLS, weights from a hub, "
                "network policies held",
                made.took_s["install"],
            )
            yield made
    finally:
        made.uninstall()


def test_it_passes_its_test_over_tls_with_a_server_of_ones_own(release: Release) -> None:
    told = release.test()
    for what in ("key", "stream", "cancel", "resum", "limit", "metrics"):
        assert what in told.lower(), told


def test_the_loader_proved_every_file_before_the_engine_read_it(release: Release) -> None:
    [engine] = release.names("engine")
    told = release.kubectl("logs", engine, "--container=loader")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert name in told
    assert "SHA-256" in told


def test_network_policies_let_through_what_must_and_nothing_else(release: Release) -> None:
    [gateway], [engine] = release.names("gateway"), release.names("engine")
    allowed = [
        (gateway, "redis", 6379),
        (gateway, "sentinel", 26379),
        (engine, "redis", 6379),
        (engine, "hub", 8080),
        ("hub", "headrace", 8000),
        ("hub", "headrace", 9000),
    ]
    refused = [
        (gateway, "hub", 8080),
        (gateway, "headrace-engines", 9100),
        (engine, "headrace", 8000),
        ("hub", "headrace-engines", 9100),
    ]
    for pod_name, host, port in allowed:
        until(
            partial(reaches, release, pod_name, host, port),
            f"{pod_name} does not reach {host}:{port}",
        )
    for pod_name, host, port in refused:
        assert not reaches(release, pod_name, host, port), f"{pod_name} reaches {host}:{port}"
