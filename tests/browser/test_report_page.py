"""The report in a real browser: it complains about nothing, fits a phone, sorts, and runs no script but its own."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import report_sample as sample

from cachemark.report.render import render
from cachemark.report.view import build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; `apt-get install chromium` gives one")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=4000")
# One visit does everything a reader can do, because starting a browser takes seconds. The theme goes first.
VISIT = """
(() => {
  const one = (selector) => document.querySelector(selector), seen = {};
  const look = () => getComputedStyle(document.body).backgroundColor;
  const names = () => Array.from(document.querySelectorAll("tbody.arms tr")).map((row) =>
    row.querySelector("th bdi").textContent + " " + row.querySelector("td[data-k=budget]").firstChild.textContent);

  seen.theme = [look()];
  one("#theme").click();
  seen.theme.push(look(), one("#theme").textContent);

  const head = one("th[data-k=kl]"), knob = head.querySelector("button");
  seen.sorted = [];
  for (let k = 0; k < 4; k++) { seen.sorted.push([head.getAttribute("aria-sort"), names()]); knob.click(); }
  knob.focus();
  seen.knob = [document.activeElement === knob, knob.tagName, knob.tabIndex];

  one(".key").click();
  const marks = Array.from(one(".charts").querySelectorAll("svg [data-series]"));
  seen.legend = [marks.length, marks.filter((mark) => mark.classList.contains("lit")).length];
  marks[0].dispatchEvent(new PointerEvent("pointerenter", { clientX: 50, clientY: 50 }));
  seen.tip = one("#tip").hidden ? null : one("#tip b").textContent;

  one(".hits button").click();
  seen.zoom = [one("#zoom").open, one("#zoom-title").textContent];
  one('[data-step="-1"]').click();
  seen.zoom.push(one("#zoom-title").textContent, one("#zoom img").src === one(".frame img").src);

  seen.fetched = performance.getEntriesByType("resource").map((entry) => entry.name.slice(0, 40));
  document.documentElement.dataset.seen = JSON.stringify(seen);
})();
"""


def browse(tmp_path: Path, page: str, *flags: str) -> tuple[str, list[str]]:
    """The document after its scripts ran, and everything it said on the console."""
    assert CHROMIUM is not None
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    done = subprocess.run([CHROMIUM, *FLAGS, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri()],
                          capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def without_policy(page: str, script: str) -> str:
    """A copy of the page in which a script of the test may run too."""
    loose = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    return loose.replace("</body>", f"<script>{script}</script></body>")


def visit(tmp_path: Path, page: str, *flags: str) -> dict[str, Any]:
    """What ``VISIT`` saw."""
    dom, _ = browse(tmp_path, without_policy(page, VISIT), *flags)
    found = re.search(r'data-seen="([^"]*)"', dom)
    assert found, "the visit ended early"
    return json.loads(html.unescape(found[1]))


@pytest.fixture(scope="module")
def page() -> str:
    return render(build(sample.RUN, sample.mixed(), sample.comparison(), sample.artifact))


def test_the_page_says_nothing_on_the_console(tmp_path: Path, page: str) -> None:
    dom, said = browse(tmp_path, page)
    assert said == []
    assert "Dark theme</button>" in dom
    assert dom.count('aria-sort="none"') == 12


def test_a_console_error_would_be_seen(tmp_path: Path) -> None:
    assert "planted" in browse(tmp_path, "<!DOCTYPE html><script>console.error('planted')</script>")[1][0]


def test_a_hostile_page_runs_no_script(tmp_path: Path) -> None:
    dom, said = browse(tmp_path, sample.poisoned(sample.SCRIPTS + sample.BREAKERS))
    assert said == []  # an attempt would be reported here: the policy forbids it
    assert "Dark theme</button>" in dom


def test_a_script_that_slipped_in_would_be_stopped(tmp_path: Path, page: str) -> None:
    planted = page.replace("</main>", "<script>document.documentElement.dataset.planted = 1</script></main>")
    dom, said = browse(tmp_path, planted)
    assert "data-planted" not in dom
    assert "Content Security Policy" in said[0]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, page: str) -> dict[str, Any]:
    return visit(tmp_path_factory.mktemp("visit"), page)


def test_headers_sort_best_first_then_worst_then_as_it_was(seen: dict[str, Any]) -> None:
    (none, first), (best, up), (worst, down), (again, last) = seen["sorted"]
    assert (none, best, worst, again) == ("none", "ascending", "descending", "none")
    assert first == last
    assert up[0] == "linear 1/2"
    assert down[0] == "window 1/4"
    assert up[-2:] == down[-2:] == ["h2o 1/4", "rkv 1/4"]  # without figures: last either way
    assert up[:-2] == down[:-2][::-1]


def test_a_header_can_be_reached_with_the_keyboard(seen: dict[str, Any]) -> None:
    assert seen["knob"] == [True, "BUTTON", 0]


def test_the_theme_follows_the_system_and_then_the_reader(tmp_path: Path, page: str, seen: dict[str, Any]) -> None:
    light, dark, offer = seen["theme"]
    assert (light, offer) == ("rgb(255, 255, 255)", "Light theme")
    assert dark != light
    assert visit(tmp_path, page, "--blink-settings=preferredColorScheme=0")["theme"] == [dark, light, "Dark theme"]


def test_a_legend_entry_lights_its_method_and_a_mark_names_itself(seen: dict[str, Any]) -> None:
    marks, lit = seen["legend"]
    assert 0 < lit < marks
    assert seen["tip"] in {"full", *(f"{method} {budget}" for method in sample.METHODS for budget in sample.BUDGETS)}


def test_a_seed_is_enlarged_beside_the_full_cache(seen: dict[str, Any]) -> None:
    assert seen["zoom"] == [True, "worst seed 41, class disc", "fixed seed 3, class square", True]


def test_nothing_was_fetched(seen: dict[str, Any]) -> None:
    assert [name for name in seen["fetched"] if not name.startswith("data:")] == []


def test_the_page_is_no_wider_than_the_screen(tmp_path: Path, page: str) -> None:
    """In frames, because a window cannot be as narrow as a phone."""
    inner = without_policy(page, "parent.postMessage([innerWidth, document.documentElement.scrollWidth], '*')")
    (tmp_path / "inner.html").write_text(inner, encoding="utf-8")
    widths = (390, 768, 1280)
    frames = "".join(f'<iframe src="inner.html" style="width:{width}px;height:800px;border:0"></iframe>' for width in widths)
    hear = "onmessage = (e) => { document.documentElement.setAttribute(`data-w${e.data[0]}`, e.data[1]); }"
    dom, _ = browse(tmp_path, f"<!DOCTYPE html><script>{hear}</script>{frames}")
    needed = {int(width): int(content) for width, content in re.findall(r'data-w(\d+)="(\d+)"', dom)}
    assert set(needed) == set(widths)
    assert all(content <= width for width, content in needed.items()), needed
