"""What `make package` packs comes out again elsewhere: images by their digests, the chart by its file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from containers.cache import ROOT
from containers.chart_tools import BIN
from containers.daemon import Daemon
from containers.images import Images
from support.chart import helm, pods
from support.timings import Timings

VALKEY = "valkey/valkey:8.0"

pytestmark = pytest.mark.timeout(600)


def test_packed_images_and_chart_are_whole_and_agree(
    containers: Daemon, images: Images, timings: Timings, tmp_path: Path
) -> None:
    helms = tmp_path / "bin"
    helms.mkdir()
    (helms / "helm").symlink_to(BIN / "helm4")
    wanted = [*images.all, VALKEY]
    began = time.monotonic()
    subprocess.run(
        [sys.executable, ROOT / "tools/package.py", "--out", tmp_path / "dist", *wanted],
        env=os.environ | containers.environ | {"PATH": f"{helms}:{os.environ['PATH']}"},
        check=True,
    )
    timings("package: chart and 4 images", time.monotonic() - began)
    dist = tmp_path / "dist"
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dist, check=True)

    lines = [line for line in (dist / "images.txt").read_text().splitlines() if line[0] != "#"]
    rows = [line.split() for line in lines]
    assert [row[0].partition("@")[0] for row in rows] == wanted
    # What is loaded is the image that was saved.
    gateway = rows[0]
    before = containers.docker("inspect", "--format={{.Id}}", images.gateway)
    containers.docker("load", "--input", dist / gateway[2])
    assert containers.docker("inspect", "--format={{.Id}}", images.gateway) == before

    values = dist / "digests-values.yaml"
    [chart] = dist.glob("headrace-*.tgz")
    rendered = helm("helm4", "template", "rel", str(chart), "--values", str(values)).stdout
    used = {
        container["image"]
        for _, pod in pods([doc for doc in yaml.safe_load_all(rendered) if doc])
        for container in pod["containers"]
    }
    named = (row[0].partition("@") for row in rows)
    assert used == {f"{image.rpartition(':')[0]}@{digest}" for image, _, digest in named}
