"""The report in a real browser."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cachemark.analysis.report_view import build
from cachemark.analysis.run_history import HistoryNight
from cachemark.report.page import render as render_module
from cachemark.report.page.render import TABS, render
from report import report_sample as sample
from support.later import later

axe = later("axe_playwright_python.sync_playwright")

DEMO = Path(__file__).parents[2] / "reports" / "demo.html"
KEYS = tuple(key for key, _ in TABS)
DRAWN = ("leaderboard", "speed", "memory", "quality", "history")  # tabs with charts
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run in which much happened, with an earlier run before it."""
    nights = [HistoryNight(sample.RUN, sample.outcomes()), HistoryNight(sample.RUN, sample.mixed())]
    target = tmp_path_factory.mktemp("page") / "page.html"
    view = build(sample.RUN, sample.mixed(), sample.comparison(), sample.sprite, nights=nights)
    target.write_text(render(view), encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, or the reason why there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright here; `pip install playwright` gives one")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium here; `apt-get install chromium` gives one")
    with sync_api.sync_playwright() as play:
        chromium_browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield chromium_browser
        chromium_browser.close()


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Open]:
    """Opens that page, or another one, from disk; ``said`` collects what it says on the console and ``asked`` what it asks of a network."""
    contexts = []

    def opens(where: Path = file, tab: str = "", theme: str = "light", width: int = 1280) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
        context.set_default_timeout(8000)
        contexts.append(context)
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(f"{where.as_uri()}{'#' + tab if tab else ''}")
        return page

    yield opens
    for context in contexts:
        context.close()


def everywhere(page: Any) -> Iterator[str]:
    for key in KEYS:
        page.click(f"#tab-{key}")
        page.wait_for_selector(f"#{key}:not([hidden]):not(:has(script))")
        yield key


@pytest.mark.parametrize("which", ["sample", pytest.param("demo", marks=pytest.mark.slow)])
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


def test_a_page_of_many_cases_is_small_and_shows_the_same(opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its panels are compressed, and its pictures stored once."""
    case, texts, shown = f"c-{sample.full().case.key}", [], []
    view = build(sample.RUN, sample.outcomes(), None, sample.sprite)
    for many in (10, 100):
        monkeypatch.setattr(render_module, "MANY", many)
        texts.append(render(view))
        (file := tmp_path / f"{many}.html").write_text(texts[-1], encoding="utf-8")
        page = opened(file, tab=case)  # in a panel that is not there yet
        page.wait_for_selector(f"#{case}[open]")
        shown.append({key: page.inner_text(f"#{key}") for key in everywhere(page)})
        assert page.evaluate("Array.from(document.querySelectorAll('#quality img')).every((image) => image.naturalWidth > 0)")
        assert page.said == []
    assert texts[0].count("data:image") == len(set(re.findall(r"data:image[^\"]*", texts[0]))) > 3
    small, whole = (len(re.sub(r"data:image[^\"]*", "", text)) for text in texts)
    assert small < 0.6 * whole
    assert shown[0] == shown[1]


def test_a_hostile_page_runs_no_script(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "evil.html").write_text(sample.poisoned(sample.SCRIPTS + sample.BREAKERS), encoding="utf-8")
    page = opened(tmp_path / "evil.html")
    page.on("dialog", lambda dialog: page.said.append(dialog.message))
    for _ in everywhere(page):
        pass
    assert page.said == []  # an attempt would be reported here: the policy forbids it
    assert page.inner_text("#theme") == "Dark theme"


def test_tabs_are_walked_with_the_arrow_keys_and_opened_by_links(opened: Open) -> None:
    page = opened()
    page.focus("#tab-verdict")
    observed = []
    for press in ("ArrowRight", "ArrowRight", "End", "ArrowRight", "ArrowLeft", "Home"):
        page.keyboard.press(press)
        page.wait_for_timeout(20)
        observed.append(page.evaluate("document.activeElement.id.slice(4) + ' ' + document.querySelector('.panel:not([hidden])').id"))
    assert observed == [f"{key} {key}" for key in ("leaderboard", "speed", "cases", "verdict", "cases", "verdict")]
    assert page.evaluate("Array.from(document.querySelectorAll('[role=tab]')).filter((tab) => tab.tabIndex === 0).length") == 1
    linked = opened(tab="quality-m1")
    assert (linked.is_visible("#quality"), linked.is_hidden("#verdict")) == (True, True)
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


def test_headers_sort_best_first_then_worst_then_as_it_was_and_plain_tables_by_what_their_figures_mean(opened: Open) -> None:
    page, orders, names = opened(tab="leaderboard"), [], []
    for _ in range(4):
        orders.append(page.get_attribute("th[data-k=kl]", "aria-sort"))
        names.append(page.evaluate("""
            Array.from(document.querySelectorAll("tbody.candidates tr")).filter((row) => row.offsetHeight).map((row) =>
            row.querySelector("th bdi").textContent + " " + row.querySelector("td[data-k=budget]").firstChild.textContent)"""))
        page.click("th[data-k=kl] button")
    first, up, down, last = names
    assert (orders, first) == (["none", "ascending", "descending", "none"], last)
    assert (up[0], down[0]) == ("LineAR 1/2", "window 1/4")
    assert up[-2:] == down[-2:] == ["H2O 1/4", "R-KV 1/4"]  # without values: last either way
    assert up[:-2] == down[:-2][::-1]
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
    assert light == "rgb(255, 255, 255)" != dark
    for each, other in ((page, dark), (night, light)):
        each.click("#theme")
        assert look(each) == other
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


@pytest.mark.parametrize("width", [360, *(pytest.param(width, marks=pytest.mark.slow) for width in (768, 1280))])
def test_no_tab_is_wider_than_the_screen(opened: Open, width: int) -> None:
    page = opened(width=width)
    for key in everywhere(page):
        assert page.evaluate("document.documentElement.scrollWidth") <= width, key


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened: Open, theme: str) -> None:
    """Nothing that keeps someone from using the page."""
    page = opened(theme=theme)
    for where in (*(f"#{key}" for key in everywhere(page)), "header, #tabs"):
        items = axe.Axe().run(page, context=where).response["violations"]
        assert not [(item["id"], item["nodes"][0]["html"][:200]) for item in items if item["impact"] in ("serious", "critical")], where
