"""``cachemark run``: progress, the answer at its end, and exit codes without results."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import cachemark as cm
from cachemark.cli.measure import _mention_gpu
from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling
from cachemark.models.protocol import Request
from cachemark.plans.planned import Prepared
from cachemark.trial.executors import local
from cachemark.trial.measurement import Measurement, outcome_of
from cachemark.workflows import progress
from cachemark.workflows.session import Machine
from cachemark.workflows.time_left import TimeLeft
from support import stages, stub

ANSWER = "Keep the full cache. Image quality was not measured."


@pytest.mark.parametrize(("plan", "device", "said"), [
    ("linear-table4", "cpu", True), ("linear-table4", "cuda", False), ("demo", "cpu", False), ("mine.toml", "cpu", False)])
def test_a_plan_for_a_gpu_says_so_on_a_cpu(plan: str, device: str, said: bool, capsys: pytest.CaptureFixture[str]) -> None:
    _mention_gpu(plan, Machine(device=device))
    assert ("is a plan for a GPU" in capsys.readouterr().err) == said


def test_a_run_ends_with_the_answer_after_its_report(stage: stages.Stage, tmp_path: Path, no_child: None) -> None:
    page = tmp_path / "page.html"
    assert stage.run("--report", page).stdout.startswith(f"Run 2: 0 measured, 0 failed, 5 skipped.\nReport: {page}\ndot: {ANSWER}\n")
    assert json.loads(stage.run("--report", tmp_path / "two.html", "--json").stdout) == {
        "run": 3, "ran": 0, "skipped": 5, "report": str(tmp_path / "two.html"), "not_ok": [],
        "answers": [{"model": "dot", "answer": ANSWER, "method": "full", "budget": "1"}]}
    assert (tmp_path / "two.html").stat().st_size > 1000
    assert {model: answer.text for model, answer in cm.open(stage.store).answers.items()} == {"dot": ANSWER}


def test_each_case_is_a_line_and_a_long_one_more(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)
    full = Case("m", "random:0", (4, 4), "c", Sampling(), "full", role="baseline")
    cases = [Prepared(case, Request()) for case in (
        full, replace(full, method="rkv", budget="1/2", role="candidate"), replace(full, method="[/x]", batch=2, role="candidate"))]
    left = TimeLeft(cases, {planned.case.key: 60.0 * number for number, planned in enumerate(cases, 1)}.get)
    follower = progress.Follower()
    follower.planned(cases, left)
    for planned, latency, kept in zip(cases, (2.0, 1.0, 0.0), (4096.0, 1024.0, 0.0), strict=True):
        left.started(planned)
        follower.started(planned.case)
        left.advanced(planned, 1)
        follower.advanced(planned.case)
        outcome = Outcome(planned.case, Status.ERROR, log="::error::\x1b[1m\nlast")
        if latency:
            samples = {"latency": [latency] * 3, "kv_allocated": [kept], "color_consistency": [1.0, 0.5]}
            beside = Facts(full_beside=[2.0] * 3) if planned.case.method == "rkv" else Facts()
            outcome = Outcome(planned.case, Status.OK, samples, seconds=9.0, facts=beside)
        left.ended(outcome)
        follower.ended(outcome)
    assert re.sub(r" [1-9]\d? % done", " so much done", capsys.readouterr().err).splitlines() == [
        "3 cases: 0 already measured, 3 to run.",
        "    m full: so much done, about 6 min left",
        "[1/3] m full: ok, 9.0 s; 2.00 s a batch, color consistency 75.0 %; about 5 min left",
        "    m rkv 1/2: so much done, about 5 min left",
        "[2/3] m rkv 1/2: ok, 9.0 s; 1.00 s a batch, 2.00× the full cache's speed in turns, 75.0 % less KV, color consistency 75.0 %; "
        "about 3 min left",
        "    m [/x] 1: so much done, about 3 min left",
        "[3/3] m [/x] 1: error, 0.0 s",
        "    : :error:: [1m"]


def test_a_run_whose_full_cache_and_methods_timed_out_has_measured_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(planned: Prepared, _: object) -> Outcome:
        if planned.case.role in ("other_seeds", "other_batch"):
            return Outcome(planned.case, Status.OK, {"token_agreement": [1.0]})
        return outcome_of(planned, Measurement(Status.TIMEOUT, log="[/bold] no outcome\nwithin 30 s"))

    stub.answering(monkeypatch, answer)
    monkeypatch.setattr(local.Local, "rates", lambda *_: {})
    made = stages.stage(tmp_path / "stage")
    result = made.run()
    assert (result.exit_code, result.stdout) == (4, "Run 1: 2 measured, 3 failed, 0 skipped.\n")
    assert re.search(r"dot full: timeout, 0\.0 s\n    \[/bold\] no outcome", result.stderr)
    assert "[nothing-measured; " in result.stderr
    assert made.states() == ["finished"]
    assert made.run().exit_code == 4, "reused are reference rows alone"


def test_methods_are_measured_without_a_plan(tmp_path: Path) -> None:
    """A file stands for its methods; the plan that is saved has the same cases, and writing it measures nothing."""
    stage = stages.stage(tmp_path)
    words = ("measure", "dot", "--method", stage.plugin, "--method", "streaming", "--budget", "1/2", "--seeds", 4, "--batch", 2,
             "--weights", stage.weights, "--store", stage.store, "--threads", 1)
    stages.good(stages.call(*words, "--save-plan", tmp_path / "saved.toml"))
    assert not stage.store.exists()
    stages.good(stages.call(*words, "--report", tmp_path / "page.html"))
    assert {label for label, outcome in stage.outcomes().items() if outcome.ok} >= {"full", "calm 1/2", "streaming 1/2"}
    explained = stages.good(stages.call("explain", tmp_path / "saved.toml", "--store", stage.store, "--threads", 1))
    assert explained.count("done: same case") == 5, explained
