"""Packages say what is in them. That images and chart come out of them again is in tests/deploy."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import package
import pytest
import yaml


def archive(path: Path, *, images: int = 1) -> str:
    """An OCI layout without layers; the digest of its manifest."""

    def blob(value: object) -> tuple[str, bytes]:
        data = json.dumps(value).encode()
        return f"sha256:{hashlib.sha256(data).hexdigest()}", data

    config_digest, config = blob({"os": "linux", "architecture": "arm64"})
    digest, manifest = blob({"config": {"digest": config_digest}, "layers": []})
    index = json.dumps({"manifests": [{"digest": digest}] * images}).encode()
    with tarfile.open(path, "w") as file:
        for name, data in (
            ("index.json", index),
            (f"blobs/{digest.replace(':', '/')}", manifest),
            (f"blobs/{config_digest.replace(':', '/')}", config),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return digest


def test_digest_and_platform_are_read_from_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "images/a.tar"
    path.parent.mkdir()
    digest = archive(path)
    found = package.opened("a:1", path)
    assert (found.digest, found.platform) == (digest, "linux/arm64")
    listed = package.image_list([found], tmp_path).splitlines()
    assert listed[1:] == [f"a:1@{digest}  linux/arm64  images/a.tar"]
    assert package.images("\n".join(listed)) == [f"a:1@{digest}"]


@pytest.mark.parametrize("images", [0, 2])
def test_archive_of_anything_but_one_image_is_refused(tmp_path: Path, images: int) -> None:
    archive(tmp_path / "a.tar", images=images)
    with pytest.raises(SystemExit, match=f"has {images} images"):
        package.opened("a:1", tmp_path / "a.tar")


def test_archive_of_an_older_engine_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w"):
        pass
    with pytest.raises(SystemExit, match=r"no index\.json: Docker 25"):
        package.opened("a:1", tmp_path / "a.tar")


def test_values_name_the_packed_images_of_the_chart_by_digest(tmp_path: Path) -> None:
    made = [
        package.Archive("headrace-cli:1", tmp_path, "sha256:1", "linux/amd64"),
        package.Archive("grafana:1", tmp_path, "sha256:2", "linux/amd64"),
    ]
    keys = {"cli": "headrace-cli:1", "gateway": "headrace-gateway:1"}
    assert yaml.safe_load(package.values(made, keys)) == {"images": {"cli": {"digest": "sha256:1"}}}


def test_sums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "SHA256SUMS").write_text(package.sums([tmp_path / "a"], tmp_path))
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True)


def test_program_that_is_missing_is_named() -> None:
    with pytest.raises(SystemExit, match="no headrace-nothing on PATH"):
        package.run("headrace-nothing")


def programs(folder: Path, *names: str) -> str:
    """A search path with programs that do nothing."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


def pack(monkeypatch: pytest.MonkeyPatch, out: Path, *names: str) -> int:
    """What the tool returns where only those programs are on the path."""
    monkeypatch.setenv("PATH", programs(out.with_name("bin"), *names))
    monkeypatch.setattr("sys.argv", ["package.py", "--out", str(out)])
    return package.main()


def test_folder_that_holds_anything_else_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "repository"
    (out / "images").mkdir(parents=True)
    (out / "images/a.png").write_bytes(b"a")
    (out / "images.txt").write_text("a:1\n")
    assert pack(monkeypatch, out, "docker", "helm") == 1
    assert "name another folder" in capsys.readouterr().out
    assert (out / "images.txt").read_text() == "a:1\n"
    assert (out / "images/a.png").read_bytes() == b"a"
    assert not package.is_ours(out / "images.txt")


def test_folder_that_is_absent_or_empty_or_an_earlier_package_is_taken(tmp_path: Path) -> None:
    assert package.is_ours(tmp_path / "absent")
    assert package.is_ours(tmp_path)
    for name in ("images.txt", "SHA256SUMS"):
        (tmp_path / name).write_text("")
    assert package.is_ours(tmp_path)


def test_nothing_of_an_earlier_package_stays(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in ("images/a.tar", "images.txt", "digests-values.yaml", "headrace-0.0.9.tgz", "mine"):
        (tmp_path / name).write_text("old")
    package.clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("there", ["docker", "helm"])
def test_programs_are_looked_for_before_an_earlier_package_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], there: str
) -> None:
    out = tmp_path / "dist"
    out.mkdir()
    for name in ("images.txt", "SHA256SUMS"):
        (out / name).write_text("old")
    assert pack(monkeypatch, out, there) == 1
    [missing] = {"docker", "helm"} - {there}
    assert capsys.readouterr().out == f"not on PATH: {missing}\n"
    assert {path.name: path.read_text() for path in out.iterdir()} == {
        "images.txt": "old",
        "SHA256SUMS": "old",
    }
