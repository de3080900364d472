"""Builds the guides, references and decisions as a site: ``build/site``, readable from the folder.

usage: docs_site.py [--out FOLDER]

The pages link to each other, and to sources and figures, by their places in the repository. So they
are laid out as they lie there, with what they link to beside them, and `docs/properdocs.yml` says what
the site's menu is. Ends with what is wrong: a broken link or anchor, a page outside the menu, or
something that a reader's browser would fetch from elsewhere.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
SITE: Final = ROOT / "build/site"
CONFIG: Final = "docs/properdocs.yml"
PAGES: Final = (
    *("*.md", "bench/*.md", "docs/*/*.md", "examples/*.md"),
    *("libs/*/*.md", "services/*/*.md", "charts/headrace/README.md"),
)
DECISIONS: Final = "docs/decisions"

_LINK: Final = re.compile(r"\]\((?P<target>[^)\s#]+)[^)]*\)")
_FETCHED: Final = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data)=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b[^>]*?\bhref=["']?(?:https?:)?//[^"'\s>]+""",
)
_IMPORTED: Final = re.compile(r"""(?:@import\s+|url\()\s*["']?(?:https?:)?//[^"')\s]+""")


def pages(root: Path = ROOT) -> list[Path]:
    """Every page, by its path below ``root``."""
    return sorted({path.relative_to(root) for each in PAGES for path in root.glob(each)})


def linked(page: Path, root: Path = ROOT) -> Iterator[Path]:
    """Files that a page links to and that are no pages; where they lie below ``root``."""
    for link in _LINK.finditer((root / page).read_text()):
        target = (root / page).parent / link["target"]
        if "://" not in link["target"] and target.is_file() and target.suffix != ".md":
            yield target.resolve().relative_to(root.resolve())


def lay_out(target: Path, root: Path = ROOT) -> None:
    """Copies every page, and what pages link to, to the same place below ``target``."""
    known = pages(root)
    for file in {*known, *(each for page in known for each in linked(page, root))}:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / file, target / file)


def configuration(sources: Path, site: Path, root: Path = ROOT) -> str:
    """The site's settings, with every decision in the menu."""
    made = cast(dict[str, object], yaml.safe_load((root / CONFIG).read_text()))
    made |= {"docs_dir": str(sources), "site_dir": str(site)}
    for entry in cast(list[dict[str, object]], made["nav"]):
        if "Decisions" in entry:
            found = sorted((sources / DECISIONS).glob("[0-9]*.md"))
            cast(list[object], entry["Decisions"]).extend(f"{DECISIONS}/{f.name}" for f in found)
    return yaml.safe_dump(made, sort_keys=False)


def fetched_from_elsewhere(site: Path) -> list[str]:
    """What a browser would fetch from another host while it shows the site."""
    found: list[str] = []
    for pattern, suffix in ((_FETCHED, ".html"), (_IMPORTED, ".css")):
        for path in sorted(site.rglob(f"*{suffix}")):
            found += [
                f"{path.relative_to(site)}: {each}" for each in pattern.findall(path.read_text())
            ]
    return found


def build(site: Path, root: Path = ROOT) -> str:
    """Builds the site at ``site``; what is wrong with it, or nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        sources, config = Path(scratch, "sources"), Path(scratch, "properdocs.yml")
        lay_out(sources, root)
        config.write_text(configuration(sources, site.resolve(), root))
        command = [sys.executable, "-m", "properdocs", "build", "--clean", "--strict"]
        done = subprocess.run(
            [*command, "--config-file", str(config)], capture_output=True, text=True, check=False
        )
    wrong = done.stdout + done.stderr if done.returncode else ""
    # Its own lines of progress are no news.
    wrong = "\n".join(line for line in wrong.splitlines() if not line.startswith("INFO"))
    return wrong or "\n".join(fetched_from_elsewhere(site))


def main() -> int:
    """Builds, and says where."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=SITE)
    site: Path = parser.parse_args().out
    if wrong := build(site):
        print(wrong.strip())
        return 1
    print(f"built: {site}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
