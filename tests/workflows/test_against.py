"""The report of one run compared with another run of the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cachemark.core.errors import NothingMeasured, Unsupported
from cachemark.core.result import Outcome
from cachemark.gate import nights as ledger
from cachemark.store.db import Store
from cachemark.workflows import report as report_workflow
from cachemark.workflows.check import judge_against
from support.stages import Stage, call


def again(store: Path, change: Callable[[Outcome], Outcome], plan: str = "") -> int:
    """Store another run whose outcomes are those of the first with a ``change``."""
    with Store.open(store) as held:
        first = held.run(1)
        with held.new_run(plan or first.plan, dict(first.plan_json), first.environment, dict(first.code)) as run:
            for outcome in held.outcomes(1):
                held.save(run, change(outcome))
            return run


def changed(name: str, times: float) -> Callable[[Outcome], Outcome]:
    """One value of streaming multiplied."""
    def change(outcome: Outcome) -> Outcome:
        if outcome.case.method != "streaming":
            return outcome
        return replace(outcome, samples={**outcome.samples, name: [times * value for value in outcome.samples[name]]})

    return change


@pytest.fixture
def store(measured: Stage, tmp_path: Path) -> Path:
    return measured.copy(tmp_path / "copy").store


def verdicts(store: Path, run: int, other: int) -> dict[tuple[str, str], str]:
    with Store.open(store) as held:
        found, _ = judge_against(held, held.run(run), held.run(other))
    return {(row.label, row.metric): row.verdict for row in found.rows}


def test_what_is_exact_is_judged_and_a_time_never_is(store: Path) -> None:
    fat = again(store, changed("kv_allocated", 2.0))
    slow = again(store, changed("latency", 5.0))
    mine = {name: verdict for (label, name), verdict in verdicts(store, fat, 1).items() if "streaming" in label}
    assert mine["kv_allocated"] == "regressed"
    assert {name for name, verdict in mine.items() if verdict == "regressed"} == {"kv_allocated"}
    assert "regressed" not in verdicts(store, slow, 1).values(), "two runs saw the machine at two moments"
    back = {name: verdict for (label, name), verdict in verdicts(store, 1, fat).items() if "streaming" in label}
    assert back["kv_allocated"] == "improved"


def test_the_page_says_which_run_it_is_held_against(store: Path, tmp_path: Path) -> None:
    fat = again(store, changed("kv_allocated", 2.0))
    page = tmp_path / "r.html"
    assert call("report", page, "--store", store, "--run", fat, "--against", 1).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "Baseline run 1" in text
    assert "100.0 % more" in text
    bare = tmp_path / "bare.html"
    report_workflow.report(store, bare, run=fat)
    assert "100.0 % more" not in bare.read_text(encoding="utf-8"), "nothing is compared unless it is asked for"


def test_runs_of_two_plans_are_compared_as_far_as_they_share_cases(store: Path) -> None:
    other = again(store, lambda outcome: outcome, plan="another")
    assert "missing" not in verdicts(store, other, 1).values()
    none = again(store, lambda outcome: replace(outcome, case=replace(outcome.case, batch=outcome.case.batch + 1)))
    with pytest.raises(NothingMeasured, match="Run 1 and this run share no case"):
        verdicts(store, none, 1)


def test_a_run_is_not_held_against_itself_nor_against_a_comparison(store: Path) -> None:
    pairs = again(store, lambda outcome: outcome, plan=f"{ledger.COMPARISON}dots")
    with pytest.raises(Unsupported, match="Run 1 does not differ from itself"):
        verdicts(store, 1, 1)
    with pytest.raises(Unsupported, match="two sides of its own"):
        verdicts(store, 1, pairs)


@pytest.mark.parametrize(("more", "code", "says"), [
    (("--against", 1, "--baseline", "b.json"), 2, "drop --baseline and --site"), (("--against", 1, "--site", "s"), 2, "drop --baseline"),
    (("--against", 99), 2, "99"), (("--against", 1), 2, "does not differ from itself"),
])  # fmt: skip
def test_the_command_refuses_what_makes_no_sense(more: tuple[object, ...], code: int, says: str, store: Path, tmp_path: Path) -> None:
    result = call("report", tmp_path / "r.html", "--store", store, "--run", 1, *more)
    assert result.exit_code == code, result.output
    assert says in result.output
    assert not (tmp_path / "r.html").exists()
