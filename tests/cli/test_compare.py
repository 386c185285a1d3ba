"""`compare` and `check` with stub measurements: output, stored rows and exit codes."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.errors import CachemarkError
from cachemark.core.result import Outcome, Status
from cachemark.plugins import loading as plugins
from cachemark.store.db import Store
from cachemark.trial.request import Task, TrialRequest
from cachemark.workflows.compare import Terms
from cachemark.workflows.results import open_run
from support.repositories import git
from support.stages import Stage, call, data, forgetting

from .quick_machine import CONFIG, SIDES, Machine, compare, number, rows


def test_two_cases_are_compared_and_everything_is_stored_to_be_opened_and_held_again(machine: Machine, stage: Stage) -> None:
    machine.speed = lambda planned, options: 1.3 if planned.case.method == "calm" else 1.0
    result = compare(stage, *SIDES)
    assert result.exit_code == 1
    assert result.stdout.startswith("Regressed: streaming 1/2 → calm 1/2, comparison 2.")
    assert f"regressed: {CONFIG}, latency: +29 %" in result.stdout
    with Store.open(stage.store, create=False, read_only=True) as store:
        run = store.run(2)
        assert (run.plan, run.state, run.plan_json["sides"], run.plan_json["configurations"]) == ("compare/dots", "finished",
                                                                                                  list(SIDES[1:]), 1)
        pair_facts = [o.facts.pair for o in store.outcomes(2)]
        assert {t.configuration for t in pair_facts} == {CONFIG, f"A/A {CONFIG}"}
        assert [t.side for t in pair_facts if t.configuration == CONFIG].count("after") == 12  # decided at the first look
        assert store.run().id == 1, "a comparison is not what reports and checks take for the newest run"
    assert machine.trials == 2 * (12 + 6)
    opened = open_run(stage.store, 2)
    assert (opened.record.plan, opened.plan.name) == ("compare/dots", "dots")
    with forgetting():
        plugins.load(stage.plugin)
        assert opened.compare(*SIDES[1:], terms=Terms(aa=False)).run_id == 3
    result = call("export", "junit", "--store", stage.store, "--run", 2)
    assert (result.exit_code, f"cachemark check --store {stage.store} --run 2" in result.stderr) == (2, True), "it has no JUnit form"


def test_tonights_bias_of_equal_code_raises_the_minimum_effect(machine: Machine, stage: Stage) -> None:
    """Equal sides run from two folders, so a bias by folder shows; from the third sample on it counts, in that night too."""
    deltas = []
    for bias in (1.3, 0.75, 1.25):
        machine.speed = lambda planned, options, bias=bias: bias if "cachemark-equal-" in options.code else 1.0
        deltas.append(json.loads(compare(stage, *SIDES, "--json").stdout)["delta"])
    assert (deltas[:2], deltas[2] > 0.3) == ([0.1, 0.1], True)


def test_what_time_does_not_allow_stays_open(machine: Machine, stage: Stage) -> None:
    assert compare(stage, *SIDES, "--minutes", 0).exit_code == 4
    machine.noise = 0.3
    code, verdicts = rows(stage, *SIDES, "--no-aa")
    assert (code, verdicts[CONFIG, "latency"]) == (3, "inconclusive")
    stated = call("check", "--store", stage.store, "--run", len(stage.states())).stdout
    (again,) = re.findall(r"^To decide: .*: cachemark (compare .*)$", stated, re.M)
    assert sorted(shlex.split(again)) == sorted(map(str, [
        "compare", stage.plan, *SIDES, "--plugin", stage.plugin, "--device", "cpu", "--threads", 1, "--store", stage.store]))


def test_two_cases_that_differ_in_more_than_the_method_are_refused_before_a_pair(machine: Machine, stage: Stage) -> None:
    block = stage.plan.read_text().partition("[[cells]]")[2].replace("streaming", "window")
    stage.plan.write_text(f'{stage.plan.read_text()}\n[[cells]]{block}\ndtype = "bfloat16"\n')
    result = compare(stage, "--cases", "streaming 1/2", "window 1/2")
    assert (result.exit_code, machine.trials) == (2, 0)
    assert "compute dtype: float32 and bfloat16" in result.stderr


def other_tokens(outcome: Outcome, options: TrialRequest) -> Outcome:
    return replace(outcome, output_hash=outcome.case.method)


def test_images_are_compared_seed_by_seed_where_tokens_differ(machine: Machine, stage: Stage) -> None:
    machine.changed = other_tokens
    machine.psnr = lambda planned, options: 25.0 if planned.case.method == "calm" else 30.0
    result = compare(stage, *SIDES, "--no-aa", "--samples", 40)
    assert result.exit_code == 1
    assert re.search(rf"regressed: {CONFIG}, psnr: (4\.9|5)[.\d]* dB worse on average \(.*40 seeds", result.stdout)
    assert [(p.case.method, p.case.samples, p.case.seeds) for p in machine.seen] in (
        [("streaming", 40, "s64"), ("calm", 40, "s64")], [("calm", 40, "s64"), ("streaming", 40, "s64")])
    with Store.open(stage.store, create=False, read_only=True) as store:
        images = [o for o in store.outcomes(2) if o.facts.pair.what == "images"]
        assert {o.facts.pair.side: len(o.samples["psnr"]) for o in images} == {"before": 40, "after": 40}
    machine.psnr = lambda planned, options: 30.0
    machine.seen.clear()
    code, verdicts = rows(stage, *SIDES, "--no-aa", "--samples", 300)
    assert (code, verdicts[CONFIG, "psnr"]) == (0, "equivalent")
    assert {(p.case.samples, p.case.seeds) for p in machine.seen} == {(300, "s2k")}


@pytest.mark.parametrize(("error", "state"), [(CachemarkError("The disk is full."), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_verdicts_on_times_outlive_images_that_break_off(error: BaseException, state: str, machine: Machine, stage: Stage) -> None:
    def breaks(outcome: Outcome, options: TrialRequest) -> Outcome:
        if options.task is Task.IMAGES:
            raise error
        return other_tokens(outcome, options)

    machine.changed = breaks
    ended = compare(stage, *SIDES, "--no-aa")
    assert ended.exit_code == (130 if state == "interrupted" else 2), "1 would mean regressed"
    assert ("Interrupted. The pairs measured so far are stored" in ended.stderr) == (state == "interrupted")
    with Store.open(stage.store, create=False, read_only=True) as store:
        assert store.run(2).state == state
        assert {(v.metric, v.verdict) for v in store.verdicts(2)} == {("latency", "equivalent"), ("kv_allocated", "not_compared")}
    machine.changed = other_tokens
    assert compare(stage, *SIDES, "--no-aa").exit_code == 0
    with Store.open(stage.store, create=False, read_only=True) as store:
        assert [v.metric for v in store.verdicts(3)] == ["latency", "kv_allocated", "psnr"], "each once"


def bisect(stage: Stage, repository: Path, *more: object) -> Any:
    return call("bisect", "calm 1/2", "--plan", stage.plan, "--plugin", stage.plugin, "--repository", repository, "--threads", 1,
                "--good", "HEAD~16", "--bad", "HEAD", *more)


def failing(*numbers: int) -> Callable[[Outcome, Any], Outcome]:
    return lambda o, options: Outcome(o.case, Status.ERROR, log="TypeError: clip") if number(options) in numbers else o


def worse(name: str, before: float, after: float, first: int) -> Callable[[Outcome, Any], Outcome]:
    return lambda o, options: replace(o, samples={**o.samples, name: [after if number(options) >= first else before]})


@pytest.mark.parametrize(("slow", "changed", "commit", "said"), [
    (99, worse("kv_allocated", 4096.0, 4505.0, 3), 3, "kv_allocated: must be equal"), (11, failing(12), 11, "latency: +2"),
    (11, worse("capture_seconds", 1.0, 3.0, 16), 11, "latency: +25 %"), (99, failing(*range(5, 17)), 5, ""),
    (11, failing(*range(8, 13)), None, "Skipped commits leave 6"),
    (99, worse("capture_seconds", 1.0, 3.0, 16), None, "The ends do not differ: within 10 %"),  # a wall time is never followed
    (99, failing(0), None, "The ends cannot be compared: the first side does not run, error then, ok now: TypeError: clip")])
def test_the_commit_that_made_a_case_worse_is_found_or_none_named(
    slow: int, changed: Callable[..., Outcome], commit: int | None, said: str, machine: Machine, stage: Stage, repository: Path) -> None:
    machine.speed = lambda planned, options: 1.25 if number(options) >= slow else 1.0
    machine.changed = changed
    if commit is None:
        result = bisect(stage, repository)
        assert (result.exit_code, said in result.stdout) == (3, True)
        return
    found = data(bisect(stage, repository, "--json"))
    assert git(repository, "log", "-1", "--format=%s", found["commit"]) == f"commit {commit}"
    assert found["effect"].startswith(said)
    assert machine.trials == 2 * found["pairs"]
    if "kv_allocated" in said:
        assert found["pairs"] <= 1 + 5, "bytes need one pair per commit"
        assert f"First bad commit: {found['commit'][:12]}\n" in bisect(stage, repository).stdout
