"""What tests of deployments share: a container engine, images built from a clean clone, times."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from containers.bases import make_bases
from containers.cache import CACHE, ROOT, STATE
from containers.chart_tools import BIN
from containers.daemon import Daemon
from containers.images import Images, build_images
from support.kubernetes import Cluster
from support.timings import Timings

CLUSTER = ROOT / "tests/deploy/cluster"
CLUSTER_BUILD_S = 3000.0
VALKEY = "valkey/valkey:8.0"
TIMES = pytest.StashKey[list[tuple[str, float]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TIMES] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if times := config.stash[TIMES]:
        terminalreporter.section("times")
        for what, seconds in times:
            terminalreporter.line(f"{seconds:7.1f} s  {what}")


@pytest.fixture(scope="session")
def timings(request: pytest.FixtureRequest) -> Timings:
    """Notes how long something took; printed when the run ends."""
    noted = request.config.stash[TIMES]

    def note(what: str, seconds: float) -> None:
        noted.append((what, seconds))

    return note


@pytest.fixture(scope="session")
def containers(timings: Timings) -> Generator[Daemon]:
    """A container engine with the base images: one that runs, or one that ends with the tests."""
    daemon = Daemon()
    assert (daemon.cache / "engine/bin/dockerd").exists(), (
        "run `make test-deploy`, which installs it"
    )
    began = time.monotonic()
    started = daemon.up()
    try:
        make_bases(daemon)
        timings("container engine and base images", time.monotonic() - began)
        yield daemon
    finally:
        try:
            daemon.tidy()
        finally:
            if started:
                daemon.down()
                assert not daemon.leftovers()


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """What a person has who cloned the repository: the newest commit and nothing else."""
    folder = tmp_path_factory.mktemp("clone") / "headrace"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, folder], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def images(containers: Daemon, clone: Path, timings: Timings) -> Images:
    """The three images, built from the clone without a network."""
    began = time.monotonic()
    built = build_images(containers, clone)
    timings("images: gateway, engine and cli", time.monotonic() - began)
    return built


@pytest.fixture(scope="session")
def packed(
    containers: Daemon, images: Images, timings: Timings, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Path]:
    """What `make package` packs of our images and the server's, for those who have no network."""
    folder = tmp_path_factory.mktemp("packed")
    (folder / "helm").symlink_to(BIN / "helm4")
    began = time.monotonic()
    subprocess.run(
        [sys.executable, ROOT / "tools/package.py", "--out", folder / "dist", *images.all, VALKEY],
        env=os.environ | containers.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        check=True,
    )
    timings("package: chart and 4 images", time.monotonic() - began)
    yield folder / "dist"
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def cluster(
    containers: Daemon,
    images: Images,
    timings: Timings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[Cluster]:
    """A Kubernetes of one node with our images at hand: one that runs, or one that ends with the
    tests.
    """
    assert images.all
    state = STATE / "cluster"
    was_up = (state / "up").exists()
    if not was_up:
        for script, what in (("build.sh", "binaries, once"), ("up.sh", "up")):
            began = time.monotonic()
            _run_script(script, containers)
            timings(f"cluster: {what}", time.monotonic() - began)
    try:
        yield Cluster(
            kubeconfig=state / "pki/admin.conf",
            binaries=CACHE / "chart/bin",
            chart=ROOT / "charts/headrace",
            home=tmp_path_factory.mktemp("helm"),
        )
    finally:
        if not was_up:
            began = time.monotonic()
            _run_script("down.sh", containers)
            timings("cluster: down", time.monotonic() - began)


def _run_script(name: str, containers: Daemon) -> None:
    done = subprocess.run(
        [CLUSTER / name],
        env=os.environ | containers.environ,
        capture_output=True,
        text=True,
        timeout=CLUSTER_BUILD_S,
        check=False,
    )
    assert done.returncode == 0, f"{name} failed:\n{done.stdout}\n{done.stderr[-4000:]}"
