"""The rendered page: its tables word by word, its charts, its size, and that it asks nobody for anything."""

import base64
import hashlib
import html as markup
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import report_sample as sample
import test_report_limits
import test_report_quality
from page import Page

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.report_view import ReportView, build
from cachemark.analysis.run_history import HistoryNight, run_history
from cachemark.core.facts import Facts
from cachemark.core.formatting import display_name
from cachemark.core.result import Outcome, Status
from cachemark.gate.nights import AA
from cachemark.report.charts.chart import Chart, signs_of
from cachemark.report.charts.lines import history
from cachemark.report.page import site
from cachemark.report.page.render import TABS, chart_set, render
from cachemark.stats import intervals
from cachemark.store.db import Store
from cachemark.store.rows import Verdict
from cachemark.workflows.report import by_case, report

GOLD = Path(__file__).parent / "gold"
REGOLD = "CACHEMARK_REGOLD"
PAIRS = 5
LINEAR = sample.candidate("linear", "1/4")
WOBBLE = [1 + 0.01 * ((7 * k) % 5 - 2) for k in range(40)]  # neighbours do not resemble each other
PEAK = """
import re, sys
from pathlib import Path
from cachemark.cli import main
main(sys.argv[1:], standalone_mode=False)
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(build(sample.RUN, sample.mixed(), sample.comparison(), sample.sprite)))


SCENES: dict[str, Callable[[], ReportView]] = {
    "masked": lambda: build(sample.RUN, test_report_quality.masked_outcomes()),
    "sets": lambda: build(sample.RUN, test_report_quality.outcomes()),
    "limits": lambda: build(sample.RUN, [test_report_limits.full(), test_report_limits.candidate(
        slope={"slope": 1e-9, "bytes_per_s": 3e9, "intercept": 0.004, "r2": 0.99})]),
    "papers": lambda: build(sample.RUN, [test_report_limits.FULL, test_report_limits.QUARTER]),
    "nights": lambda: build(sample.RUN, night(3).outcomes, nights=[night(k) for k in (1, 2, 3)])}


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
    rows = [[" ".join(cell.text.split()) for cell in row.children] for row in page.all("tr")]
    names = {display_name(name) for name in sample.METHODS}
    ends = {row[-1] for row in rows if len(row) > 1 and row[0] in ("", "–") and names & {*row[1].split()[:1]}}
    assert ends == {"not evaluated: Weights are random: images are noise."}
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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not state the peak memory of a process")
def test_a_report_takes_at_most_350_mb(tmp_path: Path) -> None:
    """Of 15 cases with images and as many seeds as are resampled at once."""
    with Store.open(tmp_path / "s.sqlite") as store:
        run = store.begin_run("demo", {}, sample.ENVIRONMENT, sample.RUN.code)
        for outcome in sample.outcomes():
            samples = {name: [*values] * (intervals._KEPT // len(values) if len(values) == sample.SEEDS else 1)
                       for name, values in outcome.samples.items()}
            images = {name: sample.sprite(file) for name, file in outcome.artifacts.items()}
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
    assert ([e.attrs["href"] for e in page.all("a")], page.all("script")) == (["runs/run-9.html", "runs/run-8.html"], [])
    assert "script-src 'none'" in page.find("meta", http_equiv="Content-Security-Policy").attrs["content"]
    assert "no baseline" in site.index([site.listed(1, build(sample.RUN, sample.outcomes()))])
    assert "No run is recent enough" in site.index([])
    page = site.index([])
    (tmp_path / site.FOLDER).mkdir()
    for name, text in {"run-1.html": page, "run-2.html": page, "run-3.html": "notes", "mine.html": page}.items():
        (tmp_path / site.FOLDER / name).write_text(text)
    assert site.prune(tmp_path, [2]) == 1
    assert sorted(p.name for p in (tmp_path / site.FOLDER).iterdir()) == ["mine.html", "run-2.html", "run-3.html"]


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


def test_bytes_throughput_and_memory_stand_at_their_places_and_equal_figures_are_no_chart() -> None:
    """A scale's tokens come all at once: what is held at 274 of 530 tokens is not what is held after a quarter."""
    recorded = {"live_bytes": {"tokens": [105, 274, 530], "live": [1024.0 * 105, 1024.0 * 274, 1024.0 * 530]}}
    full = replace(sample.full(), facts=sample.full().facts | Facts.from_json(recorded))
    chart = next(chart for chart in chart_set(*case_groups([full])).charts if chart.title == "Keys and values over an image")
    assert chart.rows[0][1:5] == ("132 KiB", "265 KiB", "398 KiB", "530 KiB")
    full, candidate = sample.full(), sample.candidate("linear", "1/4")
    dead = sample.failed(at(full, 64, 1.0, 1.0), Status.OOM, "no room")
    parts = case_groups([at(full, 4, 2.0, 2.0**20), at(candidate, 4, 1.0, 2.0**19), at(full, 16, 4.0, 2.0**22),
                         at(candidate, 16, 2.0, 2.0**21), dead, at(candidate, 64, 4.0, 2.0**23)])
    first, *others = ({c.title: c for c in chart_set(part, parts).charts if "against batch" in c.title} for part in parts)
    assert others == [{}, {}]
    speed, memory = first["Images per second against batch"], first["Peak memory against batch"]
    assert speed.columns == ("Case", "Batch 4", "Batch 16", "Batch 64")
    assert speed.rows == (("full", "2", "4", "oom"), ("LineAR 1/4", "4", "8", "16"))
    assert memory.rows[1] == ("LineAR 1/4", "512 KiB", "2.00 MiB", "8.00 MiB")
    assert (speed.tab, memory.tab) == ("speed", "memory")
    full, one, two = sample.full(), *list(sample.candidates().values())[:2]
    score = full.samples["color_consistency"]
    few = [*(value - 0.5 * (seed < 3) for seed, value in enumerate(score))]
    for last, where in ((score, "in any image"), (few, f"in at least {100 * (1 - 3 / len(score)):.1f} % of the images of each method")):
        changed = [replace(each, samples={**each.samples, "color_consistency": own}) for each, own in ((one, score), (two, last))]
        (chart,) = (chart for chart in chart_set(*case_groups([full, *changed])).charts if "paired difference" in chart.title)
        assert (chart.plot, chart.empty) == (None, f"No difference {where}.")


def at(outcome: Outcome, batch: int, seconds: float, peak: float) -> Outcome:
    return sample.measured(replace(outcome, case=replace(outcome.case, batch=batch)), latency=[seconds], peak_memory=[peak])


def night(number: int, day: float = 1.0, method: float = 1.0, fingerprint: str = "a") -> HistoryNight:
    """A run in which the machine was ``day`` times and the method ``method`` times as slow."""
    run = replace(sample.RUN, id=number, environment=replace(sample.ENVIRONMENT, fingerprint=fingerprint))
    both = ((sample.full(), day), (sample.candidate("linear", "1/4"), day * method))
    return HistoryNight(run, [sample.measured(o, latency=[factor * value for value in o.samples["latency"]]) for o, factor in both])


def drawn(*nights: HistoryNight) -> list[Chart]:
    group = case_groups(nights[-1].outcomes)[0]
    return list(history(run_history(group, nights), signs_of(group)))


def test_a_history_cancels_slower_days_and_marks_new_environments() -> None:
    relative, own = drawn(night(1), night(2, day=1.4), night(3, method=1.5))
    ((label, first, second, third),) = relative.rows
    assert (label, first, own.rows[0][1] != own.rows[0][2]) == ("LineAR 1/4", second, True)
    assert float(third[:-1]) > 1.4 * float(first[:-1])
    runs = [night(1), night(2)], [night(1), night(2, fingerprint="b"), night(3, fingerprint="b"), night(4)]
    assert [drawn(*nights)[0].svg.count('stroke-dasharray="2 3"') for nights in runs] == [0, 2]
    broken = HistoryNight(sample.RUN, [sample.full(), sample.failed(sample.candidate("linear", "1/4"), Status.OOM, "too large")])
    relative, _ = drawn(night(1), broken, night(3))
    assert (relative.rows[0][2], relative.svg.count("data-series")) == ("–", 2)


def followed(*costs: float, fingerprints: str = "a" * 100) -> list[str]:
    """What is told to have changed of a method that was so many times as slow, night by night."""
    nights = [night(k + 1, method=cost, fingerprint=mark) for k, (cost, mark) in enumerate(zip(costs, fingerprints, strict=False))]
    chart = drawn(*nights)[0]
    marks = [e for e in ET.fromstring(chart.svg).iter() if e.get("stroke-width") == "1.7"]
    notes = [note for note in chart.notes if "may not show" not in note]
    assert len(marks) == len(notes)
    return notes


def test_a_step_is_told_at_its_night_a_ramp_by_its_name_and_what_cannot_show() -> None:
    stepped = [w * (1.3 if k >= 20 else 1.0) for k, w in enumerate(WOBBLE)]
    (step,) = followed(*stepped)
    assert step.startswith("LineAR 1/4: latency relative to the full cache rose by 30.0 % at run 21 ·")
    assert followed(*WOBBLE) == []
    assert followed(*stepped, fingerprints="a" * 20 + "b" * 20) == [], "a change of the environment is none of the method"
    (ramp,) = followed(*(w * (1 + 0.4 * min(max(k - 10, 0), 20) / 20) for k, w in enumerate(WOBBLE)))
    assert " from run 1" in ramp
    wild = [night(k + 1, method=1 + 10 * (w - 1)) for k, w in enumerate(WOBBLE)]
    (text,) = drawn(*wild)[0].notes
    assert text.startswith("LineAR 1/4: its nights vary so much, or are so alike (correlation ")
    assert "may not show within 14 nights" in render(build(sample.RUN, wild[-1].outcomes, nights=wild))
