"""Makes all that the tests of deployments need, as much of it at once as there is to wait for.

usage: prepare.py        as root, on Debian; quick when nothing is missing

Some of it waits for mirrors and some computes, so side by side they take less than one by one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from containers import chart_tools, install
from containers.bases import make_bases
from containers.cache import CACHE, ROOT, run, told
from containers.daemon import Daemon
from containers.wheels import wheel_folder

_BUILD: Final = ROOT / "tests/deploy/cluster/build.sh"
_BUILD_S: Final = 3000.0


def main() -> int:
    """Does what is not done yet."""
    install.check_machine()
    CACHE.mkdir(parents=True, exist_ok=True)
    install.install_packages(install.PACKAGES | install.CLUSTER_PACKAGES)
    jobs: list[Callable[[], object]] = [build_kubernetes, make_engine, chart_tools.main]
    with ThreadPoolExecutor(len(jobs)) as pool:
        for done in as_completed([pool.submit(job) for job in jobs]):
            done.result()
    return 0


def make_engine() -> None:
    """The container engine, its base images, and the wheels that images are made of."""
    install.unpack_engine()
    install.make_rootfs()
    daemon = Daemon()
    started = daemon.up()
    try:
        make_bases(daemon)
    finally:
        if started:
            daemon.down()
    wheel_folder()


def build_kubernetes() -> None:
    """Kubernetes, from Debian's source, the etcd that it keeps its objects in, and a registry."""
    install.unpack_services()
    with told("building Kubernetes, unless it is in the cache"):
        run([_BUILD], timeout_s=_BUILD_S)


if __name__ == "__main__":
    sys.exit(main())
