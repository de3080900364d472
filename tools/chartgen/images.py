"""``images.txt``: every image that an installation may run, from the chart and from compose."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, cast

import yaml

from chartgen.values import CHART, read

COMPOSE: Final = Path(__file__).resolve().parents[2] / "docker-compose.yml"
HEAD: Final = """\
# Written by `make gen` from the chart's values and docker-compose.yml. Do not edit.
#
# What an installation runs: an image, then for what. Ours (`headrace-`) are in no registry until you
# push them to one, so they have no digest here; `make package` writes dist/images.txt with those of
# the images that it packs. Names without a registry are Docker Hub's.
"""
FOR: Final = {
    "gateway": "chart",
    "engine": "chart (models on the CPU)",
    "engineCuda": "chart (models on a GPU)",
    "cli": "chart (loader of hf:// models, helm test)",
    "valkey": "chart (valkey.enabled)",
}
"""What the chart has each of its ``images`` for."""


def text() -> str:
    """The file's content. Ends when the chart has an image of which nobody says what it is for."""
    uses: dict[str, list[str]] = {}
    for image, use in [*_of_chart(), *_of_compose()]:
        found = uses.setdefault(image, [])
        if use not in found:
            found.append(use)
    # Ours first.
    names = sorted(uses, key=lambda name: (not name.startswith("headrace-"), name))
    width = max(map(len, names))
    return HEAD + "".join(f"{name:{width}}  {', '.join(uses[name])}\n" for name in names)


def images(listed: str) -> list[str]:
    """Names of the images of such a file."""
    return [line.split()[0] for line in listed.splitlines() if line and not line.startswith("#")]


def chart_images() -> dict[str, str]:
    """Images of the chart's default values, by their key in ``images``."""
    tree, _ = read()
    version = str(yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"])
    found: dict[str, str] = {}
    for key, image in cast("dict[str, dict[str, str]]", tree["images"]).items():
        tag = image["tag"] or version + ("-cuda" if key == "engineCuda" else "")
        place = f"{image['registry']}/" if image["registry"] else ""
        found[key] = f"{place}{image['repository']}:{tag}"
    return found


def _of_chart() -> list[tuple[str, str]]:
    found = chart_images()
    if unknown := found.keys() - FOR.keys():
        raise SystemExit(f"chartgen.images: what are {sorted(unknown)} of the chart's images for?")
    return [(image, FOR[key]) for key, image in found.items()]


def _of_compose() -> list[tuple[str, str]]:
    read_file = cast("dict[str, Any]", yaml.safe_load(COMPOSE.read_text()))
    found: list[tuple[str, str]] = []
    for service in cast("dict[str, dict[str, Any]]", read_file["services"]).values():
        # ${NAME:-default} names the default here.
        image = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(service["image"]))
        profiles = cast("list[str]", service.get("profiles", []))
        # Tools are run by hand, and need no profile for that.
        shown = [each for each in profiles if each != "tools"]
        found.append((image, f"compose ({', '.join(shown)})" if shown else "compose"))
    return found
