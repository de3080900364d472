"""Installs a container engine, compose and buildx on a Debian machine, and makes a base system.

usage: install.py        as root; quick when nothing is missing

From Debian alone: tools from this machine's release, Docker's engine, client and plugins from the
release named below. What would start by itself or replace something of the machine is unpacked into
the cache instead of installed. Mirrors are the machine's own.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from containers.cache import CACHE, fetch, run, told

PACKAGES: Final = {
    "runc": "/usr/sbin/runc",
    "iptables": "/usr/sbin/iptables",
    "iproute2": "/usr/sbin/ip",
    "debootstrap": "/usr/sbin/debootstrap",
    "eatmydata": "/usr/bin/eatmydata",
}
"""What is installed where it is missing, with a file that tells: for the engine and its images."""
CLUSTER_PACKAGES: Final = {
    "golang-go": "/usr/bin/go",
    "gcc": "/usr/bin/gcc",
    "libc6-dev": "/usr/include/stdlib.h",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "conntrack": "/usr/sbin/conntrack",
    "ipset": "/usr/sbin/ipset",
    "socat": "/usr/bin/socat",
    "dnsmasq-base": "/usr/sbin/dnsmasq",
    "openssl": "/usr/bin/openssl",
    "skopeo": "/usr/bin/skopeo",
}
"""The same for Kubernetes: what builds it, what a node needs, and what brings images to a registry."""
SERVICES: Final = {"etcd": "etcd-server", "registry": "docker-registry"}
"""Programs that are unpacked beside that: the folder in the cache, and the package."""

ENGINE_RELEASE: Final = "trixie"
"""Whose Docker packages run on Debian 12 and later: they want no more than its C library."""
ENGINE_PACKAGES: Final = (
    "docker.io",
    "docker-cli",
    "containerd",
    "docker-compose",
    "docker-buildx",
)
PROGRAMS: Final = (
    *("usr/sbin/dockerd", "usr/sbin/docker-proxy", "usr/bin/docker", "usr/bin/docker-init"),
    *("usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr"),
)
BASE_RELEASE: Final = "bookworm"
"""Release of the local base images. It has Python 3.11, which the engine is tested with."""
ROOTFS: Final = CACHE / f"debian-{BASE_RELEASE}.tar"
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_NOT_IN_A_SLIM_IMAGE: Final = (
    *("./usr/share/doc/*", "./usr/share/man/*", "./usr/share/locale/*", "./usr/share/info/*"),
    *("./var/cache/*", "./var/lib/apt/lists/*", "./var/log/*", "./dev/*", "./tmp/*"),
)


def main() -> int:
    """Does what is not done yet."""
    check_machine()
    CACHE.mkdir(parents=True, exist_ok=True)
    install_packages(PACKAGES)
    unpack_engine()
    make_rootfs()
    return 0


def check_machine() -> None:
    """Ends with a reason where none of this can be."""
    if os.geteuid() != 0:
        raise SystemExit("containers: this installs packages and starts an engine: run it as root")
    if shutil.which("apt-get") is None:
        raise SystemExit("containers: this is for Debian; elsewhere use the engine that you have")


def install_packages(packages: Mapping[str, str]) -> None:
    """Debian's packages that this machine lacks."""
    missing = [name for name, file in packages.items() if not Path(file).exists()]
    if not missing:
        return
    with told(f"installing {', '.join(missing)}"):
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        fetch(["apt-get", "update", "-qq"], env=quiet)
        fetch(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing], env=quiet)


def unpack_services() -> None:
    """etcd and a registry, in the cache: their packages would start them."""
    missing = {name: package for name, package in SERVICES.items() if not (CACHE / name).exists()}
    if not missing:
        return
    with told(f"unpacking {', '.join(missing)}"), tempfile.TemporaryDirectory(dir=CACHE) as folder:
        apt = private_apt(Path(folder), f"deb [] {mirror()} {BASE_RELEASE} main")
        fetch(["apt-get", "download", "-qq", *missing.values()], env=apt, cwd=Path(folder))
        for name, package in missing.items():
            (found,) = Path(folder).glob(f"{package}_*.deb")
            run(["dpkg", "-x", found, Path(folder, name)])
            Path(folder, name, "usr/bin").rename(CACHE / name)


def mirror() -> str:
    """The Debian mirror that this machine's apt uses."""
    sites = run(["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"])
    for site in sites.split():
        if site.rstrip("/").endswith("/debian"):
            return site
    raise SystemExit("containers: apt has no mirror that ends in /debian")


def private_apt(folder: Path, *sources: str) -> dict[str, str]:
    """An apt of its own, which knows ``sources`` and nothing that is installed. Its environment."""
    for name in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    status = folder / "var/lib/dpkg/status"
    status.touch()
    (folder / "etc/apt/sources.list").write_text(
        "".join(source.replace("[]", f"[signed-by={_KEYRING}]") + "\n" for source in sources)
    )
    config = folder / "apt.conf"
    config.write_text(
        f'Dir "{folder}";\nDir::State::status "{status}";\nAPT::Sandbox::User "root";\n'
    )
    environ = {"APT_CONFIG": str(config)}
    fetch(["apt-get", "update", "-qq"], env=environ)
    return environ


def unpack_engine() -> None:
    """dockerd, its client and its plugins, in the cache."""
    target = CACHE / "engine"
    if (target / "bin/dockerd").exists():
        return
    with told(f"unpacking the container engine of Debian {ENGINE_RELEASE}"):
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            apt = private_apt(Path(folder), f"deb [] {mirror()} {ENGINE_RELEASE} main")
            fetch(["apt-get", "download", "-qq", *ENGINE_PACKAGES], env=apt, cwd=Path(folder))
            unpacked = Path(folder, "unpacked")
            for package in Path(folder).glob("*.deb"):
                run(["dpkg", "-x", package, unpacked])
            made = Path(folder, "engine")
            (made / "bin").mkdir(parents=True)
            for program in PROGRAMS:
                shutil.move(unpacked / program, made / "bin")
            shutil.move(unpacked / "usr/libexec/docker/cli-plugins", made / "cli-plugins")
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)


def make_rootfs() -> None:
    """A minimal Debian as one archive, which base images are made of."""
    if ROOTFS.exists():
        return
    with told(f"making a minimal Debian {BASE_RELEASE}"):
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            made = Path(folder, "root")
            options = ["--variant=minbase", "--include=ca-certificates,netbase,tzdata"]
            debootstrap = ["eatmydata", "debootstrap", *options, BASE_RELEASE, made, mirror()]
            # A second try begins with an empty folder: debootstrap does not go on in a full one.
            fetch(["sh", "-c", 'rm -rf "$0"; exec "$@"', made, *debootstrap])
            # The machine's own authorities too: a build here may reach its index through a proxy.
            shutil.copy("/etc/ssl/certs/ca-certificates.crt", made / "etc/ssl/certs")
            unwanted = [f"--exclude={pattern}" for pattern in _NOT_IN_A_SLIM_IMAGE]
            fresh = Path(folder, "rootfs.tar")
            run(["tar", "-C", made, "-c", "-f", fresh, "--numeric-owner", *unwanted, "."])
            fresh.rename(ROOTFS)


if __name__ == "__main__":
    sys.exit(main())
