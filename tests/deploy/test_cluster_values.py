"""The values files of the chart's ``ci`` folder on the cluster, beside what each of them names.

What somebody else brings is as the files call it: servers, sentinels, Secrets, a claim, a registry.
Kinds of operators are defined, and nobody acts on their objects; cert-manager's Secret lies there as it
would.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml
from containers.daemon import Daemon
from support import models, toy_tokenizers
from support.certificates import Certificates, make_certificates, renew_certificate
from support.chart import CI_FILES, OLDEST, Doc, one, render, rendered
from support.definitions import VERSIONS, operators_kinds, spoiled
from support.guides import Reader, block
from support.kubernetes import Cluster, Refused, Release, merged, until
from support.objects import made_of, pod, service
from support.registry import Registry, registry
from support.timings import Timings

pytestmark = pytest.mark.timeout(900)

SMALL: Final = {"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}
EVERYWHERE: Final[dict[str, Any]] = {
    # No more than that two cores hold them all, and that nobody makes volumes here.
    "gateway": {"resources": SMALL, "minReadySeconds": 0, "settings": {"drain_notice_s": 1}},
    "engineDefaults": {"resources": SMALL},
    "tests": {"resources": SMALL},
}
BUNDLED: Final[dict[str, Any]] = {"valkey": {"persistence": {"enabled": False}, "resources": SMALL}}
OF_A_SERVER: Final[dict[str, Any]] = {"models": {"small": {"settings": {"executor": "echo"}}}}
"""Over files that are about a server: their engines echo, which spares two models their loading."""
REGISTRY: Final = "registry.internal.example"
"""In files and guides; here it is a registry on loopback."""
VALKEY: Final = "valkey/valkey:8.0"
SERVE: Final = ("valkey-server", "--save", "", "--appendonly", "no", "--dir", "/tmp")
SENTINEL: Final = """
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel monitor headrace server.redis.svc 6379 1
sentinel auth-pass headrace of-the-server
requirepass of-sentinels
"""


@dataclass(frozen=True)
class Case:
    """One values file: what is laid over it, and what is there before it."""

    over: Mapping[str, Any]
    before: Callable[[Release, Path], None]


def create(release: Release, *items: dict[str, Any], namespace: str = "") -> None:
    """Makes objects, in the release's namespace unless another is named."""
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    space = namespace or release.namespace
    release.cluster.kubectl("create", f"--namespace={space}", "--filename=-", given=objects)


def redis_behind_sentinels(release: Release, folder: Path) -> None:
    """In the namespace that the file names; three names lead to one sentinel."""
    del folder
    release.cluster.make_namespace("redis")
    run_server = [*SERVE, "--requirepass", "of-the-server", "--maxmemory-policy", "noeviction"]
    run_sentinel = (
        "cp /conf/sentinel.conf /tmp/ && until getent hosts server.redis.svc; do sleep 0.2; done"
        " && exec valkey-server /tmp/sentinel.conf --sentinel --port 26379"
    )
    containers = {"server": (VALKEY, run_server), "sentinel": (VALKEY, ["sh", "-c", run_sentinel])}
    create(
        release,
        made_of("ConfigMap", "sentinel", **{"sentinel.conf": SENTINEL}),
        service("server", 6379, "server"),
        *(service(f"sentinel-{number}", 26379, "server") for number in range(3)),
        pod("server", containers, {"/conf": {"configMap": {"name": "sentinel"}}}),
        namespace="redis",
    )
    passwords = {f"{each}-password": "of-the-server" for each in ("gateway", "engine")}
    given = {**passwords, "sentinel-password": "of-sentinels"}
    create(release, made_of("Secret", "headrace-redis", **given))


def redis_over_tls(release: Release, folder: Path) -> None:
    """A server with the chart's users, under other names, as the file has them."""
    data = one(render(), "Secret", "rel-headrace-valkey")["data"]
    text = {key: base64.b64decode(value).decode() for key, value in data.items()}
    users = text["users.acl"]
    for each in ("gateway", "engine"):
        users = users.replace(f"user {each} ", f"user headrace-{each} ")
    made = make_certificates(folder, ["redis.example.org"])
    run = [
        *(*SERVE, "--port", "0", "--tls-port", "6380", "--tls-auth-clients", "no"),
        *("--tls-cert-file", "/tls/tls.crt", "--tls-key-file", "/tls/tls.key"),
        *("--tls-ca-cert-file", "/tls/ca.crt", "--aclfile", "/conf/users.acl"),
        *("--maxmemory-policy", "noeviction"),
    ]
    named = service("outside", 6380, "outside")
    named["metadata"]["annotations"] = {"headrace.test/names": "redis.example.org"}
    create(
        release,
        made_of("Secret", "of-the-server", **files_of(made)),
        made_of("ConfigMap", "users", **{"users.acl": users}),
        named,
        pod(
            "outside",
            {"server": (VALKEY, run)},
            {
                "/tls": {"secret": {"secretName": "of-the-server"}},
                "/conf": {"configMap": {"name": "users"}},
            },
        ),
        made_of("Secret", "redis-ca", **{"ca.crt": made.ca.read_bytes()}),
        made_of(
            "Secret",
            "headrace-redis",
            **{f"{each}-password": text[f"{each}-password"] for each in ("gateway", "engine")},
        ),
        made_of("Secret", "headrace-auth", pepper="p" * 32, **{"api-key": "k" * 43}),
    )


def weights_and_a_certificate(release: Release, folder: Path) -> None:
    """The claim that the file names, with a small model in it, and the Secret of the gateways."""
    weights = folder / "llama-3.2-1b-instruct"
    tiny = models.tiny_model(num_hidden_layers=1, max_position_embeddings=8192)
    models.save(tiny, weights)
    (weights / "tokenizer.json").write_bytes(toy_tokenizers.byte_level())
    for place in (folder, weights, *weights.iterdir()):
        place.chmod(0o755)
    room = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": release.namespace},
        "spec": {
            **room,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder)},
            "claimRef": {"namespace": release.namespace, "name": "weights"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {**room, "resources": {"requests": {"storage": "1Gi"}}},
    }
    release.cluster.kubectl("delete", "persistentvolume", release.namespace, "--ignore-not-found")
    certificate = make_certificates(folder / "tls", names_of_gateways(release))
    create(release, volume, claim, made_of("Secret", "headrace-tls", **files_of(certificate)))


def what_the_cpu_file_names(release: Release, folder: Path) -> None:
    create(release, made_of("Secret", "prometheus-api-key", **{"api-key": "hr_of-prometheus"}))
    certificate_issued(release, make_certificates(folder, names_of_gateways(release)))


def certificate_issued(release: Release, made: Certificates) -> None:
    """What cert-manager does when it issues or renews: the Secret that its documentation describes."""
    secret = made_of("Secret", "headrace-tls", **files_of(made))
    given = json.dumps({**secret, "type": "kubernetes.io/tls"})
    release.kubectl("apply", "--filename=-", given=given)


def names_of_gateways(release: Release) -> list[str]:
    return [release.name, f"{release.name}.{release.namespace}.svc"]


def files_of(made: Certificates) -> dict[str, bytes]:
    """As a Secret for TLS has them."""
    return {
        "ca.crt": made.ca.read_bytes(),
        "tls.crt": made.cert.read_bytes(),
        "tls.key": made.key.read_bytes(),
    }


CASES: Final = {
    "airgap": Case(
        merged(
            BUNDLED,
            {
                "models": {"llama": {"resources": SMALL, "settings": {"cache_bytes": 16 << 20}}},
            },
        ),
        weights_and_a_certificate,
    ),
    "cpu": Case(
        merged(
            BUNDLED,
            {
                "models": {"smollm2": {"resources": SMALL}},
            },
        ),
        what_the_cpu_file_names,
    ),
    "external-redis": Case(OF_A_SERVER, redis_over_tls),
    "sentinel": Case(OF_A_SERVER, redis_behind_sentinels),
}
FILES: Final = {file.name.removesuffix("-values.yaml"): file for file in CI_FILES}


@dataclass(frozen=True)
class Releases:
    """By the names of their files: the releases, and what was made for them."""

    of: dict[str, Release]
    folders: dict[str, Path]


@pytest.fixture(scope="module")
def kinds(cluster: Cluster) -> Generator[None]:
    """Those that operators bring, which test_cluster_faults.py wants not to be there."""
    with operators_kinds(cluster):
        yield


@dataclass(frozen=True)
class Mirror:
    """A registry that holds what was packed."""

    registry: Registry
    values: Mapping[str, Any]
    """Of the chart, with the digests that the packing wrote down."""
    images: Sequence[str]
    """As pods name them: without a tag, and the digest behind ``@``."""


@pytest.fixture(scope="module")
def mirror(
    cluster: Cluster,
    containers: Daemon,
    packed: Path,
    timings: Timings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[Mirror]:
    """Chart and images, brought to a registry as the guide says."""
    began = time.monotonic()
    copy, push, install = block("airgap.md", "Move them", 1).replace("\\\n", " ").splitlines()
    lines = (packed / "images.txt").read_text().splitlines()
    with registry(tmp_path_factory.mktemp("registry")) as made:
        reader = Reader(cluster, "default", tmp_path_factory.mktemp("reader"), made.environ)
        rows = [line.split() for line in lines if not line.startswith("#")]
        images: list[str] = []
        for image, _, archive in rows:
            name, _, digest = image.partition("@")
            path, _, tag = name.partition(":")
            images.append(f"{made.address}/{path}@{digest}")
            one_of_them = {
                "images/headrace-gateway-0.1.0.tar:0.1.0": f"{packed}/{archive}:{tag}",
                f"{REGISTRY}/headrace-gateway:0.1.0": f"{made.address}/{name}",
            }
            reader.type(copy, one_of_them)
        [chart] = packed.glob("*.tgz")
        here = {REGISTRY: made.address, chart.name: str(chart)}
        reader.type(f"{push} --plain-http", here)
        digests = packed / "digests-values.yaml"
        tried = f"{install} --plain-http --dry-run=server"
        reader.type(tried, {REGISTRY: made.address, digests.name: str(digests)})
        timings("air gap: chart and 4 images into a registry", time.monotonic() - began)
        given = {"global": {"imageRegistry": made.address}}
        yield Mirror(made, merged(yaml.safe_load(digests.read_text()), given), images)
        for name in images:
            containers.docker("rmi", "--force", name, check=False)


@pytest.fixture(scope="module")
def releases(
    cluster: Cluster,
    kinds: None,
    mirror: Mirror,
    timings: Timings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[Releases]:
    """One of each file, all at once, in a namespace each."""
    made: dict[str, Release] = {}
    folders = {name: tmp_path_factory.mktemp(name) for name in CASES}
    for name, case in CASES.items():
        values = merged(merged(yaml.safe_load(FILES[name].read_text()), EVERYWHERE), case.over)
        made[name] = Release(cluster, f"headrace-{name}", values)
    airgap = made["airgap"]
    airgap.values = merged(airgap.values, mirror.values)

    def install(name: str) -> None:
        cluster.make_namespace(made[name].namespace)
        CASES[name].before(made[name], folders[name])
        if name == "airgap":
            login = {".dockerconfigjson": mirror.registry.logins.read_bytes()}
            secret = made_of("Secret", "registry", **login)
            create(airgap, {**secret, "type": "kubernetes.io/dockerconfigjson"})
        made[name].install()

    began = time.monotonic()
    try:
        with ThreadPoolExecutor(len(CASES)) as pool:
            for each in [pool.submit(install, name) for name in CASES]:
                each.result()
        timings(f"helm install --wait: {', '.join(CASES)}, side by side", time.monotonic() - began)
        yield Releases(made, folders)
    finally:
        for release in made.values():
            release.uninstall()
        cluster.kubectl("delete", "namespace", "redis", "--ignore-not-found", "--wait=false")
        volume = made["airgap"].namespace
        cluster.kubectl("delete", "persistentvolume", volume, "--ignore-not-found", "--wait=false")


@dataclass(frozen=True)
class Renewal:
    """Of the certificate of gateways: their pods, and what they showed until then."""

    pods: list[dict[str, Any]]
    before: set[str]


@pytest.fixture(scope="module", autouse=True)
def renewal(releases: Releases) -> Renewal:
    """Begun before the tests, since gateways look for a new one twice a minute."""
    release = releases.of["cpu"]
    until(
        lambda: release.ready("gateway") == release.ready("engine") == 2,
        lambda: release.kubectl("describe", "horizontalpodautoscalers"),
    )
    pods = release.pods("gateway")
    found = Renewal(pods, {served_by(pod) for pod in pods})
    renewed = renew_certificate(releases.folders["cpu"], names_of_gateways(release))
    certificate_issued(release, renewed)
    return found


@pytest.mark.parametrize("name", CASES)
def test_what_is_installed_of_a_file_passes_its_test(releases: Releases, name: str) -> None:
    told = releases.of[name].test()
    for what in ("key", "stream", "cancel", "resum", "limit", "metrics"):
        assert what in told.lower(), told


def test_images_of_the_air_gap_are_pulled_from_the_registry_by_digest(
    releases: Releases, mirror: Mirror
) -> None:
    release = releases.of["airgap"]
    pods = [pod for part in ("gateway", "engine", "valkey", "test") for pod in release.pods(part)]
    asked = {each["image"] for pod in pods for each in pod["spec"]["containers"]}
    assert asked == set(mirror.images)
    # A node may know the same image by another name as well, but by no other digest.
    runs = {each["imageID"] for pod in pods for each in pod["status"]["containerStatuses"]}
    assert {image.rpartition("@")[2] for image in runs} == {
        image.rpartition("@")[2] for image in asked
    }
    for image in mirror.images:
        assert f'Successfully pulled image "{image}"' in release.events()


def test_autoscalers_that_see_nothing_yet_keep_to_their_least(
    releases: Releases, renewal: Renewal
) -> None:
    release = releases.of["cpu"]
    assert len(renewal.pods) == 2
    for each in release.cluster.get("deployments", f"--namespace={release.namespace}")["items"]:
        assert each["spec"]["replicas"] == 2


def test_a_renewed_certificate_is_served_without_a_restart(
    releases: Releases, renewal: Renewal
) -> None:
    assert len(renewal.before) == 1

    def shown() -> set[str]:
        return {served_by(pod) for pod in renewal.pods}

    until(lambda: not renewal.before & shown(), "the old certificate is still shown")
    assert len(shown()) == 1
    found = releases.of["cpu"].pods("gateway")
    assert {pod["metadata"]["name"]: restarts(pod) for pod in found} == {
        pod["metadata"]["name"]: restarts(pod) for pod in renewal.pods
    }


def served_by(pod: Mapping[str, Any]) -> str:
    """The certificate that a gateway shows."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((pod["status"]["podIP"], 8000), timeout=20) as line:
        with context.wrap_socket(line) as secured:
            shown = secured.getpeercert(binary_form=True)
    assert shown
    return ssl.DER_cert_to_PEM_cert(shown)


def restarts(pod: Mapping[str, Any]) -> int:
    return pod["status"]["containerStatuses"][0]["restartCount"]


@pytest.mark.parametrize("name", FILES)
def test_the_api_takes_every_object_of_a_file(cluster: Cluster, kinds: None, name: str) -> None:
    # A pod's account has to be there first; that of ``helm test`` is run above.
    docs = [doc for doc in rendered(FILES[name], kube=OLDEST) if doc["kind"] != "Pod"]
    taken = tried(cluster, docs)
    assert len(taken) == len(docs)
    for doc, kept in zip(docs, taken, strict=True):
        if doc["kind"] in VERSIONS:
            # What a definition does not name is dropped in silence.
            assert lost(doc["spec"], kept["spec"]) == [], doc["metadata"]["name"]


@pytest.mark.parametrize("kind", VERSIONS)
def test_a_fault_in_an_operators_object_is_found(cluster: Cluster, kinds: None, kind: str) -> None:
    doc, field = spoiled(kind)
    assert any(field in each for each in refused_or_lost(cluster, doc))


def refused_or_lost(cluster: Cluster, doc: Doc) -> list[str]:
    """What the API has against an object: why it does not take it, or what it drops of it."""
    try:
        [kept] = tried(cluster, [doc])
    except Refused as refused:
        return [str(refused)]
    return lost(doc["spec"], kept["spec"])


def tried(cluster: Cluster, docs: Sequence[Doc]) -> list[Doc]:
    """What the API would make of objects. Raises ``Refused``."""
    objects = [{**doc, "metadata": {**doc["metadata"], "namespace": "default"}} for doc in docs]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    create = ("create", "--dry-run=server", "--validate=false", "--output=json", "--filename=-")
    told = cluster.kubectl(*create, given=listed).strip()
    made: list[Doc] = []
    while told:
        found, end = json.JSONDecoder().raw_decode(told)
        made.append(found)
        told = told[end:].lstrip()
    return made


def lost(given: Any, kept: Any, path: str = "spec") -> list[str]:
    """Fields that did not come back."""
    if isinstance(given, dict):
        fields = cast("dict[str, Any]", given)
        gone = [f"{path}.{key}" for key in fields if key not in kept]
        below = (lost(fields[key], kept[key], f"{path}.{key}") for key in fields if key in kept)
        return gone + [each for found in below for each in found]
    if isinstance(given, list):
        pairs = enumerate(zip(cast("list[Any]", given), kept, strict=True))
        return [each for at, (one, two) in pairs for each in lost(one, two, f"{path}[{at}]")]
    return [] if given == kept else [path]
