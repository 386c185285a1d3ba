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
from test_report_hostile import BREAKERS, SCRIPTS, poisoned

from cachemark.report.render import render
from cachemark.report.view import build

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; `apt-get install chromium` gives one")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=4000")
PROBE = """
(() => {
  const report = (value) => { document.documentElement.dataset.probe = JSON.stringify(value); };
  const one = (selector) => document.querySelector(selector);
  const names = () => Array.from(document.querySelectorAll("tbody.arms tr")).map((row) =>
    row.querySelector("th bdi").textContent + " " + row.querySelector("td[data-k=budget]").firstChild.textContent);
  %s
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


def probe(tmp_path: Path, page: str, script: str, *flags: str) -> Any:
    """What ``script`` reports from inside the page. The policy forbids any other script, so the copy goes without it."""
    loose = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    dom, _ = browse(tmp_path, loose.replace("</body>", f"<script>{PROBE % script}</script></body>"), *flags)
    found = re.search(r'data-probe="([^"]*)"', dom)
    assert found, "the probe did not report"
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
    for evil in (SCRIPTS, BREAKERS):
        dom, said = browse(tmp_path, poisoned(evil)[0])
        assert said == []  # an attempt would be reported here: the policy forbids it
        assert "Dark theme</button>" in dom


def test_a_script_that_slipped_in_would_be_stopped(tmp_path: Path, page: str) -> None:
    planted = page.replace("</main>", "<script>document.documentElement.dataset.planted = 1</script></main>")
    dom, said = browse(tmp_path, planted)
    assert "data-planted" not in dom
    assert "Content Security Policy" in said[0]


def test_headers_sort_best_first_then_worst_then_as_it_was(tmp_path: Path, page: str) -> None:
    found = probe(tmp_path, page, """
      const head = one("th[data-k=kl]"), seen = [];
      for (let k = 0; k < 4; k++) { seen.push([head.getAttribute("aria-sort"), names()]); head.querySelector("button").click(); }
      report(seen);""")
    (none, first), (best, up), (worst, down), (again, last) = found
    assert (none, best, worst, again) == ("none", "ascending", "descending", "none")
    assert first == last
    assert up[0] == "linear 1/2"
    assert down[0] == "window 1/4"
    assert up[-2:] == down[-2:] == ["h2o 1/4", "rkv 1/4"]  # without figures: last either way
    assert up[:-2] == down[:-2][::-1]


def test_sorting_works_from_the_keyboard(tmp_path: Path, page: str) -> None:
    found = probe(tmp_path, page, """
      const knob = one("th[data-k=speed_up] button");
      knob.focus();
      report([document.activeElement === knob, knob.tagName, knob.tabIndex]);""")
    assert found == [True, "BUTTON", 0]


def test_the_theme_follows_the_system_and_then_the_reader(tmp_path: Path, page: str) -> None:
    script = """
      const look = () => getComputedStyle(document.body).backgroundColor, seen = [look()];
      one("#theme").click(); seen.push(look(), one("#theme").textContent);
      report(seen);"""
    light, dark, offer = probe(tmp_path, page, script)
    assert (light, offer) == ("rgb(255, 255, 255)", "Light theme")
    assert dark != light
    assert probe(tmp_path, page, script, "--blink-settings=preferredColorScheme=0") == [dark, light, "Dark theme"]


def test_a_legend_entry_lights_its_method(tmp_path: Path, page: str) -> None:
    marks, lit, dark = probe(tmp_path, page, """
      const charts = one(".charts"), key = one(".key");
      key.click();
      const marks = Array.from(charts.querySelectorAll("svg [data-series]"));
      report([marks.length, marks.filter((m) => m.classList.contains("lit")).length, charts.classList.contains("chosen")]);""")
    assert dark
    assert 0 < lit < marks


def test_a_seed_is_enlarged_beside_the_full_cache(tmp_path: Path, page: str) -> None:
    open_, titles, source = probe(tmp_path, page, """
      one(".hits button").click();
      const titles = [one("#zoom-title").textContent];
      one('[data-step="-1"]').click();
      titles.push(one("#zoom-title").textContent);
      report([one("#zoom").open, titles, one("#zoom img").src === one(".frame img").src]);""")
    assert open_
    assert titles == ["worst seed 41, class disc", "fixed seed 3, class square"]
    assert source


def test_nothing_was_fetched(tmp_path: Path, page: str) -> None:
    entries = probe(tmp_path, page, 'report(performance.getEntriesByType("resource").map((e) => e.name.slice(0, 40)));')
    assert [name for name in entries if not name.startswith("data:")] == []


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_page_is_no_wider_than_the_screen(tmp_path: Path, page: str, width: int) -> None:
    """In a frame, because a window cannot be as narrow as a phone."""
    loose = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    said = "<script>parent.postMessage([innerWidth, document.documentElement.scrollWidth], '*')</script></body>"
    (tmp_path / "inner.html").write_text(loose.replace("</body>", said), encoding="utf-8")
    frame = (f"<!DOCTYPE html><script>onmessage = (e) => {{ document.documentElement.dataset.probe = e.data; }}</script>"
             f'<iframe src="inner.html" style="width:{width}px;height:800px;border:0"></iframe>')
    dom, _ = browse(tmp_path, frame)
    found = re.search(r'data-probe="(\d+),(\d+)"', dom)
    assert found
    assert int(found[1]) == width
    assert int(found[2]) <= width
