"""The page of a comparison in pairs: a row for each case, what the pairs decided, and how to hold it again."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import report_sample as sample

from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.gate.nights import AA
from cachemark.store.db import Store
from cachemark.store.rows import Verdict
from cachemark.workflows.report import by_case, report

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


def page(folder: Path, state: str = "finished") -> str:
    """The text of the page of a comparison that found the method slower."""
    with Store.open(folder / "s.sqlite") as store:
        details = {"plan": {"file": "my plan.toml"}, "sides": ["main~1", "main"], "alike": "same", "configurations": 1,
                  "code": [{"commit": "a" * 40}, {"commit": "b" * 40}]}
        run = store.begin_run("compare/demo", details, sample.ENVIRONMENT, sample.RUN.code)
        for outcome in processes():
            store.save(run, outcome)
        if state == "finished":
            rows = [Verdict(LINEAR.case.key, LINEAR.case.title, "latency", "regressed", "+98 % (+97 % to +99 %)", 1.02, 2.02, 1.98,
                            absolute=True)]
            store.save_verdicts(run, rows)
        store.finish_run(run, state)
    return text_of(folder)


def text_of(folder: Path, register: Path | None = None) -> str:
    html = report(folder / "s.sqlite", folder / "r.html", run=1, register=register).path.read_text(encoding="utf-8")
    return " ".join(unescape(re.sub(r"(?s)<(script|style|svg).*?</\1>|<[^>]+>", " ", html)).split())


def test_each_case_is_one_row_of_the_second_side_with_a_repeat_for_each_process() -> None:
    full, linear = by_case(processes())
    assert [outcome.case.key for outcome in (full, linear)] == [sample.full().case.key, LINEAR.case.key]
    assert linear.samples["latency"] == pytest.approx([2.0 + k / 100 for k in range(PAIRS)])
    assert linear.samples["psnr"] == LINEAR.samples["psnr"]
    assert linear.facts.pair is None


def test_a_failure_is_shown_where_no_process_ran() -> None:
    failed = sample.failed(LINEAR, Status.OOM, "out of memory")
    assert by_case([process(failed, k, "after", 1.0) for k in range(2)])[0].status is Status.OOM
    mixed = by_case([process(failed, 0, "after", 1.0), process(LINEAR, 1, "after", 2.0)])
    assert [(row.status, row.samples["latency"]) for row in mixed] == [(Status.OK, [2.0])]


def test_the_page_says_what_the_pairs_decided(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "Regressed: in pairs 1 regressed, 0 not resolved." in text
    assert "LineAR 1/4: Latency regressed, from 1.02 s to 2.02 s, 98.0 % more." in text
    assert text.count("LineAR not ranked 1/4") == 1


def test_a_comparison_that_broke_off_has_no_verdict(tmp_path: Path) -> None:
    text = page(tmp_path, "interrupted")
    assert "This comparison did not finish." in text
    assert "cachemark baseline save" not in text
