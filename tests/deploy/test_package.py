"""What `make package` packs comes out again elsewhere: images by their digests, the chart by its file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from containers.daemon import Daemon
from containers.images import Images
from support.chart import helm, pods

VALKEY = "valkey/valkey:8.0"

pytestmark = pytest.mark.timeout(600)


def test_packed_images_and_chart_are_whole_and_agree(
    containers: Daemon, images: Images, packed: Path
) -> None:
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=packed, check=True)

    lines = [line for line in (packed / "images.txt").read_text().splitlines() if line[0] != "#"]
    rows = [line.split() for line in lines]
    assert [row[0].partition("@")[0] for row in rows] == [*images.all, VALKEY]
    # What is loaded is the image that was saved.
    gateway = rows[0]
    before = containers.docker("inspect", "--format={{.Id}}", images.gateway)
    containers.docker("load", "--input", packed / gateway[2])
    assert containers.docker("inspect", "--format={{.Id}}", images.gateway) == before

    values = packed / "digests-values.yaml"
    [chart] = packed.glob("headrace-*.tgz")
    rendered = helm("helm4", "template", "rel", str(chart), "--values", str(values)).stdout
    used = {
        container["image"]
        for _, pod in pods([doc for doc in yaml.safe_load_all(rendered) if doc])
        for container in pod["containers"]
    }
    named = (row[0].partition("@") for row in rows)
    assert used == {f"{image.rpartition(':')[0]}@{digest}" for image, _, digest in named}
