"""A page of many cases in a real browser: what is not looked at is not built, and what is looked at behaves as on a small page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample
from test_report_deferred import many
from test_report_page import serious

from cachemark.analysis.report_view import build
from cachemark.core.spec import shown_share
from cachemark.report.page.render import LARGE, render

Open = Callable[..., Any]
COUNT = LARGE
CANDIDATES = "#leaderboard tbody.candidates tr"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    held = tmp_path_factory.mktemp("page") / "large.html"
    held.write_text(render(build(sample.RUN, many())), encoding="utf-8")
    return held


@pytest.fixture
def page(opened: Open, file: Path) -> Iterator[Any]:
    held = opened(file)
    yield held
    assert held.said == []


def count(page: Any, what: str) -> int:
    return int(page.evaluate("(what) => document.querySelectorAll(what).length", what))


def test_a_tab_is_built_when_it_is_looked_at(page: Any) -> None:
    assert count(page, CANDIDATES) == count(page, "#quality svg") == 0
    page.click("#tab-leaderboard")
    page.wait_for_selector(CANDIDATES)
    assert count(page, "#quality svg") == 0
    page.click("#tab-quality")
    page.wait_for_selector("#quality svg")


def test_rows_come_in_portions_until_all_are_there(page: Any) -> None:
    page.click("#tab-leaderboard")
    page.wait_for_selector("#leaderboard .next button")
    assert page.inner_text("#leaderboard .next") == f"Show 100 more of {COUNT - 100} rows"
    seen = [count(page, CANDIDATES)]
    while page.is_visible("#leaderboard .next"):
        page.focus("#leaderboard .next button")
        page.keyboard.press("Enter")
        seen.append(count(page, CANDIDATES))
    assert seen == [100, 200, 300, COUNT]
    assert page.evaluate("document.activeElement.closest('tr').rowIndex > 300")  # the reader stands at the first new row


def test_rows_that_need_no_button_are_all_there(opened: Open, tmp_path: Path) -> None:
    """Each of four models has more rows than the page writes out and fewer than a button is for."""
    candidates = 120
    few = [replace(o, case=replace(o.case, model=f"m{k}")) for k in range(4) for o in many(candidates)]
    assert len(few) >= COUNT
    file = tmp_path / "some.html"
    file.write_text(render(build(sample.RUN, few)), encoding="utf-8")
    held = opened(file, tab="leaderboard")
    held.wait_for_selector(CANDIDATES)
    bodies = held.evaluate("() => Array.from(document.querySelectorAll('#leaderboard tbody.candidates')).map((body) => body.rows.length)")
    assert set(bodies) == {candidates}
    assert count(held, "#leaderboard .next") == 0
    held.hover(f"{CANDIDATES} .mark >> nth=0")
    assert len(held.inner_text("#tip")) > 40


def test_a_filter_and_an_order_reach_rows_that_were_never_shown(page: Any) -> None:
    page.click("#tab-leaderboard")
    shares = [shown_share(f"{k}/{COUNT + 1}") for k in range(1, COUNT + 1)]
    last = shares[0]  # the smallest budget, at the very end
    page.fill("#leaderboard .filter input", f"{last} -absent")
    assert page.inner_text("#leaderboard .filter output") == f"{sum(last in share for share in shares)} of {COUNT}"
    budgets = page.evaluate("(rows) => Array.from(document.querySelectorAll(rows)).map((r) => r.cells[2].firstChild.textContent)",
                            CANDIDATES)
    assert last in budgets
    assert all(last in budget for budget in budgets)
    page.fill("#leaderboard .filter input", "")
    for wanted in (shares[-1], last):
        page.click("#leaderboard th[data-k=budget] button")
        assert page.evaluate("(rows) => document.querySelector(rows).cells[2].firstChild.textContent", CANDIDATES) == wanted
    page.click("#leaderboard th[data-k=name] button")
    assert page.evaluate("(rows) => document.querySelector(rows).cells[1].textContent", CANDIDATES).startswith("linear")


def test_a_row_that_is_built_late_explains_itself(page: Any) -> None:
    page.click("#tab-leaderboard")
    page.fill("#leaderboard .filter input", shown_share(f"1/{COUNT + 1}"))
    page.hover(f"{CANDIDATES} .mark >> nth=0")
    assert len(page.inner_text("#tip")) > 40


def test_a_link_finds_a_case_and_a_chapter_that_were_not_built(opened: Open, file: Path) -> None:
    key = many()[-1].case.key
    held = opened(file, tab=f"c-{key}")
    assert held.is_visible(f"#c-{key} .values >> nth=0")
    assert count(held, "#cases .values") == count(held, f"#c-{key} .values")
    assert opened(file, tab="quality-m1").is_visible("#quality svg >> nth=0")


def test_charts_figures_and_legends_work_in_parts(page: Any) -> None:
    page.click("#tab-speed")
    page.wait_for_selector("#speed .chart details.more")
    assert count(page, "#speed .chart tbody tr") == 0
    page.click("#speed .chart details.more > summary >> nth=0")
    page.wait_for_selector("#speed .chart tbody tr")  # the browser tells of an opened part a moment later
    assert count(page, "#speed .chart tbody tr") == 100
    page.click("#speed .key >> nth=0")
    assert count(page, "#speed svg .lit") > 0
    page.hover("#speed svg [data-series] >> nth=0", force=True)
    assert page.is_visible("#tip b")


def test_paper_shows_every_row(page: Any) -> None:
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert count(page, CANDIDATES) == COUNT
    assert count(page, ".later") == COUNT + 1  # the raw samples of each case


@pytest.mark.slow
def test_axe_finds_nothing_serious_in_what_was_built(page: Any) -> None:
    for tab in ("leaderboard", "speed", "cases"):
        page.click(f"#tab-{tab}")
        page.wait_for_timeout(300)
        if tab == "cases":
            page.click("#cases summary >> nth=0")
        shown = "#cases .case[open]" if tab == "cases" else f"#{tab} .filter, #{tab} .next, #{tab} table, #{tab} .legend"
        assert serious(page, shown) == [], tab
