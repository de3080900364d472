"""The site has every page, and says what is wrong with one. That ours builds is a part of `make lint`."""

from __future__ import annotations

from pathlib import Path

import docs_site


def small(root: Path, **texts: str) -> Path:
    """A repository of a few pages, whose menu has ``README.md`` alone."""
    config = (docs_site.ROOT / docs_site.CONFIG).read_text()
    (root / docs_site.CONFIG).parent.mkdir()
    (root / docs_site.CONFIG).write_text(
        config[: config.index("\nnav:\n")] + "\nnav: [README.md]\n"
    )
    for name, text in texts.items():
        path = root / f"{name.replace('__', '/')}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_pages_lie_where_they_lie_in_the_repository_with_what_they_link_to(tmp_path: Path) -> None:
    docs_site.lay_out(tmp_path)
    guides = {path.name for path in (docs_site.ROOT / "docs/guides").glob("*.md")}
    assert {path.name for path in (tmp_path / "docs/guides").iterdir()} == guides
    assert (tmp_path / "services/engine/CONTRACT.md").exists()
    assert (tmp_path / "examples/curl.sh").exists()
    assert not (tmp_path / "charts/headrace/README.in.md").exists()


def test_every_decision_is_in_the_menu(tmp_path: Path) -> None:
    docs_site.lay_out(tmp_path)
    made = docs_site.configuration(tmp_path, tmp_path / "site")
    index = (docs_site.ROOT / docs_site.DECISIONS / "README.md").read_text()
    for path in (docs_site.ROOT / docs_site.DECISIONS).glob("[0-9]*.md"):
        assert f"{docs_site.DECISIONS}/{path.name}" in made
        assert f"]({path.name})" in index, "docs/decisions/README.md lists all of them"


def test_a_sound_site_is_built_and_fetches_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site"
    root = small(tmp_path, README="# One\n\n## Part\n\n[a host](https://example.org) [b](#part)\n")
    assert docs_site.build(site, root) == ""
    assert "https://example.org" in (site / "index.html").read_text()


def test_broken_links_anchors_and_lost_pages_are_named(tmp_path: Path) -> None:
    root = small(
        tmp_path,
        README="# One\n\n[a](docs/guides/gone.md) [b](#gone) [c](docs)\n",
        docs__guides__lost="# Lost\n",
    )
    wrong = docs_site.build(tmp_path / "site", root)
    for each in ("docs/guides/gone.md", "#gone", "'docs'", "docs/guides/lost.md"):
        assert each in wrong
    assert "4 warnings" in wrong


def test_what_a_browser_would_fetch_from_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://example.org">fine</a><script src="app.js"></script>'
        '<script async src="https://cdn.example.org/x.js"></script>'
        '<link rel="stylesheet" href="//fonts.example.org/f.css">'
    )
    (tmp_path / "a.css").write_text("@import url(https://fonts.example.org/f.css); b{}")
    found = docs_site.fetched_from_elsewhere(tmp_path)
    assert [each.split(": ")[0] for each in found] == ["a.html", "a.html", "a.css"]
