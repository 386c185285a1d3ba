"""Whatever a user writes into names, parameters, logs and facts comes out as text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample
from page import Page
from report_sample import BREAKERS, SCRIPTS

from cachemark.analysis.report_view import build
from cachemark.analysis.run_history import HistoryNight
from cachemark.report.page import render, site

CONTROLS = "nul\x00 esc\x1b sep\u2028 para\u2029 half\ud800 cdata]]>"
TURNED = "\u202eright to left\u2066"
EVIL = (SCRIPTS, BREAKERS, CONTROLS, TURNED, "A" * 10_000, "<" * 10_000, "", "__proto__", "0|1|2")


@cache
def poisoned(evil: str) -> tuple[str, Page]:
    html = sample.poisoned(evil)
    return html, Page(html)


def drawings(html: str) -> int:
    """The number of drawings, all of which are well-formed."""
    return len([ET.fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in html.split("<svg")[1:]])


@pytest.mark.parametrize("evil", EVIL, ids=lambda e: ascii(e[:12]))
def test_no_element_and_no_attribute_comes_from_a_user_and_drawings_stay_well_formed(evil: str) -> None:
    html, page = poisoned(evil)
    assert (len(page.all("script")), len(page.all("style")), drawings(html)) == (1, 1, 8)
    assert {e.tag for e in page.elements} == {e.tag for e in poisoned("calm")[1].elements}
    for element in page.elements:
        assert not [name for name in element.attrs if name.startswith("on")]
        assert element.attrs.get("src", "data:").startswith("data:")
        assert element.attrs.get("href", "#").startswith(("#", "data:"))


def test_scripts_are_shown_as_text() -> None:
    html, page = poisoned(SCRIPTS)
    assert SCRIPTS not in html
    assert page.find("h1").text == SCRIPTS
    assert SCRIPTS in page.find("title").text


def test_a_long_name_does_not_make_a_long_page() -> None:
    assert len(poisoned("A" * 10_000)[0]) - len(poisoned("calm")[0]) < 250_000
    assert max(len(text) for text, parents in poisoned("A" * 10_000)[1].texts
               if "A" * 10 in text and not {"pre", "script", "style"} & set(parents)) <= 1300


def test_text_from_right_to_left_is_kept_in_its_place() -> None:
    _, page = poisoned(TURNED)
    loose = [(text, parents) for text, parents in page.texts
             if "\u202e" in text and not {"bdi", "title", "text", "pre"} & set(parents) and "\u2068" not in text]
    assert loose == []


@pytest.mark.parametrize("evil", [SCRIPTS, BREAKERS, CONTROLS, TURNED, "<" * 10_000], ids=lambda e: ascii(e[:12]))
def test_a_history_with_changes_is_text_and_well_formed(evil: str) -> None:
    """Names of methods, dates and fingerprints over thirty runs, with a step that is told in a sentence and drawn with a mark."""
    full, candidate = sample.full(), sample.candidate("linear", "1/4")
    candidate = replace(candidate, case=replace(candidate.case, method=evil, variant=evil))
    environment = replace(sample.ENVIRONMENT, fingerprint=evil)
    nights = [HistoryNight(replace(sample.RUN, id=k, started=evil, environment=environment),
                    [full, replace(candidate, samples={**candidate.samples, "latency": [(1 + k % 3 / 100) * (1 + (k > 15))]})])
                    for k in range(30)]
    html = render.render(build(sample.RUN, nights[-1].outcomes, nights=nights))
    page = Page(html)
    notes = next(e for e in page.all("ul") if e.attrs.get("class") == "findings warn" and " at run 16" in e.text)
    assert len(notes.text) < 320
    assert len(page.all("script")) == 1
    assert not [name for e in page.elements for name in e.attrs if name.startswith("on")]
    assert drawings(html) == 10


def line(number: int, **changes: object) -> dict[str, Any]:
    run = replace(sample.RUN, id=number, **changes)
    return site.listed(number, build(run, sample.mixed(), sample.comparison()))


def test_runs_are_listed_with_their_verdicts_and_pages() -> None:
    page = Page(site.index([line(9), line(8, state="interrupted")]))
    first, second = (row.text for row in page.all("tr")[1:])
    assert "demo 9" in " ".join(first.split())
    assert "Regressed" in first
    assert "interrupted" in second
    assert [e.attrs["href"] for e in page.all("a")] == ["runs/run-9.html", "runs/run-8.html"]
    assert page.all("script") == []
    assert "script-src 'none'" in page.find("meta", http_equiv="Content-Security-Policy").attrs["content"]
    assert "no baseline" in site.index([site.listed(1, build(sample.RUN, sample.outcomes()))])
    assert "No run is recent enough" in site.index([])


def test_only_pages_of_the_site_are_removed(tmp_path: Path) -> None:
    page = site.index([])
    (tmp_path / site.FOLDER).mkdir()
    for name, text in (("run-1.html", page), ("run-2.html", page), ("run-3.html", "notes"), ("mine.html", page)):
        (tmp_path / site.FOLDER / name).write_text(text)
    assert site.prune(tmp_path, [2]) == 1
    assert sorted(p.name for p in (tmp_path / site.FOLDER).iterdir()) == ["mine.html", "run-2.html", "run-3.html"]


@pytest.mark.parametrize("evil", [sample.SCRIPTS + sample.BREAKERS, "\u202eturned", "A" * 10_000, "😀 \ud800"], ids=lambda e: ascii(e[:8]))
def test_hostile_names_come_out_as_text(evil: str, tmp_path: Path) -> None:
    run, outcomes, comparison = sample.poison(evil)
    listed = site.listed(1, build(run, outcomes, comparison))
    text = site.publish(tmp_path, {"1": listed}).read_text(encoding="utf-8")
    page = Page(text)
    assert {e.tag for e in page.elements} == {e.tag for e in Page(site.index([line(1)])).elements}
    assert not [name for e in page.elements for name in e.attrs if name.startswith("on")]
    assert len(text) < 60_000
