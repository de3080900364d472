"""The CUDA engine's image, where its wheels are: `make image-cuda` fetches them (3 GB), CI does not.

What runs here needs no GPU; what the kernels inside save is measured on one: docs/guides/gpu.md.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from containers.daemon import Daemon
from containers.images import build_cuda
from containers.wheels import cuda_wheels_are_there
from support.timings import Timings

LIMIT_MB = 5_500
CARD = "sm_90:132"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def image(containers: Daemon, clone: Path, timings: Timings) -> str:
    began = time.monotonic()
    built = build_cuda(containers, clone)
    timings("image: CUDA engine", time.monotonic() - began)
    return built


@pytest.fixture(scope="module", autouse=True)
def wheels() -> None:
    if not cuda_wheels_are_there():
        pytest.skip("the CUDA image is not built: its wheels are not here (`make image-cuda`)")


def confined(*more: str, network: str = "none") -> list[str]:
    """`docker run` of anybody, who may do nothing, write nothing and reach nobody else."""
    user = f"{random.randint(20_000, 2_000_000_000)}:0"
    return [
        *("run", "--rm", "--read-only", "--cap-drop", "ALL", "--user", user),
        *("--security-opt", "no-new-privileges", "--network", network, *more),
    ]


def test_it_is_no_larger_than_its_libraries_ask_for(containers: Daemon, image: str) -> None:
    config = json.loads(containers.docker("inspect", image))[0]
    print(f"{image}: {config['Size'] / 1e6:.0f} MB")
    assert config["Size"] / 1e6 < LIMIT_MB
    assert config["Config"]["User"] == "10001:0"
    assert config["Config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert "HEADRACE_ENGINE_EXECUTOR=cuda" in config["Config"]["Env"]


def test_its_bill_of_materials_has_what_torch_brings(containers: Daemon, image: str) -> None:
    script = (
        "import json\n"
        "bill = json.load(open('/usr/share/doc/headrace/sbom.cdx.json'))\n"
        "print(' '.join(one['name'] for one in bill['components']))"
    )
    names = containers.docker(*confined("--entrypoint", "python3", image, "-c", script)).split()
    assert {"torch", "triton", "nvidia-cublas", "headrace-engine"} <= set(names)


def test_a_start_finds_its_kernels_without_a_compiler(containers: Daemon, image: str) -> None:
    """The default model's, by the keys that a launch would ask with, in the image as it runs."""
    script = (
        "import re, shutil, subprocess\n"
        "assert shutil.which('cc') is None and shutil.which('gcc') is None\n"
        f"command = ['headrace-engine', 'compile', '--card', '{CARD}', '--output', '/tmp/kernels']\n"
        "done = subprocess.run(command, capture_output=True, text=True)\n"
        "print(done.stderr)"
    )
    told = containers.docker(
        *confined("--tmpfs", "/tmp", "--entrypoint", "python3", image, "-c", script), timeout_s=600
    )
    assert f"{CARD}: 0 kernels compiled, " in told
    assert ", 0 there" not in told


@pytest.fixture
def server(containers: Daemon) -> Generator[tuple[str, str]]:
    """A network that leads nowhere, and the URL of a server in it."""
    name = f"headrace-cuda-{os.getpid()}"
    containers.docker("network", "create", "--internal", name)
    try:
        containers.docker(
            *("run", "--detach", "--rm", "--name", name, "--network", name, "valkey/valkey:8.0"),
            *("valkey-server", "--protected-mode", "no", "--save", "", "--dir", "/tmp"),
        )
        yield name, f"redis://{name}:6379/0"
    finally:
        containers.docker("rm", "--force", name)
        containers.docker("network", "rm", name)


def test_without_a_gpu_it_says_so_and_ends(
    containers: Daemon, image: str, server: tuple[str, str]
) -> None:
    network, url = server
    command = ["docker", *confined(image, "--redis-url", url, network=network)]
    done = subprocess.run(
        command,
        env=os.environ | containers.environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "no CUDA device is usable here (asked for 'cuda'): " in done.stderr
