"""Whatever a user writes into names, parameters, logs and facts comes out as text."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache

import pytest
import report_sample as sample
from page import Page
from report_sample import BREAKERS, SCRIPTS

from cachemark.analysis.report_view import build
from cachemark.analysis.run_history import HistoryNight
from cachemark.report.page import render
from cachemark.report.page.render import write
from cachemark.workflows.report import changes_over_nights

CONTROLS = "nul\x00 esc\x1b sep\u2028 para\u2029 half\ud800 cdata]]>"
TURNED = "\u202eright to left\u2066"
EVIL = (SCRIPTS, BREAKERS, CONTROLS, TURNED, "A" * 10_000, "<" * 10_000, "", "__proto__", "0|1|2")


@cache
def poisoned(evil: str) -> tuple[str, Page]:
    html = sample.poisoned(evil)
    return html, Page(html)


@pytest.mark.parametrize("evil", EVIL, ids=lambda e: ascii(e[:12]))
def test_no_element_and_no_attribute_comes_from_a_user(evil: str) -> None:
    _, page = poisoned(evil)
    assert len(page.all("script")) == 1
    assert len(page.all("style")) == 1
    calm = {e.tag for e in poisoned("calm")[1].elements}
    assert {e.tag for e in page.elements} == calm
    for element in page.elements:
        assert not [name for name in element.attrs if name.startswith("on")]
        assert element.attrs.get("src", "data:").startswith("data:")
        assert element.attrs.get("href", "#").startswith(("#", "data:"))


@pytest.mark.parametrize("evil", EVIL, ids=lambda e: ascii(e[:12]))
def test_drawings_stay_well_formed(evil: str) -> None:
    html, _ = poisoned(evil)
    parts = html.split("<svg")[1:]
    assert len(parts) == 8
    for part in parts:
        ET.fromstring("<svg" + part.split("</svg>")[0] + "</svg>")


def test_scripts_are_shown_as_text() -> None:
    html, page = poisoned(SCRIPTS)
    assert SCRIPTS not in html
    assert page.find("h1").text == SCRIPTS
    assert SCRIPTS in page.find("title").text


def test_templates_are_not_evaluated() -> None:
    html, page = poisoned(BREAKERS)
    assert "{{ 7 * 7 }}" in page.find("h1").text
    assert html.count("</style>") == 1


def test_control_characters_do_not_reach_the_file() -> None:
    html, _ = poisoned(CONTROLS)
    assert not set(html) & {"\x00", "\x1b", "\ud800"}
    html.encode("utf-8")


def test_a_long_name_does_not_make_a_long_page() -> None:
    assert len(poisoned("A" * 10_000)[0]) - len(poisoned("calm")[0]) < 250_000
    assert max(len(text) for text, parents in poisoned("A" * 10_000)[1].texts
               if "A" * 10 in text and not {"pre", "script", "style"} & set(parents)) <= 1300


def test_text_from_right_to_left_is_kept_in_its_place() -> None:
    _, page = poisoned(TURNED)
    loose = [(text, parents) for text, parents in page.texts
             if "\u202e" in text and not {"bdi", "title", "text", "pre"} & set(parents) and "\u2068" not in text]
    assert loose == []


def test_a_page_with_half_characters_can_be_written(tmp_path: object) -> None:
    run = replace(sample.RUN, plan="half \ud800 character")
    file = write(build(run, []), f"{tmp_path}/page.html")
    assert "half" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("evil", EVIL, ids=lambda e: ascii(e[:12]))
def test_a_history_with_changes_is_text_and_well_formed(evil: str) -> None:
    """Names of methods, dates and fingerprints over thirty runs, with a step that is told in a sentence and drawn with a mark."""
    full, candidate = sample.full(), sample.candidate("linear", "1/4")
    candidate = replace(candidate, case=replace(candidate.case, method=evil, variant=evil))
    environment = replace(sample.ENVIRONMENT, fingerprint=evil)
    nights = [HistoryNight(replace(sample.RUN, id=k, started=evil, environment=environment),
                    [full, replace(candidate, samples={**candidate.samples, "latency": [(1 + k % 3 / 100) * (1 + (k > 15))]})])
                    for k in range(30)]
    html = render.render(build(sample.RUN, nights[-1].outcomes, nights=nights, trend=changes_over_nights))
    page = Page(html)
    notes = next(e for e in page.all("ul") if e.attrs.get("class") == "findings warn" and " at run 16" in e.text)
    assert len(notes.text) < 320
    assert len(page.all("script")) == 1
    assert not [name for e in page.elements for name in e.attrs if name.startswith("on")]
    for part in html.split("<svg")[1:]:
        ET.fromstring("<svg" + part.split("</svg>")[0] + "</svg>")
