"""A real cluster for tests of the chart: what kubectl and helm say, as values and conditions."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from support.waiting import wait_until

WITHIN_S: Final = 120.0
"""Longest that a condition may take on a busy machine; a test that waits this long has failed."""
BUSY_S: Final = 2.0
"""Pause before a busy API is asked again."""


class Refused(AssertionError):
    """A command that ended with an error, and what it said."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that ``tests/deploy/cluster/up.sh`` started."""

    kubeconfig: Path
    binaries: Path
    """Folder of kubectl, helm3 and helm4."""
    chart: Path
    home: Path
    """Of helm's caches."""

    def kubectl(self, *arguments: str, given: str | None = None, timeout_s: float = 120.0) -> str:
        """What ``kubectl`` prints. Raises ``Refused``."""
        return self._run([str(self.binaries / "kubectl"), *arguments], given, timeout_s)

    def helm(
        self, *arguments: str, given: str | None = None, major: int = 4, timeout_s: float = 400.0
    ) -> str:
        """What ``helm`` prints. Raises ``Refused``."""
        return self._run([str(self.binaries / f"helm{major}"), *arguments], given, timeout_s)

    def get(self, *arguments: str) -> dict[str, Any]:
        """``kubectl get ... -o json``; once more where the API is too busy to answer."""
        command = ("get", *arguments, "-o", "json")
        try:
            told = self.kubectl(*command)
        except Refused as error:
            if "NotFound" in str(error):
                raise
            time.sleep(BUSY_S)
            told = self.kubectl(*command)
        return json.loads(told)

    def make_namespace(self, name: str) -> None:
        """A fresh one, also right after one of that name was deleted."""

        def gone() -> bool:
            return not self.kubectl("get", "namespace", name, "--ignore-not-found").strip()

        until(gone, f"the namespace {name} does not go")
        self.kubectl("create", "namespace", name)

    def _run(self, command: Sequence[str], given: str | None, timeout_s: float) -> str:
        environ = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            **{f"HELM_{kind}_HOME": str(self.home / kind) for kind in ("CACHE", "CONFIG", "DATA")},
        }
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            env=environ,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise Refused(f"{' '.join(command)}: {done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout


@dataclass
class Release:
    """One installation of the chart, in a namespace of its own."""

    cluster: Cluster
    namespace: str
    values: dict[str, Any]
    name: str = "headrace"
    helm: int = 4
    """Major version of helm."""
    took_s: dict[str, float] = field(default_factory=dict[str, float])
    """Of the last install and the last upgrade, in seconds."""

    def install(self, *, wait: bool = True, timeout_s: int = 240) -> str:
        """Installs the chart into its namespace, which is there; the notes."""
        flags = ["--wait"] if wait else []
        return self._helm(
            *("upgrade", "--install", *flags),
            *(f"--timeout={timeout_s}s", "--values=-"),
            took="install",
        )

    def upgrade(self, changes: Mapping[str, Any], *flags: str, timeout_s: int = 240) -> str:
        """Upgrades with changed values, which hold from then on if it succeeds."""
        changed = merged(self.values, changes)
        before, self.values = self.values, changed
        try:
            return self._helm("upgrade", "--wait", f"--timeout={timeout_s}s", *flags, "--values=-")
        except BaseException:
            self.values = before
            raise

    def test(self) -> str:
        """``helm test``, with the log of its pod. Raises ``Refused`` with that log."""
        try:
            self.cluster.helm("test", self.name, f"--namespace={self.namespace}", "--timeout=200s")
        except Refused as error:
            raise Refused(f"{error}\n{self.kubectl('logs', 'headrace-test')}") from None
        return self.kubectl("logs", "headrace-test")

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """``kubectl`` in the namespace."""
        return self.cluster.kubectl(f"--namespace={self.namespace}", *arguments, given=given)

    def pods(self, component: str) -> list[dict[str, Any]]:
        """Its pods of a component that are not leaving."""
        found = self.cluster.get(
            "pods",
            f"--namespace={self.namespace}",
            "-l",
            f"app.kubernetes.io/component={component}",
        )["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def names(self, component: str) -> list[str]:
        """Names of those."""
        return [pod["metadata"]["name"] for pod in self.pods(component)]

    def ready(self, component: str) -> int:
        """How many of them are ready."""
        return sum(map(is_ready, self.pods(component)))

    def workload(self, component: str) -> str:
        """``deployment.apps/name`` of gateways or engines."""
        found = self.kubectl(
            "get", "deployment", "-l", f"app.kubernetes.io/component={component}", "-o", "name"
        )
        return found.strip()

    def scale(self, component: str, replicas: int) -> None:
        """Sets the number of pods; does not wait."""
        self.kubectl("scale", self.workload(component), f"--replicas={replicas}")

    def events(self) -> str:
        """Messages of the namespace's events, one a line."""
        found = cast(
            "list[dict[str, Any]]",
            self.cluster.get("events", f"--namespace={self.namespace}")["items"],
        )
        return "\n".join(f"{each['reason']}: {each.get('message', '')}" for each in found)

    def logs(self, component: str, *, previous: bool = False) -> str:
        """Logs of all pods of a component, as far as they have any."""
        told: list[str] = []
        for name in self.names(component):
            try:
                told.append(self.kubectl("logs", name, *(["--previous"] if previous else [])))
            except Refused:
                continue  # its container has not begun, or has no predecessor
        return "\n".join(told)

    def secret(self, name: str, key: str) -> str:
        """A value of a Secret."""
        data = self.cluster.get("secret", name, f"--namespace={self.namespace}")["data"]
        return base64.b64decode(data[key]).decode()

    @property
    def api_key(self) -> str:
        """The first API key, which the chart makes."""
        return self.secret("headrace-auth", "api-key")

    @property
    def url(self) -> str:
        """The Service's node port, which is on loopback alone."""
        ports = self.cluster.get("service", "headrace", f"--namespace={self.namespace}")["spec"][
            "ports"
        ]
        return f"http://127.0.0.1:{next(p['nodePort'] for p in ports if p['name'] == 'http')}"

    def uninstall(self) -> None:
        """Removes it and its namespace, without a drain."""
        self.cluster.helm(
            "uninstall", self.name, f"--namespace={self.namespace}", "--ignore-not-found"
        )
        self.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")
        self.cluster.kubectl(
            "delete", "namespace", self.namespace, "--ignore-not-found", "--wait=false"
        )

    def _helm(self, action: str, *flags: str, took: str | None = None) -> str:
        began = time.monotonic()
        told = self.cluster.helm(
            *(action, self.name, str(self.cluster.chart), f"--namespace={self.namespace}"),
            *flags,
            given=json.dumps(self.values),
            major=self.helm,
        )
        self.took_s[took or action] = time.monotonic() - began
        return told


def is_ready(pod: dict[str, Any]) -> bool:
    """Whether a pod's condition says so."""
    conditions = cast("list[dict[str, str]]", pod["status"].get("conditions", []))
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with ``changes`` laid over, key by key."""
    result = dict(values)
    for key, value in changes.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            result[key] = merged(cast("dict[str, Any]", below), cast("dict[str, Any]", value))
        else:
            result[key] = value
    return result


until = partial(wait_until, within_s=WITHIN_S, every_s=0.2)
"""Waits with the patience that a cluster needs."""
