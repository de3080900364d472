"""Base images made here, under the names that the Dockerfiles and compose take from a registry."""

from __future__ import annotations

import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from containers.cache import CACHE, ROOT, fetch, run, told
from containers.daemon import Daemon
from containers.install import ROOTFS, mirror

_FILES: Final = Path(__file__).with_name("bases")
_BUILD_S: Final = 1800.0
DEBIAN: Final = "debian:bookworm-slim"
BASES: Final = {
    "python:3.11-slim": ("python.Dockerfile", "slim"),
    "python:3.11": ("python.Dockerfile", "full"),
    "valkey/valkey:8.0": ("valkey.Dockerfile", None),
    "prom/prometheus:v2.53.3": ("prometheus.Dockerfile", None),
    "otel/opentelemetry-collector:0.115.1": ("collector.Dockerfile", None),
}
"""Image, its Dockerfile in ``bases`` and the target in it."""


def make_bases(daemon: Daemon) -> None:
    """Makes what is not in the cache. Packages come from this machine's mirror."""
    if not daemon.docker("images", "--quiet", DEBIAN).strip():
        with told(f"importing {DEBIAN}"):
            daemon.docker("import", ROOTFS, DEBIAN, timeout_s=_BUILD_S)

    wheels = collector_wheel()

    def make(image: str) -> None:
        file, target = BASES[image]
        chosen = () if target is None else ("--target", target)
        with told(f"making {image}"):
            daemon.docker(
                *("build", "--network", "host", "--build-arg", f"MIRROR={mirror()}", *chosen),
                *("--build-context", f"wheels={wheels}"),
                *("--tag", image, "--file", _FILES / file, _FILES),
                timeout_s=_BUILD_S,
            )

    # Each waits for a mirror most of the time.
    with ThreadPoolExecutor(len(BASES)) as pool:
        list(pool.map(make, BASES))


def collector_wheel() -> Path:
    """A folder with the wheel of the collector."""
    pinned = _FILES / "collector.txt"
    folder = CACHE / "collector" / hashlib.sha256(pinned.read_bytes()).hexdigest()[:16]
    if not folder.exists():
        with told("downloading the collector"):
            fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
            fresh.mkdir(parents=True)
            python = run([ROOT / "tools/find_python.sh", "3.11"]).strip()
            download = [python, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"]
            fetch([*download, "--only-binary", ":all:", "-d", fresh, "-r", pinned])
            fresh.rename(folder)
    return folder


if __name__ == "__main__":
    make_bases(Daemon())
