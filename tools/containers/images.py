"""Builds our images from a folder of wheels, without a network.

usage: images.py [cuda]     builds the working tree's; needs an engine: `daemon.py up`

With ``cuda`` the CUDA engine's alone: it takes 3 GB of wheels and 25 GB of disk while it is built.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from containers.bases import make_bases
from containers.cache import ROOT, told
from containers.daemon import Daemon
from containers.wheels import cuda_wheel_folder, wheel_folder

VERSION: Final = "0.1.0"
CUDA: Final = f"headrace-engine:{VERSION}-cuda"
BUILD_S: Final = 3000.0
ARGUMENTS: Final = {
    "PIP_NO_INDEX": "1",
    # Empty, as compose gives them.
    "PIP_INDEX_URL": "",
    "PIP_EXTRA_INDEX_URL": "",
    # The same for every commit, so that what did not change comes from the build cache.
    "SOURCE_DATE_EPOCH": "0",
}
"""Of every build that takes all of its packages from ``wheels``."""


@dataclass(frozen=True, slots=True)
class Images:
    """Names of the images of one build."""

    gateway: str = f"headrace-gateway:{VERSION}"
    engine: str = f"headrace-engine:{VERSION}"
    """The CPU variant, with the default model inside."""
    cli: str = f"headrace-cli:{VERSION}"

    @property
    def all(self) -> tuple[str, ...]:
        return (self.gateway, self.engine, self.cli)


def build_images(daemon: Daemon, tree: Path) -> Images:
    """Builds all three from ``tree``. What has not changed comes from the engine's build cache."""
    made = Images()
    wheel_folder()

    def make(image: str) -> None:
        with told(f"building {image}"):
            build(daemon, tree, dockerfile_of(image), "--tag", image)

    # Their first steps are the same: BuildKit does these once.
    with ThreadPoolExecutor(len(made.all)) as pool:
        list(pool.map(make, made.all))
    return made


def build_cuda(daemon: Daemon, tree: Path) -> str:
    """Builds the CUDA engine's image from ``tree``, its kernels too, and returns its name."""
    wheels = cuda_wheel_folder()
    with told(f"building {CUDA}"):
        more = ("--build-arg", "VARIANT=cuda", "--tag", CUDA)
        build(daemon, tree, dockerfile_of(CUDA), *more, wheels=wheels)
    return CUDA


def build(
    daemon: Daemon, tree: Path, dockerfile: str, *more: str, wheels: Path | None = None
) -> str:
    """One ``docker build`` of a clean or a working tree."""
    arguments = ARGUMENTS | {"REVISION": revision_of(tree)}
    return daemon.docker(
        *("build", "--network", "none", "--build-context", f"wheels={wheels or wheel_folder()}"),
        *(part for pair in arguments.items() for part in ("--build-arg", "=".join(pair))),
        *("--file", tree / dockerfile, *more, tree),
        timeout_s=BUILD_S,
    )


def revision_of(tree: Path) -> str:
    """The commit that a tree stands on."""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def dockerfile_of(image: str) -> str:
    """``docker/gateway.Dockerfile`` of ``headrace-gateway:0.1.0``."""
    return f"docker/{image.removeprefix('headrace-').partition(':')[0]}.Dockerfile"


if __name__ == "__main__":
    engine = Daemon()
    make_bases(engine)
    if sys.argv[1:] == ["cuda"]:
        build_cuda(engine, ROOT)
    else:
        build_images(engine, ROOT)
