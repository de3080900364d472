"""The images: built, small, run as anybody with nothing to write to, the same when built again."""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from containers.cache import ROOT
from containers.chart_tools import program
from containers.daemon import Daemon
from containers.images import Images, build, dockerfile_of
from support.kubernetes import until

LIMIT_MB: Final = {"gateway": 250, "cli": 320, "engine": 400}
"""Millions of bytes with the base image, as `docker images` counts."""
DOCKERFILES: Final = sorted(
    [*ROOT.glob("docker/*.Dockerfile"), *ROOT.glob("tools/containers/bases/*.Dockerfile")]
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(params=["gateway", "engine", "cli"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def image(images: Images, name: str) -> str:
    return getattr(images, name)  # one of its three fields


def confined(*more: str, network: str = "none") -> list[str]:
    """`docker run` of anybody, who may do nothing, write nothing and reach nobody else."""
    user = f"{random.randint(20_000, 2_000_000_000)}:0"
    return [
        *("run", "--rm", "--read-only", "--cap-drop", "ALL", "--user", user),
        *("--security-opt", "no-new-privileges", "--network", network, *more),
    ]


def config_of(containers: Daemon, image: str) -> dict[str, Any]:
    return json.loads(containers.docker("inspect", image))[0]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(path: Path) -> None:
    linter = [program("charts", "hadolint")]
    if path.is_relative_to(ROOT / "tools"):
        # Stand-ins for tests: the mirror decides what is newest.
        linter += ["--ignore", "DL3008"]
    done = subprocess.run([*linter, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# syntax=" not in path.read_text()


def test_the_image_is_small(containers: Daemon, image: str, name: str) -> None:
    size = config_of(containers, image)["Size"] / 1e6
    print(f"{image}: {size:.0f} MB")
    assert size < LIMIT_MB[name]


def test_the_image_says_what_it_is(containers: Daemon, image: str, name: str, clone: Path) -> None:
    config = config_of(containers, image)["Config"]
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True
    )
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == image.rpartition(":")[2]
    assert labels["org.opencontainers.image.revision"] == head.stdout.strip()
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert config["User"] == "10001:0"
    assert config["Entrypoint"] == ["headrace" if name == "cli" else f"headrace-{name}"]
    assert "HEADRACE" not in " ".join(
        line for line in config["Env"] if "PASSWORD" in line or "PEPPER" in line
    )


def test_anybody_can_run_it_with_nothing_to_write_to(containers: Daemon, image: str) -> None:
    assert "usage" in containers.docker(*confined(image, "--help")).lower()


@pytest.fixture
def network(containers: Daemon) -> Generator[str]:
    """A network that leads nowhere. What still runs in it ends with the test."""
    name = f"headrace-images-{os.getpid()}"
    containers.docker("network", "create", "--internal", name)
    yield name
    running = containers.docker("ps", "--quiet", "--filter", f"network={name}").split()
    for container in running:
        print(containers.docker("logs", "--tail", "20", container))
    containers.docker("rm", "--force", "--volumes", *running)
    containers.docker("network", "rm", name)


def test_they_serve_as_anybody_with_no_network_but_their_own(
    containers: Daemon, images: Images, network: str
) -> None:
    """No volume either: the server is told not to write."""

    def start(name: str, image: str, *arguments: str, **variables: str) -> str:
        environ = [f"--env=HEADRACE_{key}={value}" for key, value in variables.items()]
        flags = ("--detach", f"--name={name}", f"--network-alias={name}", *environ)
        return containers.docker(*confined(*flags, image, *arguments, network=network)).strip()

    def state(container: str) -> dict[str, Any]:
        found = containers.docker("inspect", container)
        return json.loads(found)[0]

    run = os.getpid()
    server, url = f"server-{run}", f"redis://server-{run}:6379/0"
    start(
        *(server, "valkey/valkey:8.0", "valkey-server", "--save", "", "--dir", "/tmp"),
        *("--maxmemory", "100mb", "--maxmemory-policy", "noeviction", "--protected-mode", "no"),
    )
    engine = start(f"engine-{run}", images.engine, ENGINE_REDIS_URL=url)
    pepper = secrets.token_hex(32)
    gateway = start(f"gateway-{run}", images.gateway, GATEWAY_REDIS_URL=url, GATEWAY_PEPPER=pepper)
    for container in (engine, gateway):
        until(
            lambda container=container: state(container)["State"]["Health"]["Status"] == "healthy",
            f"{container} is not healthy",
        )
    of_keys = [
        f"--env=HEADRACE_GATEWAY_{name}" for name in (f"REDIS_URL={url}", f"PEPPER={pepper}")
    ]
    key = containers.docker(
        *confined(*of_keys, images.cli, "keys", "create", "--name", "tests", network=network)
    ).strip()
    [attached] = state(gateway)["NetworkSettings"]["Networks"].values()
    with httpx.Client(
        base_url=f"http://{attached['IPAddress']}:8000/v1",
        headers={"Authorization": f"Bearer {key}"},
        timeout=60,
        trust_env=False,
    ) as client:
        [model] = client.get("/models").json()["data"]
        asked = {"model": model["id"], "prompt": "Once upon a time", "max_tokens": 8}
        answer = client.post("/completions", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 8


def test_every_module_of_ours_loads_as_anybody(containers: Daemon, image: str, name: str) -> None:
    script = (
        "import importlib, pkgutil, sys\n"
        f"import headrace_{name} as ours\n"
        "for found in pkgutil.walk_packages(ours.__path__, ours.__name__ + '.', lambda name: None):\n"
        "    try:\n"
        "        if '__main__' not in found.name:\n"
        "            importlib.import_module(found.name)\n"
        # Whatever is for torch asks for it at once; it is not in this image.
        "    except ModuleNotFoundError as error:\n"
        "        if error.name not in ('torch', 'triton'):\n"
        "            raise\n"
        "print(len([m for m in sys.modules if m.startswith('headrace_')]), 'torch' in sys.modules)"
    )
    out = containers.docker(*confined("--entrypoint", "python3", image, "-c", script))
    modules, torch = out.split()
    assert int(modules) > 20
    assert torch == "False"


def test_what_a_build_needs_is_not_in_it(containers: Daemon, image: str) -> None:
    script = (
        "import importlib.util, shutil\n"
        "print([p for p in ('gcc', 'c++', 'pip', 'git', 'curl') if shutil.which(p)],"
        " [m for m in ('torch', 'hatchling', 'cyclonedx', 'pytest') if importlib.util.find_spec(m)])"
    )
    out = containers.docker(*confined("--entrypoint", "python3", image, "-c", script))
    assert out.strip() == "[] []"


def test_its_bill_of_materials_lists_what_is_installed(
    containers: Daemon, image: str, name: str
) -> None:
    script = (
        "import json, importlib.metadata as m\n"
        "print(json.dumps([json.load(open('/usr/share/doc/headrace/sbom.cdx.json')),"
        " sorted([d.name.lower().replace('_', '-'), d.version] for d in m.distributions())]))"
    )
    out = containers.docker(
        *confined("--entrypoint", "/opt/headrace/bin/python3", image, "-c", script)
    )
    bill, installed = json.loads(out)
    assert bill["bomFormat"] == "CycloneDX"
    listed = {
        (part["name"].lower().replace("_", "-"), part["version"]) for part in bill["components"]
    }
    assert {(found[0], found[1]) for found in installed} <= listed
    assert (f"headrace-{name}", "0.1.0") in listed
    assert (
        containers.docker(
            *confined("--entrypoint", "cat", image, "/usr/share/doc/headrace/LICENSE")
        )
        == (ROOT / "LICENSE").read_text()
    )


@pytest.fixture(scope="module")
def built_again(
    containers: Daemon, images: Images, clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> Generator[dict[str, str]]:
    """Names of all three, built once more: from another clone, with nothing that was built before."""
    tree = tmp_path_factory.mktemp("again") / "headrace"
    subprocess.run(["git", "clone", "--quiet", clone, tree], check=True)
    made = {image: f"{image.partition(':')[0]}:again" for image in images.all}

    def make(image: str) -> None:
        build(containers, tree, dockerfile_of(image), "--tag", made[image], "--no-cache")

    with ThreadPoolExecutor(len(made)) as pool:
        list(pool.map(make, made))
    yield made
    containers.docker("rmi", *made.values())


def test_a_second_build_from_another_clone_gives_the_same_image(
    containers: Daemon, built_again: dict[str, str], image: str
) -> None:
    first, second = (config_of(containers, each) for each in (image, built_again[image]))
    assert first["RootFS"]["Layers"] == second["RootFS"]["Layers"]
    assert first["Id"] == second["Id"]


def test_the_engine_s_kernels_were_compiled_ahead(containers: Daemon, images: Images) -> None:
    script = (
        "from headrace_engine.kernels.build import LEVELS, built_library, prebuilt_library\n"
        "import platform\n"
        "found = prebuilt_library()\n"
        "assert found and built_library() == found\n"
        "print(len(list(found.parent.iterdir())) - len(LEVELS[platform.machine()]))"
    )
    out = containers.docker(*confined("--entrypoint", "python3", images.engine, "-c", script))
    assert out.strip() == "0"


def test_a_gateway_without_its_secrets_says_what_to_set(containers: Daemon, images: Images) -> None:
    with pytest.raises(AssertionError, match="HEADRACE_GATEWAY_PEPPER is not set"):
        containers.docker(*confined(images.gateway))


def test_an_engine_with_a_wrong_setting_names_it(containers: Daemon, images: Images) -> None:
    with pytest.raises(
        AssertionError, match="HEADRACE_ENGINE_MAX_BATCH: input should be a valid integer"
    ):
        containers.docker(*confined("--env", "HEADRACE_ENGINE_MAX_BATCH=none", images.engine))


def test_the_cuda_variant_s_own_stages_are_sound(containers: Daemon, clone: Path) -> None:
    """As far as it goes without its packages: the stage below torch, and the stage to run in."""
    for target in ("dependencies", "runtime-cuda"):
        build(
            containers,
            clone,
            "docker/engine.Dockerfile",
            *("--build-arg", "VARIANT=cuda", "--target", target),
        )
