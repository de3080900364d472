"""The stack on a real Kubernetes: installed, updated, scaled and rolled back under open streams.

Engines echo, so that every stream's text is known in advance: a token that is lost or told twice
shows. Clients read on as docs/guides/api.md tells them to.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from containers.cache import ROOT
from containers.daemon import Daemon
from support.following import Followed, follow
from support.guides import Reader, block
from support.kubernetes import Cluster, Refused, Release, is_ready, until
from support.metrics_api import metrics_api
from support.timings import Timings

pytestmark = pytest.mark.timeout(600)

STREAMS = 50
PROMPT = " ".join(map(str, range(100, 300)))
"""No piece of it looks like another."""
TOKENS = 200
STEP_MS = 25
"""A stream takes five seconds on engines that are not busy: more than any grace below."""
SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
VALUES: dict[str, Any] = {
    "gateway": {
        "replicas": 2,
        "minReadySeconds": 0,
        "service": {"type": "NodePort"},
        "settings": {
            "drain_notice_s": 2,
            "drain_s": 2,
            "handover_s": 60,  # clients of a busy machine come late
            "scale_from_zero": True,
        },
        "resources": SMALL,
    },
    "engineDefaults": {
        "replicas": 2,
        "settings": {
            "executor": "echo",
            "echo_step_ms": STEP_MS,
            "cache_blocks": 4096,
            "max_batch": 32,
            "drain_s": 2,
            "lease_ms": 3000,
        },
        "resources": SMALL,
        "shmSize": "64Mi",
    },
    "valkey": {"resources": SMALL},
    "tests": {"resources": SMALL},
}


NAMESPACE = "headrace-echo"
VOLUME: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "headrace-test"},
    "spec": {
        "capacity": {"storage": "8Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": NAMESPACE, "name": "data-headrace-valkey-0"},
    },
}
"""For the server's claim: nobody makes volumes in this cluster."""


@dataclass(frozen=True)
class Served:
    """The release that all tests of this file share, and what its streams must say."""

    release: Release
    url: str
    key: str
    model: str
    text: str

    @property
    def body(self) -> dict[str, Any]:
        return {"model": self.model, "prompt": PROMPT, "max_tokens": TOKENS}

    def client(self) -> httpx.AsyncClient:
        """As many connections as streams."""
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=60,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )


@pytest.fixture(scope="module")
def volume(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], None]:
    """Makes the server's volume, empty, in place of the one before."""

    def make() -> None:
        name = VOLUME["metadata"]["name"]
        cluster.kubectl("delete", "persistentvolume", name, "--ignore-not-found")
        folder = tmp_path_factory.mktemp("valkey")
        folder.chmod(0o777)  # the server runs as somebody else
        spec = {**VOLUME["spec"], "hostPath": {"path": str(folder)}}
        cluster.kubectl("create", "--filename=-", given=json.dumps({**VOLUME, "spec": spec}))

    return make


@pytest.fixture
def reader(served: Served, tmp_path: Path) -> Reader:
    """Of the guides."""
    return Reader(served.release.cluster, NAMESPACE, tmp_path)


@pytest.fixture(scope="module")
def served(cluster: Cluster, timings: Timings, volume: Callable[[], None]) -> Generator[Served]:
    """The echo stack, installed once."""
    release = Release(cluster, NAMESPACE, VALUES)
    cluster.make_namespace(NAMESPACE)
    try:
        volume()
        release.install()
        timings(
            "helm install --wait: 2 gateways, 2 echo engines, Valkey", release.took_s["install"]
        )
        url, key = release.url, release.api_key
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(transport=httpx.HTTPTransport(retries=5), timeout=20) as http:
            model = http.get(f"{url}/v1/models", headers=headers).json()
        made = Served(release, url, key, model["data"][0]["id"], "")
        [whole] = asyncio.run(streams(made, 1))
        assert whole.tokens == TOKENS
        assert PROMPT.startswith(whole.text)
        yield Served(release, url, key, made.model, whole.text)
    finally:
        release.uninstall()
        name = VOLUME["metadata"]["name"]
        cluster.kubectl("delete", "persistentvolume", name, "--ignore-not-found", "--wait=false")


async def streams(served: Served, count: int) -> list[Followed]:
    """So many streams at once, each to its end."""
    async with served.client() as http, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(follow(http, lambda: served.url, served.body)) for _ in range(count)
        ]
    return [task.result() for task in tasks]


async def under_load(served: Served, change: Callable[[], None]) -> list[Followed]:
    """Makes a change while ``STREAMS`` streams are open: each client begins the next when one is
    over, until the change is done.
    """
    ended: list[Followed] = []
    over = asyncio.Event()
    began = asyncio.Event()

    async def client(http: httpx.AsyncClient) -> None:
        while not over.is_set():
            ended.append(await follow(http, lambda: served.url, served.body))
            began.set()

    async with served.client() as http, asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(client(http))
        await began.wait()
        try:
            await asyncio.to_thread(change)
        finally:
            over.set()
    return ended


def check(served: Served, ended: list[Followed]) -> None:
    """No stream lost a token or told one twice."""
    wrong = [each for each in ended if each.text != served.text]
    assert not wrong, f"{len(wrong)} of {len(ended)}, the first: {wrong[0]}"
    assert all(each.rising for each in ended)
    assert {each.tokens for each in ended} == {TOKENS}
    assert {each.finish for each in ended} == {"length"}


def summary(ended: list[Followed]) -> str:
    """For the timings."""
    return (
        f"{len(ended)} streams, {sum(each.handed_over for each in ended)} handed over, "
        f"{sum(each.cut_off for each in ended)} cut off, "
        f"{sum(each.refused for each in ended)} calls repeated, longest silence "
        f"{max(each.silent_most_s for each in ended):.1f} s"
    )


def figure(pod: dict[str, Any], port: int, name: str) -> float:
    """A figure of one pod, from its metrics; 0 where it does not answer yet, or any more."""
    try:
        told = httpx.get(f"http://{pod['status']['podIP']}:{port}/metrics", timeout=20).text
    except httpx.TransportError:
        return 0.0
    lines = [line for line in told.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def scale(release: Release, replicas: int) -> None:
    """So many of gateways and of engines; does not wait."""
    for component in ("engine", "gateway"):
        release.scale(component, replicas)


def settled(release: Release, replicas: int) -> bool:
    """Whether there are so many of each, all ready, and nobody is leaving."""
    return all(
        release.ready(each) == _all_pods(release, each) == replicas
        for each in ("gateway", "engine")
    )


def settle(release: Release, replicas: int) -> None:
    """So many of each, whatever was before."""
    scale(release, replicas)
    until(lambda: settled(release, replicas), f"there are not {replicas} of each")


def test_the_release_passes_its_own_test(served: Served, timings: Timings) -> None:
    began = time.monotonic()
    told = served.release.test()
    timings("helm test", time.monotonic() - began)
    for what in ("key", "stream", "cancel", "resum", "limit", "metrics"):
        assert what in told.lower(), told


@pytest.mark.parametrize("component", ["gateway", "engine"])
def test_a_rolling_update_under_open_streams_loses_no_token(
    served: Served, timings: Timings, component: str
) -> None:
    settle(served.release, 2)
    before = set(served.release.names(component))
    key = "engineDefaults" if component == "engine" else component
    changes = {key: {"podAnnotations": {"headrace.test/rolled": str(time.time_ns())}}}

    ended = asyncio.run(under_load(served, lambda: drop(served.release.upgrade(changes))))

    check(served, ended)
    assert len(ended) >= STREAMS
    after = set(served.release.names(component))
    assert not before & after
    assert len(after) == 2
    timings(f"rolling update of 2 {component}s: {summary(ended)}", served.release.took_s["upgrade"])


def test_new_passwords_of_the_server_under_open_streams_lose_no_token(
    served: Served, timings: Timings
) -> None:
    release = served.release
    services = ("gateway", "engine")
    settle(release, 2)
    before = {each: set(release.names(each)) for each in services}
    passwords = {each: release.secret("headrace-valkey", f"{each}-password") for each in services}
    generation = release.values["valkey"].get("passwordGeneration", 1)
    changes = {"valkey": {"passwordGeneration": generation + 1}}

    ended = asyncio.run(under_load(served, lambda: drop(release.upgrade(changes))))

    check(served, ended)
    for each in services:
        assert not before[each] & set(release.names(each)), f"a {each} has the old password"
        assert release.secret("headrace-valkey", f"{each}-password") != passwords[each]
        assert release.secret("headrace-valkey", f"{each}-previous") == passwords[each]
    timings(f"new passwords of the server: {summary(ended)}", release.took_s["upgrade"])


def test_an_upgrade_to_an_image_that_is_not_there_is_rolled_back(
    served: Served, timings: Timings
) -> None:
    release = served.release
    settle(release, 2)
    before = set(release.names("gateway"))
    broken = {"images": {"gateway": {"tag": "absent"}}}

    def upgrade() -> None:
        with pytest.raises(Refused):
            release.upgrade(broken, "--rollback-on-failure", timeout_s=20)

    began = time.monotonic()
    ended = asyncio.run(under_load(served, upgrade))
    timings(f"upgrade with a bad image, rolled back: {summary(ended)}", time.monotonic() - began)

    check(served, ended)
    assert before <= set(release.names("gateway"))
    until(lambda: len(release.names("gateway")) == 2, "the broken pod stays")
    history = release.cluster.helm("history", release.name, f"--namespace={release.namespace}")
    assert "rollback" in history.lower()


def test_only_as_many_gateways_are_evicted_as_the_budget_allows(served: Served) -> None:
    release = served.release
    settle(release, 2)
    first, second = release.names("gateway")

    def evict(name: str) -> None:
        path = f"/api/v1/namespaces/{release.namespace}/pods/{name}/eviction"
        release.kubectl(
            "create",
            f"--raw={path}",
            "--filename=-",
            given='{"apiVersion": "policy/v1beta1", "kind": "Eviction", '
            f'"metadata": {{"name": "{name}"}}}}',
        )

    def both() -> None:
        until(lambda: _evicted(evict, first), "not even one is let go")
        with pytest.raises(Refused, match="disruption budget"):
            evict(second)
        until(lambda: release.ready("gateway") == 2, "no successor")
        until(lambda: _evicted(evict, second), "the second is never let go")
        until(lambda: release.ready("gateway") == 2, "no second successor")

    check(served, asyncio.run(under_load(served, both)))
    assert not {first, second} & set(release.names("gateway"))


def _evicted(evict: Callable[[str], None], name: str) -> bool:
    try:
        evict(name)
    except Refused:
        return False
    return True


def test_engines_and_gateways_scale_from_one_to_three_and_back(
    served: Served, timings: Timings
) -> None:
    release = served.release

    def works(pod: dict[str, Any]) -> bool:
        return figure(pod, 9100, "headrace_engine_requests_claimed_total") > 0

    settle(release, 1)
    old = set(release.names("engine"))
    taken: dict[str, float] = {}

    def change() -> None:
        scale(release, 3)
        until(lambda: release.ready("engine") == 3, "no third engine")
        new = [pod for pod in release.pods("engine") if pod["metadata"]["name"] not in old]
        assert len(new) == 2
        taken["first work of both new engines after they are ready"] = until(
            lambda: all(map(works, new)), "a new engine gets nothing to do"
        )
        settle(release, 3)
        began = time.monotonic()
        settle(release, 1)
        taken["3 engines and gateways to 1 of each"] = time.monotonic() - began

    ended = asyncio.run(under_load(served, change))
    check(served, ended)
    for what, seconds in taken.items():
        timings(f"scaling: {what}", seconds)
    timings(f"scaling: {summary(ended)}", 0.0)


def test_autoscalers_follow_the_load_up_and_down(
    served: Served, cluster: Cluster, timings: Timings, tmp_path: Path
) -> None:
    release = served.release
    scaler = {
        "enabled": True,
        "minReplicas": 1,
        "maxReplicas": 3,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
    }
    following = {
        # An idle gateway takes a third of what it asks for, and one with all streams several times it.
        "gateway": {"autoscaling": {**scaler, "targetCPUUtilizationPercentage": 100}},
        "engineDefaults": {"autoscaling": {**scaler, "heldPerReplica": 10}},
    }

    def numbers() -> set[int]:
        return {each["spec"]["replicas"] for each in workloads()}

    def workloads() -> list[dict[str, Any]]:
        found = cluster.get("deployments", f"--namespace={release.namespace}")["items"]
        assert len(found) == 2
        return found

    def follow_up() -> None:
        began = time.monotonic()
        # Gateways first: what they need of the CPU comes and goes, what engines hold does not.
        for each in ("gateway", "engine"):
            until(
                lambda each=each: release.ready(each) == 3,
                lambda each=each: f"not three of {each}: {scalers(release)}",
            )
        took = time.monotonic() - began
        timings("autoscalers: from one to three of each under 50 streams", took)

    settle(release, 2)
    try:
        # The number is handed over first, as docs/guides/kubernetes.md says; nobody counts yet.
        for each in workloads():
            hand_over(release, each["metadata"]["name"], each["spec"]["replicas"])
        release.upgrade(following)
        assert numbers() == {2}
        with metrics_api(cluster, tmp_path):
            until(lambda: numbers() == {1}, lambda: f"not one of each: {scalers(release)}")
            ended = asyncio.run(under_load(served, follow_up))
            took = until(lambda: numbers() == {1}, lambda: f"not one again: {scalers(release)}")
            timings("autoscalers: from three to one of each when it is quiet", took)
    finally:
        off = {"autoscaling": {"enabled": False}}
        release.upgrade({"gateway": off, "engineDefaults": off}, "--force-conflicts")
    check(served, ended)
    timings(f"autoscalers: {summary(ended)}", 0.0)


def hand_over(release: Release, deployment: str, replicas: int) -> None:
    """Makes somebody else than helm say how many there are."""
    number = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": deployment},
        "spec": {"replicas": replicas},
    }
    how = ("--server-side", "--field-manager=autoscaler", "--validate=false")
    release.kubectl("apply", *how, "--filename=-", given=json.dumps(number))


def scalers(release: Release) -> str:
    """What they see and decide, for failures."""
    return release.kubectl("describe", "horizontalpodautoscalers")


def _all_pods(release: Release, component: str) -> int:
    """Those that are leaving count."""
    return len(
        release.cluster.get(
            "pods",
            f"--namespace={release.namespace}",
            "-l",
            f"app.kubernetes.io/component={component}",
        )["items"]
    )


def test_the_queue_is_kept_while_there_is_no_engine(served: Served, timings: Timings) -> None:
    release = served.release
    release.scale("engine", 0)
    until(lambda: _all_pods(release, "engine") == 0, "the engines do not leave")

    async def wait_and_serve() -> list[Followed]:
        waiting = asyncio.create_task(streams(served, STREAMS))
        await asyncio.to_thread(until, lambda: queued(served) == STREAMS, "they do not queue")
        began = time.monotonic()
        await asyncio.to_thread(release.scale, "engine", 2)
        ended = await waiting
        timings(
            "scaling: from zero engines to the end of 50 queued streams", time.monotonic() - began
        )
        return ended

    check(served, asyncio.run(wait_and_serve()))
    until(lambda: release.ready("engine") == 2, "the engines are not up")


def queued(served: Served) -> float:
    """Calls that are open at the gateways."""
    pods = served.release.pods("gateway")
    return sum(figure(pod, 8000, "headrace_gateway_requests_open") for pod in pods)


def test_a_server_that_is_killed_or_replaced_keeps_keys_and_streams(
    served: Served, containers: Daemon, timings: Timings
) -> None:
    release = served.release
    settle(release, 2)

    def container() -> str:
        """Of the server, while it is ready."""
        [pod] = release.pods("valkey") or [{"status": {}}]
        return pod["status"]["containerStatuses"][0]["containerID"] if is_ready(pod) else ""

    def came_back(other_than: str) -> bool:
        return container() not in ("", other_than)

    def disturb() -> None:
        first = container()
        inspected = containers.docker("inspect", first.removeprefix("docker://"))
        pid = json.loads(inspected)[0]["State"]["Pid"]
        assert pid > 1  # of none there is 0, which would be this process's own group
        os.kill(pid, signal.SIGKILL)
        took = until(lambda: came_back(first), "the killed server does not come back")
        timings("server: killed, until its pod is ready", took)
        second = container()
        began = time.monotonic()
        release.kubectl("delete", "pod", *release.names("valkey"))
        until(lambda: came_back(second), "the server has no successor")
        timings("server: deleted, until its successor is ready", time.monotonic() - began)

    ended = asyncio.run(under_load(served, disturb))
    timings(f"server: {summary(ended)}", 0.0)
    check(served, ended)
    # The key is of before; who had none has none.
    headers = {"Authorization": f"Bearer {served.key}"}
    assert httpx.get(f"{served.url}/v1/models", headers=headers).status_code == 200
    assert httpx.get(f"{served.url}/v1/models").status_code == 401


def test_headrace_drain_ends_an_engine_of_the_cluster_from_outside(
    served: Served, reader: Reader, timings: Timings
) -> None:
    release = served.release
    settle(release, 2)
    name = release.names("engine")[0]

    def restarts() -> int:
        [pod] = [each for each in release.pods("engine") if each["metadata"]["name"] == name]
        return pod["status"]["containerStatuses"][0]["restartCount"]

    before = restarts()

    def drain() -> None:
        began = time.monotonic()
        typed = block("operations.md", "What happens when a process is told to stop")
        told = reader.type(typed, {"headrace-engine-7d9f": f"{name}-"})
        assert "has ended" in told
        timings("headrace drain --wait: an engine with open streams", time.monotonic() - began)
        until(lambda: restarts() > before, "its container does not end")
        until(lambda: release.ready("engine") == 2, "it does not come back")

    check(served, asyncio.run(under_load(served, drain)))


def drop(_told: str) -> None:
    """For lambdas whose result nobody wants."""


def test_what_is_kept_is_seen_and_erased_as_the_guide_says(served: Served, reader: Reader) -> None:
    [one] = asyncio.run(streams(served, 1))
    see, erase = (
        block("privacy.md", "See it"),
        "r unlink 'hr:{ID}:log' 'hr:{ID}:req' 'hr:{ID}:body'",
    )
    assert erase in (ROOT / "docs/guides/privacy.md").read_text()
    # Whose reader leaves early fails, and `head` may.
    found = {"ID": one.id, "MODEL": served.model, "| head": ""}
    keys = [line for line in see.splitlines() if line.startswith(("export", "alias", "r "))]
    password = served.release.secret("headrace-valkey", "gateway-password")
    looked = "\n".join(keys).replace("export REDISCLI_AUTH=...", f"export REDISCLI_AUTH={password}")
    told = reader.type(looked.replace("chatcmpl-ID", "ID"), found)
    assert "tenant" in told
    assert any(line.isdigit() and 800 < int(line) <= 900 for line in told.splitlines()), told
    erased = "\n".join([*looked.splitlines()[:2], erase, "r exists 'hr:{ID}:req'"])
    assert reader.type(erased, {"ID": one.id}).split() == ["2", "0"]


def test_keys_outlive_the_namespace_as_the_guide_of_upgrades_says(
    served: Served, reader: Reader, volume: Callable[[], None], timings: Timings
) -> None:
    release = served.release
    admin = {"Authorization": f"Bearer {served.key}"}
    made = httpx.post(f"{release.url}/admin/keys", headers=admin, json={"name": "kept"}, timeout=20)
    (reader.folder / "values.yaml").write_text(json.dumps(release.values))
    began = time.monotonic()
    reader.type(block("upgrades.md", "Backup"))
    timings("keys: saved, as the guide says", time.monotonic() - began)

    release.cluster.helm("uninstall", release.name, f"--namespace={NAMESPACE}")
    left = release.kubectl("get", "secret,pvc", "--output=name").split()
    for kept in ("secret/headrace-auth", "secret/headrace-valkey", "data-headrace-valkey-0"):
        assert any(each.endswith(kept) for each in left), left
    reader.type(block("upgrades.md", "What stays behind").splitlines()[0])
    assert "headrace" not in release.kubectl("get", "secret,pvc,pod", "--output=name")
    release.cluster.kubectl("delete", "namespace", NAMESPACE)
    volume()

    began = time.monotonic()
    told = reader.type(block("upgrades.md", "Restore"))
    timings("release and keys: restored, as the guide says", time.monotonic() - began)
    assert "imported 2 keys" in told
    assert release.api_key == served.key
    headers = {"Authorization": f"Bearer {made.json()['key']}"}

    def opens() -> bool:
        try:
            return httpx.get(f"{release.url}/v1/models", headers=headers).status_code == 200
        except httpx.TransportError:
            return False  # the port of a Service that is new

    until(opens, "the restored key opens nothing")
    assert "FAIL" not in reader.type(block("production.md", "Verify"))
