"""The documentation site: its navigation is whole, and what is built opens from disk and asks no other host for anything.

The tests that build it need the extra `docs`, which `make docs` installs; the others do without.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

import cachemark
from cachemark.cli import main
from tools.site import hosts

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NO_CONNECTIONS = """
import os, socket, sys

def refuse(event, args):
    if event == "socket.connect" or event == "socket.getaddrinfo":
        os._exit(77)  # an exception could be caught

sys.addaudithook(refuse)
from mkdocs.__main__ import cli
cli()
"""
built_here = pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="no mkdocs here; `make docs` installs it")


def settings() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        below = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(below, str):
            yield below
        else:
            yield from pages(below)


def test_every_page_has_one_place_in_the_navigation() -> None:
    named = [page for page in pages(settings()["nav"]) if not page.startswith("cli/")]
    assert sorted(named) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_nothing_is_set_that_would_ask_another_host() -> None:
    config = settings()
    assert config["theme"]["font"] is False
    assert config["extra"]["polyfills"] == ["assets/iframe-worker.js"]  # else the plug-in `offline` names another host
    assert not {"repo_url", "site_url"} & config.keys()  # with the first a page asks its host how many stars there are
    assert not {"analytics", "consent"} & config["extra"].keys()
    assert "offline" in config["plugins"]


# ------------------------------------------------------------------------------------------------ the built site

def build(folder: Path, where: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout in a process that ends at the first connection."""
    command = [sys.executable, "-c", NO_CONNECTIONS, "build", "--strict", "--site-dir", str(where)]  # with --quiet no warning counts
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, without a warning."""
    where = tmp_path_factory.mktemp("built") / "site"
    built = build(ROOT, where)
    assert built.returncode == 0, built.stderr
    return where


class Parts(HTMLParser):
    """Counts the tables, list items and blocks of code of an article, and keeps ids and classes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts = {"table": 0, "li": 0, "pre": 0}
        self.ids: set[str] = set()
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.ids.add(attributes.get("id") or "")
        self.classes.update((attributes.get("class") or "").split())
        if tag in self.counts:
            self.counts[tag] += 1


@pytest.mark.slow
@built_here
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > len(list(DOCS.rglob("*.md")))
    assert list(hosts.loads_of(site)) == []
    for page in site.rglob("*.html"):  # the theme's script would load mermaid and count stars for these
        assert not {"mermaid", "md-source__fact"} & Parts(page.read_text(encoding="utf-8")).classes, page


@pytest.mark.slow
@built_here
def test_commands_and_public_names_have_a_page(site: Path) -> None:
    assert {page.stem for page in (site / "cli").glob("*.html")} == {*main.commands, "index"}
    ids = Parts((site / "api" / "cachemark.html").read_text(encoding="utf-8")).ids
    assert {f"cachemark.{name}" for name in set(cachemark.__all__) - {"__version__"}} <= ids


@pytest.mark.slow
@built_here
def test_a_page_has_the_same_parts_as_in_the_repository(site: Path) -> None:
    """Two readers of Markdown: the site's wants four spaces below a list and an empty line above it, which others forgive."""
    from markdown_it import MarkdownIt

    for page in sorted(DOCS.rglob("*.md")):
        source = page.read_text(encoding="utf-8")
        if page.parent.name == "api" or "```mermaid" in source:  # made from docstrings; drawn
            continue
        html = (site / page.relative_to(DOCS).with_suffix(".html")).read_text(encoding="utf-8")
        article = html[html.index("<article"):html.index("</article>")]
        assert Parts(article).counts == Parts(MarkdownIt("commonmark").enable("table").render(source)).counts, page


@pytest.mark.slow
@built_here
def test_the_search_answers_from_disk_and_asks_nobody(site: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright here; `pip install playwright` gives one")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium here; `apt-get install chromium` gives one")
    requests: list[str] = []
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "reference" / "metrics.html").as_uri())
        page.locator("[data-md-component=search-query]").fill("teacher forcing")
        page.locator(".md-search-result__item a[href*='metrics.html']").first.wait_for(state="attached")
        browser.close()
    assert any("search_index.js" in url for url in requests)
    assert {url.partition(":")[0] for url in requests} <= {"file", "data", "blob"}


@pytest.mark.slow
@built_here
@pytest.mark.parametrize(("text", "told"), [
    ("[x](missing.md)", "missing.md"), ("[x](index.md#no-such-heading)", "no-such-heading"), ("[x](../ci/missing.sh)", "missing.sh"),
    ("![x](https://example.org/x.png)", "example.org"),
])
def test_what_leads_nowhere_or_elsewhere_fails_the_build(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("hooks.py", "assets"):
        (tmp_path / "docs" / name).symlink_to(DOCS / name)
    (tmp_path / "docs" / "index.md").write_text(f"# Here\n\n{text}\n")
    stored = settings()
    stored["nav"] = ["index.md", {"Command line": ["cli/index.md"]}]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(stored))
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode not in (0, 77)
    assert told in built.stderr
