"""The report in a real browser: it complains about nothing, asks nobody for anything, shows its charts in every tab, sorts, filters,
enlarges, changes its theme, fits a phone, and axe-core finds nothing serious in it.

Screenshots of every tab are kept in ``tests/browser/shots`` for people to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample

from cachemark.analysis.report_view import build
from cachemark.analysis.run_history import HistoryNight
from cachemark.report.page.render import TABS, render
from support.later import later

axe = later("axe_playwright_python.sync_playwright")

DEMO = Path(__file__).parents[2] / "reports" / "demo.html"
SHOTS = Path(__file__).parent / "shots"
KEYS = tuple(key for key, _ in TABS)
DRAWN = ("leaderboard", "speed", "memory", "quality", "history")  # tabs with charts
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run in which much happened, with an earlier run before it."""
    nights = [HistoryNight(sample.RUN, sample.outcomes()), HistoryNight(sample.RUN, sample.mixed())]
    target = tmp_path_factory.mktemp("page") / "page.html"
    view = build(sample.RUN, sample.mixed(), sample.comparison(), sample.artifact, nights=nights)
    target.write_text(render(view), encoding="utf-8")
    return target


@pytest.fixture
def opened(opened: Open, file: Path) -> Open:
    """Opens that page, or another one."""
    return lambda where=file, **how: opened(where, **how)


def everywhere(page: Any) -> Iterator[str]:
    """Visits every tab by its link."""
    for key in KEYS:
        page.click(f"#tab-{key}")
        page.wait_for_selector(f"#{key}:not([hidden])")
        yield key


# ---------------------------------------------------------------------------------------------- it is quiet and complete


@pytest.mark.parametrize("which", ["sample", "demo"])
def test_every_tab_shows_its_charts_with_their_tables_and_is_quiet(opened: Open, file: Path, which: str) -> None:
    # The sample report is of one run, so it has no history.
    where, drawn = (DEMO, [key for key in DRAWN if key != "history"]) if which == "demo" else (file, DRAWN)
    page = opened(where)
    for key in everywhere(page):
        assert page.evaluate("Array.from(document.querySelectorAll('.panel')).filter((p) => p.offsetHeight).map((p) => p.id)") == [key]
        sizes = page.evaluate("""(key) => Array.from(document.querySelectorAll(`#${key} .chart:has(svg)`)).map((chart) => {
            const box = chart.querySelector("svg").getBoundingClientRect();
            return [box.width, box.height, chart.querySelectorAll("details table tbody tr").length]; })""", key)
        assert bool(sizes) == (key in drawn), key
        # A map of one batch or length has one row of cells.
        assert all(width > 200 and height > 40 and rows for width, height, rows in sizes), (key, sizes)
    assert page.said == []
    assert [url for url in page.asked if not url.startswith("data:")] == [where.as_uri()]


def test_an_error_and_a_request_would_be_seen(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text("<!DOCTYPE html><script>console.error('planted')</script><img src='there.png'>", encoding="utf-8")
    page = opened(tmp_path / "bad.html")
    assert "planted" in page.said
    assert any(url.endswith("there.png") for url in page.asked)


def test_a_hostile_page_runs_no_script(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "evil.html").write_text(sample.poisoned(sample.SCRIPTS + sample.BREAKERS), encoding="utf-8")
    page = opened(tmp_path / "evil.html")
    page.on("dialog", lambda dialog: page.said.append(dialog.message))
    for _ in everywhere(page):
        pass
    assert page.said == []  # an attempt would be reported here: the policy forbids it
    assert page.inner_text("#theme") == "Dark theme"


def test_a_script_that_slipped_in_would_be_stopped(opened: Open, file: Path, tmp_path: Path) -> None:
    script = "<script>document.documentElement.dataset.planted = 1</script>"
    planted = file.read_text(encoding="utf-8").replace("</main>", f"{script}</main>")
    (tmp_path / "planted.html").write_text(planted, encoding="utf-8")
    page = opened(tmp_path / "planted.html")
    assert page.evaluate("document.documentElement.dataset.planted") is None
    assert "Content Security Policy" in page.said[0]


# ---------------------------------------------------------------------------------------------- tabs and links


def test_tabs_are_walked_with_the_arrow_keys(opened: Open) -> None:
    page = opened()
    page.focus("#tab-verdict")
    observed = []
    for press in ("ArrowRight", "ArrowRight", "End", "ArrowRight", "ArrowLeft", "Home"):
        page.keyboard.press(press)
        page.wait_for_timeout(20)
        observed.append(page.evaluate("document.activeElement.id.slice(4) + ' ' + document.querySelector('.panel:not([hidden])').id"))
    assert observed == [f"{key} {key}" for key in ("leaderboard", "speed", "cases", "verdict", "cases", "verdict")]
    assert page.evaluate("Array.from(document.querySelectorAll('[role=tab]')).filter((tab) => tab.tabIndex === 0).length") == 1


def test_a_link_to_a_place_opens_its_tab(opened: Open) -> None:
    page = opened(tab="quality-m1")
    assert page.is_visible("#quality")
    assert page.is_hidden("#verdict")
    assert opened(tab="no-such-place%").is_visible("#verdict")


def test_a_number_leads_to_its_case_and_raw_samples(opened: Open) -> None:
    page = opened(tab="leaderboard")
    row = page.query_selector("tbody.candidates tr:has(td[data-k=kl] a)")
    key = row.query_selector("th a").get_attribute("href")
    row.query_selector("td[data-k=kl] a").click()
    page.wait_for_selector(f"{key}[open]")
    assert page.is_visible(f"{key} .values >> nth=0")
    case = sample.candidate("linear", "1/2")
    page.goto(page.url.split("#")[0] + f"#c-{case.case.key}")
    page.wait_for_selector(f"#c-{case.case.key}[open]")
    printed = page.inner_text(f"#c-{case.case.key} tr:has(th:text-is('Latency')) .values")
    assert printed.split() == [f"{value:.6g}" for value in case.samples["latency"]]


# ---------------------------------------------------------------------------------------------- tables


def names(page: Any) -> list[str]:
    items: list[str] = page.evaluate("""
        Array.from(document.querySelectorAll("tbody.candidates tr")).filter((row) => row.offsetHeight).map((row) =>
        row.querySelector("th bdi").textContent + " " + row.querySelector("td[data-k=budget]").firstChild.textContent)""")
    return items


def test_headers_sort_best_first_then_worst_then_as_it_was(opened: Open) -> None:
    page = opened(tab="leaderboard")
    observed = []
    for _ in range(4):
        observed.append((page.get_attribute("th[data-k=kl]", "aria-sort"), names(page)))
        page.click("th[data-k=kl] button")
    (none, first), (best, up), (worst, down), (again, last) = observed
    assert (none, best, worst, again) == ("none", "ascending", "descending", "none")
    assert first == last
    assert up[0] == "LineAR 1/2"
    assert down[0] == "window 1/4"
    assert up[-2:] == down[-2:] == ["H2O 1/4", "R-KV 1/4"]  # without values: last either way
    assert up[:-2] == down[:-2][::-1]


def test_plain_tables_sort_by_what_their_figures_mean(opened: Open) -> None:
    page, first = opened(tab="memory"), "#memory .chart:first-child"
    column = f"""(k) => Array.from(document.querySelectorAll("{first} tbody tr")).map((row) => row.cells[k].textContent)"""
    page.click(f"{first} details.more > summary")
    page.click(f"{first} th:has-text('Total') button")
    printed = page.evaluate(column, 4)
    assert {text.split()[1] for text in printed} == {"MiB"}
    assert [float(text.split()[0]) for text in printed] == sorted(float(text.split()[0]) for text in printed)
    page.click(f"{first} th:has-text('State') button")
    mixed = page.evaluate(column, 3)
    assert mixed == sorted(mixed, key=lambda text: float(text.split()[0]) * {"B": 1, "KiB": 1024}[text.split()[1]])
    assert len(set(mixed)) > 1


def test_budgets_sort_by_their_shares(opened: Open, tmp_path: Path) -> None:
    candidates = [sample.candidate("linear", "1/2")] * 4
    budgets = ("1/2", "1/4", "1/3", "0.62")
    spread = [replace(candidate, case=replace(candidate.case, budget=budget)) for candidate,
              budget in zip(candidates, budgets, strict=True)]
    (tmp_path / "budgets.html").write_text(render(build(sample.RUN, [sample.full(), *spread])), encoding="utf-8")
    page = opened(tmp_path / "budgets.html", tab="quality")
    column = page.evaluate("""() => {
        const head = Array.from(document.querySelectorAll("#quality .chart th")).find((th) => th.textContent.trim() === "Budget");
        const table = head.closest("table");
        head.querySelector("button").click();
        return Array.from(table.tBodies[0].rows).map((row) => row.cells[head.cellIndex].textContent.trim()); }""")
    assert column in (["1/4", "1/3", "1/2", "0.62"], ["0.62", "1/2", "1/3", "1/4"])


def test_a_filter_keeps_the_rows_with_all_its_words(opened: Open) -> None:
    page = opened(tab="leaderboard")
    complete = names(page)
    page.fill("#leaderboard .filter input", "1/4 -linear")
    assert names(page) == [name for name in complete if name.endswith("1/4") and not name.startswith("LineAR")]
    assert page.inner_text("#leaderboard .filter output") == f"{len(names(page))} of {len(complete)}"
    page.fill("#leaderboard .filter input", "")
    assert names(page) == complete


def test_a_header_is_reached_with_the_keyboard_and_explains_itself(opened: Open) -> None:
    page = opened(tab="leaderboard")
    page.focus("th[data-k=kl] button")
    assert page.inner_text("#tip") == "KL(full || method) in nat per token."
    assert page.get_attribute("th[data-k=kl] button", "aria-describedby") == "tip"
    page.keyboard.press("Enter")
    assert page.get_attribute("th[data-k=kl]", "aria-sort") == "ascending"
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")


def test_flags_and_words_explain_themselves(opened: Open) -> None:
    page = opened(tab="leaderboard")
    page.hover("tbody.candidates .mark >> nth=0")
    assert len(page.inner_text("#tip")) > 40
    page.click("#tab-quality")
    page.hover(".term[data-term=fidelity]")
    assert page.inner_text("#tip") == "Closeness of a method to the full cache at the same seeds."
    assert page.evaluate("Array.from(document.querySelectorAll('.term')).filter((t) => !document.querySelector('#glossary')"
                         ".textContent.includes(t.dataset.term)).length") == 0
    page.click("#tab-verdict")
    page.click("#verdict .why summary >> nth=0")
    assert page.is_visible("#verdict .why p >> nth=0")


# ---------------------------------------------------------------------------------------------- charts, pictures, theme


def test_a_legend_entry_lights_its_method_and_a_mark_names_itself(opened: Open) -> None:
    page = opened(tab="leaderboard")
    page.click("#leaderboard .key >> nth=0")
    marks, lit = page.evaluate("""(() => { const all = Array.from(document.querySelectorAll("#leaderboard svg [data-series]"));
        return [all.length, all.filter((mark) => mark.classList.contains("lit")).length]; })()""")
    assert 0 < lit < marks
    page.hover("#leaderboard svg [data-series] >> nth=0", force=True)
    assert page.inner_text("#tip b") in {"full", *(f"{method} {budget}" for method in sample.METHODS for budget in sample.BUDGETS)}


def test_a_seed_is_enlarged_beside_the_full_cache_with_their_difference(opened: Open) -> None:
    page = opened(tab="quality")
    page.click(".hits button >> nth=0")
    assert page.evaluate("document.getElementById('zoom').open")
    assert page.inner_text("#zoom-title") == "worst seed 41, class disc"
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#zoom-title") == "fixed seed 3, class square"
    sources = page.evaluate("""Array.from(document.querySelectorAll("#zoom img")).map((image) =>
        image.src === document.querySelector(".frame img").src)""")
    assert sources == [True] * 4
    assert page.evaluate("getComputedStyle(document.querySelector('.difference img + img')).mixBlendMode") == "difference"
    page.keyboard.press("Escape")
    assert not page.evaluate("document.getElementById('zoom').open")


def test_the_theme_follows_the_system_and_then_the_reader(opened: Open) -> None:
    def look(page: Any) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    page, night = opened(), opened(theme="dark")
    light, dark = look(page), look(night)
    assert light == "rgb(255, 255, 255)"
    assert dark != light
    for values, other in ((page, dark), (night, light)):
        values.click("#theme")
        assert look(values) == other
    page.reload()
    assert look(page) == dark  # it remembers


def test_paper_shows_every_part_but_the_raw_samples(opened: Open) -> None:
    page = opened()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    printed = page.evaluate("Array.from(document.querySelectorAll('.panel')).filter((p) => p.offsetHeight).map((p) => p.id)")
    assert printed == [key for key in KEYS if key != "cases"]
    assert page.evaluate("document.querySelectorAll('details:not([open], .case)').length") == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.is_hidden("#speed")


# ---------------------------------------------------------------------------------------------- for everybody, on every screen


@pytest.mark.parametrize("width", [360, *(pytest.param(width, marks=pytest.mark.slow) for width in (768, 1280))])
def test_no_tab_is_wider_than_the_screen(opened: Open, width: int) -> None:
    page = opened(width=width)
    for key in everywhere(page):
        assert page.evaluate("document.documentElement.scrollWidth") <= width, key


def test_a_table_that_scrolls_fades_at_the_side_on_which_more_of_it_lies(opened: Open) -> None:
    page = opened(width=390)
    page.click("#tab-leaderboard")
    page.wait_for_selector("#leaderboard .scroll.more")
    page.evaluate("document.querySelector('#leaderboard .scroll.more').scrollLeft = 1e6")
    page.wait_for_selector("#leaderboard .scroll.wide:not(.more)")


@pytest.mark.parametrize(("theme", "tabs"), [
    ("light", ("leaderboard",)),
    *(pytest.param(theme, KEYS, marks=pytest.mark.slow) for theme in ("light", "dark")),
])  # fmt: skip
def test_axe_finds_nothing_serious(opened: Open, theme: str, tabs: tuple[str, ...]) -> None:
    page = opened(theme=theme)
    for key in everywhere(page):
        assert key not in tabs or serious(page, f"#{key}") == [], key
    assert serious(page, "header, #tabs") == []


def test_axe_would_find_what_is_wrong(opened: Open) -> None:
    page = opened()
    page.evaluate("document.getElementById('verdict').insertAdjacentHTML('beforeend', '<p style=\"color:#ccc\">pale</p><button></button>')")
    assert {"color-contrast", "button-name"} <= {name for name, _ in serious(page, "#verdict")}


def serious(page: Any, where: str) -> list[tuple[str, str]]:
    """Violations that keep someone from using the page, with the first place of each."""
    items = axe.Axe().run(page, context=where).response["violations"]
    return [(item["id"], item["nodes"][0]["html"][:200]) for item in items if item["impact"] in ("serious", "critical")]


@pytest.mark.slow
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)], ids=["light", "dark", "phone"])
def test_pictures_of_every_tab_are_kept(opened: Open, theme: str, width: int) -> None:
    page = opened(DEMO, theme=theme, width=width)
    page.add_style_tag(content=".chapter, .case { content-visibility: visible !important; }")
    SHOTS.mkdir(exist_ok=True)
    for key in everywhere(page):
        shot = SHOTS / f"{key}-{'phone' if width < 600 else theme}.png"
        page.screenshot(path=shot, full_page=True)
        assert shot.stat().st_size > 5000
