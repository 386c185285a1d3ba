"""The rendered page: its tables word by word, its size, and that it asks nobody for anything."""

import base64
import hashlib
import html as markup
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import report_sample as sample
import test_report_charts
import test_report_limits
import test_report_papers
import test_report_quality
from page import Page

from cachemark.analysis.report_view import ReportView, build
from cachemark.core.facts import Facts
from cachemark.core.formatting import display_name
from cachemark.core.result import Outcome, Status
from cachemark.gate.nights import AA
from cachemark.report.page import site
from cachemark.report.page.render import TABS, render
from cachemark.stats import intervals
from cachemark.store.db import Store
from cachemark.store.rows import Verdict
from cachemark.workflows.report import by_case, report

GOLD = Path(__file__).parent / "gold"
REGOLD = "CACHEMARK_REGOLD"


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(build(sample.RUN, sample.mixed(), sample.comparison(), sample.sprite)))


SCENES: dict[str, Callable[[], ReportView]] = {
    "masked": lambda: build(sample.RUN, test_report_quality.masked_outcomes()),
    "sets": lambda: build(sample.RUN, test_report_quality.outcomes()),
    "limits": lambda: build(sample.RUN, [test_report_limits.full(), test_report_limits.candidate(
        slope={"slope": 1e-9, "bytes_per_s": 3e9, "intercept": 0.004, "r2": 0.99})]),
    "papers": lambda: build(sample.RUN, [test_report_papers.FULL, test_report_papers.QUARTER]),
    "nights": lambda: build(sample.RUN, test_report_charts.night(3).outcomes, nights=[test_report_charts.night(k) for k in (1, 2, 3)])}


@pytest.mark.parametrize("name", ["page", *SCENES])
def test_every_text_is_as_in_the_gold_file(name: str, page: Page) -> None:
    """It is written by our own code: it shows changes and proves nothing. Of other runs the lines of ``page`` are left out."""
    file, known = GOLD / f"{name}.txt", set() if name == "page" else set(page.written().splitlines())
    written = page.written() if name == "page" else Page(render(SCENES[name]())).written()
    lines = re.sub(r"\b[0-9a-f]{16}\b", "<key>", written).splitlines()  # keys name the vocabulary of today
    text = "\n".join(line for line in lines if line not in known) + "\n"
    if os.environ.get(REGOLD):
        file.write_text(text, encoding="utf-8")
    hint = f"if the change is meant: {REGOLD}=1 pytest tests/report/{Path(__file__).name}, then read the diff of {file.name}"
    assert text == file.read_text(encoding="utf-8"), hint


def test_the_verdict_of_the_gate_is_on_top_and_nothing_contradicts_it() -> None:
    """The changes are those of the baseline, and pairs can regress without one."""
    view = build(sample.RUN, sample.mixed(), sample.comparison(), sample.sprite)
    calm, worse = (render(replace(view, changes=(), conclusion=replace(view.conclusion, tone=tone))) for tone in ("good", "bad"))
    assert worse.index("Regressed: 2 regressed") < worse.index('class="answer"')
    assert ("Nothing regressed" in calm, "Nothing regressed" in worse) == (True, False)


def test_the_page_asks_nobody_and_makes_sense_without_its_script(page: Page) -> None:
    for element in page.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href", "formaction"):
            assert element.attrs.get(name, "#").startswith(("#", "data:")), element
    styles = [page.find("style").text, *(element.attrs.get("style", "") for element in page.elements)]
    assert not [style for style in styles if "url(" in style or "@import" in style]
    policy = page.find("meta", http_equiv="Content-Security-Policy").attrs["content"]
    (script,) = page.all("script")
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert [e.tag for e in page.elements if e.tag == "style" or "http-equiv" in e.attrs][:2] == ["meta", "style"]
    assert (page.find("button", id_="theme").attrs.get("hidden"), len(page.all("svg"))) == ("", 8)
    assert [e.attrs["id"] for e in page.all("section") if e.attrs.get("class") == "panel"] == [key for key, _ in TABS]
    assert not [e for e in page.all("section") if "hidden" in e.attrs]
    for chart in (e for e in page.all("figure") if e.attrs.get("class") == "chart"):
        assert any(e.tag == "details" for e in chart.children)


def test_random_weights_have_no_figures_of_images() -> None:
    page = Page(render(build(sample.RUN, sample.random_weights(), artifact=sample.sprite)))
    ends = [row[-1] for row in page.tables()[0][2:] if len(row) > 1 and row[1].split()[0] in map(display_name, sample.METHODS)]
    assert set(ends) == {"not evaluated: Weights are random: images are noise."}
    assert not [e for e in page.all("img") if "src" in e.attrs]
    assert len(page.all("svg")) == 3  # speed and bytes mean something all the same


def test_two_models_have_two_chapters_and_prompts_stand_under_their_images() -> None:
    other = [replace(o, case=replace(o.case, model="tiny-var")) for o in (sample.full(), sample.candidate("linear", "1/4"))]
    page = Page(render(build(sample.RUN, [sample.full(), sample.candidate("random", "1/2"), *other])))
    for tab in ("leaderboard", "speed", "memory", "quality"):
        assert [e.attrs["id"] for e in page.all("h3") if e.attrs.get("id", "").startswith(tab)] == [f"{tab}-m1", f"{tab}-m2"]
    ids = [e.attrs["id"] for e in page.elements if "id" in e.attrs]
    assert len(ids) == len(set(ids))
    texts = [f"two <b>red</b> stars above stripes, number {k}" for k in range(12)]
    prompted = replace(LINEAR, facts=LINEAR.facts | Facts.from_json({"grid_classes": list(range(12)), "grid_prompts": texts}))
    html = render(build(sample.RUN, [sample.full(), prompted], artifact=sample.sprite))
    assert all(f'<span class="prompt"><bdi>{markup.escape(text)}</bdi></span>' in html for text in texts)


PEAK = """
import re, sys
from pathlib import Path
from cachemark.cli import main
main(sys.argv[1:], standalone_mode=False)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not state the peak memory of a process")
def test_a_report_takes_at_most_350_mb(tmp_path: Path) -> None:
    """Of 15 cases with images and as many seeds as are resampled at once."""
    with Store.open(tmp_path / "s.sqlite") as store:
        run = store.begin_run("demo", {}, sample.ENVIRONMENT, sample.RUN.code)
        for outcome in sample.outcomes():
            samples = {name: [*values] * (intervals._KEPT // len(values) if len(values) == sample.SEEDS else 1)
                       for name, values in outcome.samples.items()}
            images = {name: sample.artifact(file) for name, file in outcome.artifacts.items()}
            store.save(run, replace(outcome, samples=samples, artifacts={}), images)
        store.finish_run(run, "finished")
    command = [sys.executable, "-c", PEAK, "report", str(tmp_path / "page.html"), "--store", str(tmp_path / "s.sqlite")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "data:image" in (tmp_path / "page.html").read_text()
    assert int(done.stdout.split()[-1]) * 1024 <= 350e6


def test_a_site_lists_runs_with_their_verdicts_and_removes_its_own_pages_only(tmp_path: Path) -> None:
    runs = replace(sample.RUN, id=9), replace(sample.RUN, id=8, state="interrupted")
    page = Page(site.index([site.listed(run.id, build(run, sample.mixed(), sample.comparison())) for run in runs]))
    first, second = (" ".join(row.text.split()) for row in page.all("tr")[1:])
    assert ("demo 9" in first, "Regressed" in first, "interrupted" in second) == (True, True, True)
    assert [e.attrs["href"] for e in page.all("a")] == ["runs/run-9.html", "runs/run-8.html"]
    assert page.all("script") == []
    assert "script-src 'none'" in page.find("meta", http_equiv="Content-Security-Policy").attrs["content"]
    assert "no baseline" in site.index([site.listed(1, build(sample.RUN, sample.outcomes()))])
    assert "No run is recent enough" in site.index([])
    page = site.index([])
    (tmp_path / site.FOLDER).mkdir()
    for name, text in {"run-1.html": page, "run-2.html": page, "run-3.html": "notes", "mine.html": page}.items():
        (tmp_path / site.FOLDER / name).write_text(text)
    assert site.prune(tmp_path, [2]) == 1
    assert sorted(p.name for p in (tmp_path / site.FOLDER).iterdir()) == ["mine.html", "run-2.html", "run-3.html"]


PAIRS = 5
LINEAR = sample.candidate("linear", "1/4")


def process(outcome: Outcome, number: int, side: str, seconds: float, what: str = "times", config: str = "") -> Outcome:
    pair = {"run": 1, "configuration": config or outcome.case.title, "number": number, "side": side, "what": what}
    timed = {"latency": [0.9 * seconds, seconds, 3 * seconds]} if outcome.ok else {}
    return replace(outcome, artifacts={}, samples={**outcome.samples, **timed}, facts=outcome.facts | Facts.from_json({"pair": pair}))


def processes() -> list[Outcome]:
    """Pairs of the full cache and a method, whose second side takes 2 s instead of 1 s, and of A/A tests."""
    kinds = ((sample.full(), ""), (LINEAR, ""), (LINEAR, f"{AA}linear"))
    return [process(outcome, k, side, seconds + k / 100, config=config)
            for k in range(PAIRS) for outcome, config in kinds for side, seconds in (("before", 1.0), ("after", 2.0))]


def paired_page(folder: Path, state: str = "finished") -> str:
    """The text of the page of a comparison that found the method slower."""
    folder.mkdir()
    details = {"plan": {"file": "my plan.toml"}, "sides": ["main~1", "main"], "alike": "same", "configurations": 1,
               "code": [{"commit": "a" * 40}, {"commit": "b" * 40}]}
    with Store.open(folder / "s.sqlite") as store:
        run = store.begin_run("compare/demo", details, sample.ENVIRONMENT, sample.RUN.code)
        for outcome in processes():
            store.save(run, outcome)
        if state == "finished":
            words = LINEAR.case.key, LINEAR.case.title, "latency", "regressed", "+98 % (+97 % to +99 %)"
            store.save_verdicts(run, [Verdict(*words, 1.02, 2.02, 1.98, absolute=True)])
        store.finish_run(run, state)
    html = report(folder / "s.sqlite", folder / "r.html", run=1).path.read_text(encoding="utf-8")
    return " ".join(markup.unescape(re.sub(r"(?s)<(script|style|svg).*?</\1>|<[^>]+>", " ", html)).split())


def test_each_case_is_one_row_of_the_second_side_and_a_failure_is_shown_where_no_process_ran() -> None:
    full, linear = by_case(processes())
    assert [outcome.case.key for outcome in (full, linear)] == [sample.full().case.key, LINEAR.case.key]
    assert linear.samples["latency"] == pytest.approx([2.0 + k / 100 for k in range(PAIRS)])
    assert linear.samples["psnr"] == LINEAR.samples["psnr"]
    assert linear.facts.pair is None
    failed = sample.failed(LINEAR, Status.OOM, "out of memory")
    assert by_case([process(failed, k, "after", 1.0) for k in range(2)])[0].status is Status.OOM
    (row,) = by_case([process(failed, 0, "after", 1.0), process(LINEAR, 1, "after", 2.0)])
    assert (row.status, row.samples["latency"]) == (Status.OK, [2.0])


def test_the_page_says_what_the_pairs_decided_and_a_comparison_that_broke_off_nothing(tmp_path: Path) -> None:
    text = paired_page(tmp_path / "whole")
    assert "Regressed: in pairs 1 regressed, 0 not resolved." in text
    assert "LineAR 1/4: Latency regressed, from 1.02 s to 2.02 s, 98.0 % more." in text
    assert text.count("LineAR not ranked 1/4") == 1
    text = paired_page(tmp_path / "half", "interrupted")
    assert ("This comparison did not finish." in text, "cachemark baseline save" in text) == (True, False)
