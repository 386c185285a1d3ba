"""The documentation site: its navigation is whole, and what is built opens from disk and asks no other host for anything."""

import importlib.util
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
from tools.site import generated, hosts

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


SETTINGS: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        below = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(below, str):
            yield below
        else:
            yield from pages(below)


def test_every_page_has_one_place_in_the_navigation() -> None:
    named = [page for page in pages(SETTINGS["nav"]) if not page.startswith("cli/")]
    assert sorted(named) == sorted([*generated.PAGES, *(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))])


def test_nothing_is_set_that_would_ask_another_host() -> None:
    assert SETTINGS["theme"]["font"] is False
    assert SETTINGS["extra"]["polyfills"] == ["assets/iframe-worker.js"]  # else the plug-in `offline` names another host
    assert not {"repo_url", "site_url"} & SETTINGS.keys()  # with the first a page asks its host how many stars there are
    assert not {"analytics", "consent"} & SETTINGS["extra"].keys()
    assert "offline" in SETTINGS["plugins"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning in a process that ends at the first connection."""
    where = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-c", NO_CONNECTIONS, "build", "--strict", "--site-dir", str(where)]  # with --quiet no warning counts
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert built.returncode == 0, built.stderr
    return where


class Parts(HTMLParser):
    """Keeps ids and classes of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids, self.classes = set[str](), set[str]()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids.add(dict(attrs).get("id") or "")
        self.classes.update((dict(attrs).get("class") or "").split())


@pytest.mark.slow
@built_here
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > len(list(DOCS.rglob("*.md")))
    assert list(hosts.loads_of(site)) == []
    for page in site.rglob("*.html"):  # the theme's script would load mermaid and count stars for these
        assert not {"mermaid", "md-source__fact"} & Parts(page).classes, page


@pytest.mark.slow
@built_here
def test_commands_and_public_names_have_a_page(site: Path) -> None:
    assert {page.stem for page in (site / "cli").glob("*.html")} == {*main.commands, "index"}
    ids = Parts(site / "api" / "cachemark.html").ids
    assert {f"cachemark.{name}" for name in set(cachemark.__all__) - {"__version__"}} <= ids
