"""What autoscalers ask a cluster for, served to a test's cluster from the pods themselves.

A stand-in for metrics-server and for an adapter of Prometheus: the use of the CPU is read from the
pods' control groups, and a custom metric of a pod is the gauge that its process serves. It listens
on loopback, and the API server of a cluster on this machine passes calls on to it.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
from support.certificates import make_certificates
from support.kubernetes import Cluster, is_ready

RESOURCE: Final = "/apis/metrics.k8s.io/v1beta1"
CUSTOM: Final = "/apis/custom.metrics.k8s.io/v1beta1"
NAMESPACE: Final = "metrics-api"
METRICS_PORT: Final = 9100
"""Of engines."""
_FIRST: Final = Path("/sys/fs/cgroup/cpuacct/kubepods")
_SECOND: Final = Path("/sys/fs/cgroup/kubepods")
"""Control groups of pods, of either version."""

Answer = dict[str, Any]


class MetricsApi:
    """Answers one cluster's controllers. Thread-safe, as their calls come side by side."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, float]] = {}
        """Of a pod by its uid: when it was looked at, and the seconds of CPU until then."""
        self._rates: dict[str, float] = {}
        """Cores that it used between the two last looks."""

    def answer(self, path: str, query: Mapping[str, list[str]]) -> Answer | None:
        """What a path has, or None."""
        selector = query.get("labelSelector", [""])[0]
        if path == RESOURCE:
            return _resources("metrics.k8s.io/v1beta1", "pods", "PodMetrics")
        if path == CUSTOM:
            return _resources("custom.metrics.k8s.io/v1beta1", "pods/*", "MetricValueList")
        if found := re.fullmatch(rf"{RESOURCE}/namespaces/([^/]+)/pods", path):
            return self._cpu(found[1], selector)
        if found := re.fullmatch(rf"{CUSTOM}/namespaces/([^/]+)/pods/\*/(\w+)", path):
            return self._gauge(found[1], found[2], selector)
        return None

    def _pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        found = self._cluster.get("pods", f"--namespace={namespace}", f"--selector={selector}")
        pods = cast("list[dict[str, Any]]", found["items"])
        return [pod for pod in pods if is_ready(pod)]

    def _cpu(self, namespace: str, selector: str) -> Answer:
        items: list[Answer] = []
        for pod in self._pods(namespace, selector):
            cores = self._cores(pod["metadata"]["uid"])
            if cores is None:
                continue  # seen for the first time
            usage = {"cpu": f"{round(cores * 1000)}m", "memory": "1Mi"}
            [container] = pod["spec"]["containers"]
            items.append(
                {
                    "metadata": _named(pod),
                    "timestamp": _now(),
                    "window": "1s",
                    "containers": [{"name": container["name"], "usage": usage}],
                }
            )
        return {"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "items": items}

    def _cores(self, uid: str) -> float | None:
        now, used = time.monotonic(), cpu_seconds(uid)
        with self._lock:
            before = self._seen.get(uid)
            if before is None:
                self._seen[uid] = (now, used)
            elif now - before[0] > 1:
                self._rates[uid] = (used - before[1]) / (now - before[0])
                self._seen[uid] = (now, used)
            return self._rates.get(uid)

    def _gauge(self, namespace: str, name: str, selector: str) -> Answer:
        items: list[Answer] = []
        for pod in self._pods(namespace, selector):
            value = gauge(pod, name)
            if value is not None:
                described = {"kind": "Pod", "apiVersion": "/v1", **_named(pod)}
                items.append(
                    {
                        "describedObject": described,
                        "metricName": name,
                        "timestamp": _now(),
                        "value": f"{round(value * 1000)}m",
                    }
                )
        group = "custom.metrics.k8s.io/v1beta1"
        return {"kind": "MetricValueList", "apiVersion": group, "metadata": {}, "items": items}


def gauge(pod: dict[str, Any], name: str) -> float | None:
    """A gauge of an engine's pod, or None while it does not answer or has none of that name."""
    url = f"http://{pod['status']['podIP']}:{METRICS_PORT}/metrics"
    try:
        told = httpx.get(url, timeout=5, trust_env=False).text
    except httpx.HTTPError:
        return None
    found = re.search(rf"^{name} (\S+)$", told, re.MULTILINE)
    return float(found[1]) if found else None


def cpu_seconds(uid: str) -> float:
    """What a pod has used since it began; 0 once it is gone."""
    for file in _FIRST.glob(f"**/pod{uid}/cpuacct.usage"):
        return int(file.read_text()) / 1e9
    for file in _SECOND.glob(f"**/pod{uid}/cpu.stat"):
        return int(file.read_text().split("usage_usec ")[1].split()[0]) / 1e6
    return 0.0


@contextmanager
def metrics_api(cluster: Cluster, folder: Path) -> Generator[MetricsApi]:
    """Serves both APIs to a cluster while the block runs; ``folder`` is for certificates."""
    made = make_certificates(folder)
    api = MetricsApi(cluster)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            answer = api.answer(unquote(parts.path).rstrip("/"), parse_qs(parts.query))
            content = json.dumps(answer or {"kind": "Status", "code": 404}).encode()
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.cert, made.key)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    objects = json.dumps(_objects(server.server_port))
    try:
        cluster.kubectl("apply", "--filename=-", given=objects)
        yield api
    finally:
        # A cluster with an API that nobody serves deletes no namespace any more.
        cluster.kubectl("delete", "--filename=-", "--ignore-not-found", given=objects)
        server.shutdown()
        server.server_close()
        thread.join()


def _objects(port: int) -> Answer:
    """What makes the API server pass calls on: its service has a name instead of pods."""
    meta = {"name": "metrics-api", "namespace": NAMESPACE}
    items: list[Answer] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
    ]
    items += [
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"v1beta1.{group}"},
            "spec": {
                "group": group,
                "version": "v1beta1",
                "service": {**meta, "port": port},
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        }
        for group in ("metrics.k8s.io", "custom.metrics.k8s.io")
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _resources(version: str, name: str, kind: str) -> Answer:
    resource = {"name": name, "singularName": "", "namespaced": True, "kind": kind}
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": [{**resource, "verbs": ["get", "list"]}],
    }


def _named(pod: dict[str, Any]) -> Answer:
    return {key: pod["metadata"][key] for key in ("name", "namespace")}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
