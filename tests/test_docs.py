"""The documentation is under test: what it shows runs, what exists is described, and its site asks no other host for anything.

A block that begins with a line such as ``# knorm.py`` is saved under that name. All other ``python`` blocks of a page run in order in an
empty folder. Calls of ``cachemark`` in ``console`` and ``bash`` blocks are parsed by the command they name, and not run.
"""

import contextlib
import importlib
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml

import cachemark
from cachemark.contract.planning import SEEN
from cachemark.core import errors
from cachemark.core.errors import CachemarkError, UnknownName, unknown
from cachemark.core.units import FAMILIES, METRICS
from cachemark.methods.registry import METHODS
from tools.cards.imports import with_picture
from tools.pages import results
from tools.site import generated, hosts

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
TOOLS = ("tools.cards", "tools.train", "tools.vectors", "studies.papers")


class Block(NamedTuple):
    """One fenced block: its language, its text, and the line of the page on which the text begins."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str:
        """The name under which a reader would save it, or nothing."""
        match = re.match(r"# ([\w./-]+\.(?:py|toml))\n", self.text)
        return match[1] if match else ""


def blocks(text: str) -> list[Block]:
    match = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    return [Block(m[1], m[2], text.count("\n", 0, m.start(2)) + 1) for m in match]


WITH_CODE = [page for page in PAGES if blocks(page.read_text(encoding="utf-8"))]


def section(page: Path, name: str) -> str:
    """The text under the heading ``name``, which may stand in backticks, as the site has it."""
    text = generated.filled(page.relative_to(DOCS).as_posix(), page.read_text(encoding="utf-8"))
    match = re.search(rf"^#+ `?{re.escape(name)}`?\n(.*?)(?=^#|\Z)", text, re.M | re.S)
    assert match, f"{page} has no heading {name!r}"
    return match[1]


def calls(text: str) -> list[list[str]]:
    """Every call of ``cachemark``, or of one of the project's tools, in the console blocks of a page: its name and its arguments."""
    lines = [line for b in blocks(text) if b.language in ("console", "bash") for line in b.text.replace("\\\n", " ").splitlines()]
    return [args for line in lines for part in re.split(r"\|+|&&|;|>", line) if (args := _call(part)) is not None]


def _call(line: str) -> list[str] | None:
    words = shlex.split(line.removeprefix("$ "), comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    if words[:2] == ["python", "-m"] and words[2].startswith(TOOLS):
        return words[2:]
    return ["cachemark", *words[1:]] if words and words[0].rpartition("/")[2] == "cachemark" else None


def resolve(command: click.Command, args: list[str]) -> None:
    """Parse ``args`` as the shell would hand them over: unknown commands and options, and bad values, raise."""
    context, name = click.Context(command, info_name="cachemark"), "cachemark"
    while isinstance(command, click.Group) and args and not args[0].startswith("-"):
        subcommand = command.get_command(context, args[0])
        if subcommand is None:
            raise click.UsageError(f"no command {args[0]!r} in {name!r}")
        command, name, args = subcommand, args[0], args[1:]
        context = click.Context(command, info_name=name, parent=context)
    with contextlib.suppress(click.exceptions.Exit):  # --help and --version end the parsing
        command.make_context(name, list(args), parent=context.parent)


def commands(command: click.Command, path: tuple[str, ...] = ("cachemark",)) -> Iterator[tuple[str, click.Command]]:
    """Every command below ``command``, with the words that call it."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        subcommand = command.get_command(context, name)
        assert subcommand is not None, name
        yield from commands(subcommand, (*path, name))


@pytest.fixture(scope="module")
def main() -> click.Group:
    return importlib.import_module("cachemark.cli").main


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


@pytest.mark.parametrize("page", [page for page in WITH_CODE if page != README], ids=name_of)  # README's: workflows/test_python_api.py
def test_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are saved and the rest is executed; a traceback names the line of the page."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.file:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_calls_of_a_page_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: click.Command) -> None:
    monkeypatch.chdir(tmp_path)
    for called, *args in calls(page.read_text(encoding="utf-8")):
        for name in args:
            if re.fullmatch(r"[\w/-]+\.\w+", name):  # a file that the reader would have by then
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).touch()
        try:
            tool = called.startswith(TOOLS)
            resolve(getattr(importlib.import_module(f"{called}.__main__"), called.rpartition(".")[2]) if tool else main, args)
        except (click.ClickException, CachemarkError) as error:
            pytest.fail(f"{page}: {called} {shlex.join(args)}: {error}")


def test_every_command_has_help_and_is_shown_and_every_option_has_help(main: click.Command) -> None:
    displayed = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    result = dict(commands(main))
    assert result
    assert not [call for call, command in result.items() if not command.help]
    assert not [call for call in result if not re.search(rf"\b{re.escape(call)}\b", displayed)]
    options = [(call, p) for call, command in result.items() for p in command.params if isinstance(p, click.Option)]
    assert not [f"{call} {option.opts[0]}" for call, option in options if not option.help]


def test_every_metric_is_defined_with_its_unit_and_direction_and_every_method_with_its_parameters_and_defaults() -> None:
    for name, metric in (*METRICS.items(), *((f"{family}_…", metric) for family, metric in FAMILIES.items())):
        described = section(ROOT / "docs" / "reference" / "metrics.md", name).strip()
        assert described.startswith(f"*{metric.unit or 'no unit'}, {metric.better} is better.*"), name
    assert list(METHODS)
    for name in METHODS:
        described, cls = section(ROOT / "docs" / "reference" / "methods.md", name), METHODS.get(name)
        for parameter in fields(cls):
            assert f"`{parameter.name}`" in described, f"{name}: {parameter.name}"
            has_default = parameter.name == "B" or parameter.default in (MISSING, "") or f"`{parameter.default}`" in described
            assert has_default, f"{name}: {parameter.name} = {parameter.default}"
    page = (DOCS / "reference" / "methods.md").read_text()
    rows = re.findall(r"^\| (yes|README only|none) \| (.*) \|$", page, re.M)
    noted = {name: kind for kind, names in rows for name in re.findall(r"`(\w+)`", names)}
    classes = [METHODS.get(name) for name in METHODS]
    assert noted == {cls.name: cls.authors_code.partition(":")[0] for cls in classes if cls.authors_code}
    assert f"authors' code, {SEEN} |" in page


@pytest.mark.parametrize(("heading", "table"), [("A plan", "Plan"), ("timing", "Timing"), ("fidelity", "Fidelity"), ("cells", "Cells"),
                                                ("cells.sampling", "SamplingTable")])
def test_every_key_of_a_plan_is_described_with_its_default(heading: str, table: str) -> None:
    described = section(ROOT / "docs" / "reference" / "plan-file.md", heading)
    for key, info in getattr(importlib.import_module("cachemark.plans.schema"), table).model_fields.items():
        displayed = [line for line in described.splitlines() if line.startswith(f"| `{key}` |")]
        assert len(displayed) == 1, f"{table}.{key} has no row of its own"
        plain = isinstance(info.default, str | int | float | list) and info.default not in ("", [])
        assert not plain or f"`{json.dumps(info.default)}`" in displayed[0], f"{table}.{key} = {info.default!r}"


def test_the_picture_of_packages_is_current_and_generated_parts_of_the_site_are_whole() -> None:
    architecture = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert with_picture(architecture) == architecture, "docs/architecture.md is out of date; write it again: python -m tools.cards docs"
    for page in generated.PAGES.values():
        assert len(page()) > 1000
    for name in ("reference/methods.md", "results/gpu.md", "results/kernels.md", "results/validation.md", "results.md"):
        stored = (DOCS / name).read_text(encoding="utf-8")
        assert "<!--" not in generated.filled(name, stored), name
    markers = set(re.findall(r"<!-- table: ([\w-]+) -->", stored))
    assert markers > {"parallel-decoding", *(path.stem for path in results.FOLDER.glob("*.json") if path.stem in results.SECTIONS)}
    assert set(re.findall(r"<!-- facts: (\w+) -->", (DOCS / "reference" / "methods.md").read_text(encoding="utf-8"))) == set(METHODS)


def test_links_to_files_of_the_repository_lead_somewhere() -> None:
    linked = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    links = [(page, link) for page in linked for link in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))]
    assert links
    made = {(DOCS / page).resolve() for page in generated.PAGES}
    assert not [f"{page}: {link}" for page, link in links if not (page.parent / link).exists()
                and not (DOCS in page.parents and (page.parent / link).resolve() in made)]


ENTRIES = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", (DOCS / "errors.md").read_text(encoding="utf-8"), re.M | re.S))
CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, CachemarkError)]


def test_every_class_has_an_entry_that_names_its_class_exit_code_causes_and_remedy_and_prints_its_own() -> None:
    assert sorted(c.slug for c in CLASSES) == sorted(ENTRIES)
    parts = {c: (f"*Class `{c.__name__}`, exit code {c.exit_code}.*", "- **Causes.** ", "- **Remedy.** ") for c in CLASSES}
    assert not [(c.slug, part) for c, expected in parts.items() for part in expected if part not in ENTRIES[c.slug]]
    assert {str(c("It is so.", remedy="Do that.")) for c in CLASSES} == {"It is so. Do that."}
    assert {str(c("It is so.")) for c in CLASSES} == {"It is so."}


def test_unknown_suggests_the_nearest_name_and_lists_all() -> None:
    error = unknown("method", "linaer", ["window", "linear", "h2o"])
    assert isinstance(error, UnknownName)
    assert str(error) == "Unknown method 'linaer'. Did you mean 'linear'? Known: h2o, linear, window."
    assert unknown("case", "rkv", ["full", "rkv 1/2, batch 4"]).remedy == "Known: full; rkv 1/2, batch 4."
    remedy = unknown("model", "var-d37", [f"model-{number:02}" for number in range(25)] + ["var-d36", "var-d30"]).remedy
    assert remedy.startswith("Did you mean 'var-d36'? Known: model-")
    assert remedy.endswith("var-d30, var-d36 and 17 more.")
    assert unknown("method", "zzz", []).remedy == "Known: none."


NO_CONNECTIONS = """
import os, socket, sys

def refuse(event, args):
    if event == "socket.connect" or event == "socket.getaddrinfo":
        os._exit(77)  # an exception could be caught

sys.addaudithook(refuse)
from mkdocs.__main__ import cli
cli()
"""
SETTINGS: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages_of(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        below = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(below, str):
            yield below
        else:
            yield from pages_of(below)


def test_every_page_has_one_place_in_the_navigation_and_nothing_is_set_that_would_ask_another_host() -> None:
    named = [page for page in pages_of(SETTINGS["nav"]) if not page.startswith("cli/")]
    assert sorted(named) == sorted([*generated.PAGES, *(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))])
    assert SETTINGS["theme"]["font"] is False
    assert SETTINGS["extra"]["polyfills"] == ["assets/iframe-worker.js"]  # else the plug-in `offline` names another host
    assert not {"repo_url", "site_url"} & SETTINGS.keys()  # with the first a page asks its host how many stars there are
    assert not {"analytics", "consent"} & SETTINGS["extra"].keys()
    assert "offline" in SETTINGS["plugins"]


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
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="no mkdocs here; `make docs` installs it")
def test_the_built_site_has_every_command_and_public_name_and_loads_nothing_from_another_host(tmp_path: Path, main: click.Group) -> None:
    """It is built without a warning in a process that ends at the first connection."""
    command = [sys.executable, "-c", NO_CONNECTIONS, "build", "--strict", "--site-dir", str(site := tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)  # with --quiet no warning counts
    assert built.returncode == 0, built.stderr
    assert len(list(site.rglob("*.html"))) > len(list(DOCS.rglob("*.md")))
    assert list(hosts.loads_of(site)) == []
    for page in site.rglob("*.html"):  # the theme's script would load mermaid and count stars for these
        assert not {"mermaid", "md-source__fact"} & Parts(page).classes, page
    assert {page.stem for page in (site / "cli").glob("*.html")} == {*main.commands, "index"}
    ids = Parts(site / "api" / "cachemark.html").ids
    assert {f"cachemark.{name}" for name in set(cachemark.__all__) - {"__version__"}} <= ids
