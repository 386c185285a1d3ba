"""A page of many cases: its parts stand at its end as text, each once, and each place names one of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
import report_sample as sample
from page import Page

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.columns import column_groups
from cachemark.analysis.report_view import build
from cachemark.core.result import Outcome
from cachemark.report.charts.bars import MOST
from cachemark.report.page import render
from cachemark.report.page.render import engine

PART = re.compile(r'<script type="text/plain" id="part-(\d+)">(.*?)</script>', re.DOTALL)


def many(count: int = render.LARGE) -> list[Outcome]:
    """The full cache and one method at ``count`` budgets; the smallest has a mark."""
    held = sample.candidate("linear", "1/4")
    candidates = [replace(held, case=replace(held.case, budget=f"{k}/{count + 1}")) for k in range(1, count + 1)]
    candidates[0] = replace(candidates[0], facts={**held.facts, "quality_only": "Its kernel is not fused."})
    return [sample.full(), *candidates]


COUNT = 2 * MOST  # candidates of the page: more than are drawn, and enough that it comes in parts


@pytest.fixture(scope="module")
def html() -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "LARGE", COUNT)
        return render.render(build(sample.RUN, many(COUNT)))


@pytest.fixture(scope="module")
def built(html: str) -> Page:
    return Page(put_together(html))


def put_together(html: str) -> str:
    """The page as a browser has it in the end: every place filled with its part."""
    parts = dict(PART.findall(html))
    rest = re.compile(r' data-rest="(\d+)">(.*?)</tbody>', re.DOTALL)
    place = re.compile(r'<div class="later" data-part="(\d+)"></div>')
    page = re.sub("<noscript>.*?</noscript>", "", html.split("<script")[0])
    while place.search(page) or rest.search(page):
        page = place.sub(lambda found: parts.pop(found[1]), page)
        page = rest.sub(lambda found: f">{found[2]}{parts.pop(found[1])}</tbody>", page)
    assert not parts, "a part that no place names"
    return page + "</body></html>"


def test_its_parts_make_the_page_that_a_small_run_has_at_once(built: Page) -> None:
    assert COUNT < render.LARGE
    whole = Page(render.render(build(sample.RUN, many(COUNT))).split("<script")[0] + "</body></html>")
    assert Counter(e.tag for e in built.elements) == Counter(e.tag for e in whole.elements)
    assert built.tables() == whole.tables()


def test_what_a_browser_builds_at_once_is_a_small_share(html: str, built: Page) -> None:
    at_once = Page(PART.sub("", html))
    assert len(at_once.elements) < len(built.elements) / 5
    ids = {e.attrs["id"] for e in at_once.elements if "id" in e.attrs}
    assert {f"c-{outcome.case.key}" for outcome in many(COUNT)} | {"leaderboard-m1", "quality-m1"} <= ids  # so that links find their places


def test_a_part_holds_no_end_of_a_script(html: str) -> None:
    assert html.count("</script>") == len(PART.findall(html)) + 1
    held = render.DeferredSections(whole=False)
    with pytest.raises(AssertionError):
        held.keep(render.Markup("</script>"))


def test_a_reader_without_scripts_is_told(html: str) -> None:
    assert "which needs JavaScript" in html.split("<h2")[0]
    assert "<noscript>" not in render.render(build(sample.RUN, sample.outcomes()))


def test_a_drawing_of_many_cases_shows_the_first_and_its_table_all(built: Page) -> None:
    chart = next(e for e in built.all("figure") if e.children and e.children[0].text == "Time per batch, by part")
    assert f"The first {MOST} of {COUNT + 1} cases are drawn; the table holds all." in chart.text
    drawing = next(e for e in chart.children if e.tag == "svg")
    assert len([e for e in drawing.children if e.tag == "rect"]) == 2 * MOST


def test_rows_that_are_kept_know_the_budget_before_them() -> None:
    (group,) = case_groups([sample.full(), sample.candidate("linear", "1/4"), sample.candidate("window", "1/4")])
    rows, shown = group.candidates, column_groups(group)
    leaderboard_rows = engine().get_template("rows.html").module.leaderboard_rows  # type: ignore[attr-defined]
    assert [leaderboard_rows(rows, shown, before).count('class="candidate first"') for before in ("", "1/2", "1/4")] == [1, 1, 0]
