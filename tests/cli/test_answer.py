"""What a run prints at its end: which cache to use, in at most five lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cachemark as cm
from cachemark.analysis.answers import Answer
from cachemark.cli.measure import _print_answers
from support import stages
from support.stages import Stage

ANSWER = "Keep the full cache. Image quality was not measured."
LEGEND = "Speeds (×) are ratios to this run's full cache, with their intervals; `cachemark report` shows the images."


def test_a_run_ends_with_the_answer_behind_its_report(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages.no_child(monkeypatch)
    page = tmp_path / "page.html"
    assert stage.run("--report", page).stdout == (
        f"Run 2: 0 measured, 0 failed, 5 skipped.\nReport: {page}\ndot: {ANSWER}\n"
        + LEGEND.replace("cachemark report", f"cachemark report --store {stage.store}") + "\n")
    assert json.loads(stage.run("--report", tmp_path / "two.html", "--json").stdout) == {
        "run": 3, "ran": 0, "skipped": 5, "report": str(tmp_path / "two.html"), "not_ok": [],
        "answers": [{"model": "dot", "answer": ANSWER, "method": "full", "budget": "1"}],
    }  # fmt: skip
    assert (tmp_path / "two.html").stat().st_size > 1000
    assert {model: answer.text for model, answer in cm.open(stage.store).answers.items()} == {"dot": ANSWER}


def test_many_models_are_five_lines_without_commands_to_a_ci(capsys: pytest.CaptureFixture[str]) -> None:
    _print_answers({f"m{number}": Answer("::error::x") for number in range(7)})
    lines = capsys.readouterr().out.splitlines()
    assert lines == [*(f"m{number}: ::error::x" for number in range(4)), f"3 more models are in the report. {LEGEND}"]
