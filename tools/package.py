"""Packs a version for those who install it elsewhere: the chart, images as archives, and their digests.

usage: package.py [--out dist] [IMAGE ...]

IMAGE is one of ``images.txt``; without any, all of them. The container engine that `docker` reaches
must have them (`docker compose build`, `docker pull`), and `helm` must be on PATH. What an earlier
run wrote into the folder is replaced; a folder that holds anything else is refused. Writes

    headrace-<version>.tgz   the chart
    images/*.tar             an image each: an OCI layout, which `docker load` takes too
    images.txt               image@digest, platform and archive of each
    digests-values.yaml      values of the chart that name these images by digest
    SHA256SUMS               of all of it

A digest is that of the manifest in the archive. It stays the same where the archive is copied as it
is (`skopeo copy --preserve-digests oci-archive:...`); `docker push` compresses layers, and the
registry then gives another one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chartgen.images import chart_images, images

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "charts/headrace"
LIST: Final = ROOT / "images.txt"
PROGRAMS: Final = ("docker", "helm")
SUMS: Final = "SHA256SUMS"


@dataclass(frozen=True, slots=True)
class Archive:
    """An image in a file."""

    image: str
    path: Path
    digest: str
    """Of its manifest."""
    platform: str


def main() -> int:
    """Packs, or says what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("images", nargs="*", metavar="IMAGE")
    options = parser.parse_args()
    out: Path = options.out
    listed = images(LIST.read_text())
    wanted: list[str] = options.images or listed
    if unknown := [name for name in wanted if name not in listed]:
        print(f"not in images.txt: {', '.join(unknown)}")
        return 1
    if absent := [program for program in PROGRAMS if shutil.which(program) is None]:
        print(f"not on PATH: {', '.join(absent)}")
        return 1
    if not is_ours(out):
        print(f"{out} is no package of an earlier run, and not empty: name another folder")
        return 1
    if missing := [name for name in wanted if not is_here(name)]:
        print(
            f"the container engine has no {', '.join(missing)}: build or pull it, or name the rest"
        )
        return 1
    out.mkdir(parents=True, exist_ok=True)
    # Empty until all is there: no check of a broken run passes, and the next run knows the folder.
    (out / SUMS).write_text("")
    clear(out)
    (out / "images").mkdir()
    run("helm", "package", str(CHART), "--destination", str(out))
    archives = [save(name, out / "images") for name in wanted]
    (out / "images.txt").write_text(image_list(archives, out))
    (out / "digests-values.yaml").write_text(values(archives))
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    chart = out / f"headrace-{version}.tgz"
    made = [chart, out / "images.txt", out / "digests-values.yaml", *(a.path for a in archives)]
    (out / SUMS).write_text(sums(made, out))
    print((out / "images.txt").read_text(), end="")
    return 0


def is_ours(out: Path) -> bool:
    """Whether what is in a folder may be replaced: there is nothing, or an earlier run's package."""
    if not out.exists():
        return True
    return out.is_dir() and ((out / SUMS).is_file() or not any(out.iterdir()))


def clear(out: Path) -> None:
    """Removes what an earlier run packed, a chart of another version too."""
    names = ("images", "images.txt", "digests-values.yaml")
    for path in [*(out / name for name in names), *out.glob("headrace-*.tgz")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def is_here(image: str) -> bool:
    """Whether the container engine has an image. Ends where there is no engine."""
    done = subprocess.run(
        ["docker", "image", "inspect", image], capture_output=True, text=True, check=False
    )
    if done.returncode and "no such image" not in done.stderr.lower():
        raise SystemExit(f"package: {done.stderr.strip()}")
    return done.returncode == 0


def save(image: str, folder: Path) -> Archive:
    """Writes an image into a file of its own."""
    path = folder / f"{image.replace('/', '-').replace(':', '-')}.tar"
    run("docker", "save", "--output", str(path), image)
    path.chmod(0o644)
    return opened(image, path)


def opened(image: str, path: Path) -> Archive:
    """What is in an archive. Ends where it holds anything else than one image with its manifest."""
    with tarfile.open(path) as archive:

        def member(name: str) -> Any:
            try:
                found = archive.extractfile(name)
            except KeyError:
                found = None
            if found is None:
                raise SystemExit(
                    f"package: {path.name} has no {name}: Docker 25 or newer writes it"
                )
            return json.loads(found.read())

        manifests = member("index.json")["manifests"]
        if len(manifests) != 1:
            raise SystemExit(f"package: {path.name} has {len(manifests)} images")
        digest: str = manifests[0]["digest"]
        manifest = member(_blob(digest))
        config = member(_blob(manifest["config"]["digest"]))
    return Archive(image, path, digest, f"{config['os']}/{config['architecture']}")


def image_list(archives: Iterable[Archive], out: Path) -> str:
    """``dist/images.txt``."""
    head = "# image@digest of its manifest, platform, archive; see docs/guides/airgap.md\n"
    return head + "".join(
        f"{each.image}@{each.digest}  {each.platform}  {each.path.relative_to(out)}\n"
        for each in archives
    )


def values(archives: Iterable[Archive], keys: Mapping[str, str] | None = None) -> str:
    """Values of the chart with the digests of those of its images that were packed."""
    digests = {each.image: each.digest for each in archives}
    keys = chart_images() if keys is None else keys
    named = {key: {"digest": digests[image]} for key, image in keys.items() if image in digests}
    return yaml.safe_dump({"images": named}, sort_keys=False)


def sums(paths: Iterable[Path], out: Path) -> str:
    """As ``sha256sum --check`` reads it."""
    lines: list[str] = []
    for path in paths:
        digest = sha256()
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        lines.append(f"{digest.hexdigest()}  {path.relative_to(out)}\n")
    return "".join(lines)


def run(*command: str) -> None:
    """Ends with what the program says when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit(f"package: there is no {command[0]} on PATH") from None
    if done.returncode:
        raise SystemExit(f"package: {' '.join(command)}: {done.stderr.strip()}")


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


if __name__ == "__main__":
    sys.exit(main())
