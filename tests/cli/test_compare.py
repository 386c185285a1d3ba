"""`compare` and `check` with stub measurements: output, stored rows and exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cachemark.core.errors import CachemarkError
from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.plugins import loading as plugins
from cachemark.store.db import Store
from cachemark.trial.request import Task, TrialRequest
from cachemark.workflows.compare import Terms
from cachemark.workflows.results import open_run
from support.repositories import git
from support.stages import Stage, call, forgetting

from .quick_machine import CONFIG, HERE, SIDES, Machine, compare, number, rows


def test_two_cases_are_compared_and_everything_is_stored(machine: Machine, stage: Stage) -> None:
    machine.speed = lambda planned, options: 1.3 if planned.case.method == "calm" else 1.0
    result = compare(stage, *SIDES)
    assert result.exit_code == 1
    assert result.stdout.startswith("Regressed: streaming 1/2 → calm 1/2, comparison 2.")
    assert f"regressed: {CONFIG}, latency: +29 %" in result.stdout
    assert "30 are needed to say it" in result.stdout
    assert "A/A tests raised an alarm in 0 of the last night (0 of 1 A/A test)" in result.stdout
    with Store.open(stage.store, create=False, read_only=True) as store:
        run = store.run(2)
        assert (run.plan, run.state, run.plan_json["sides"], run.plan_json["configurations"]) == ("compare/dots", "finished",
                                                                                                  list(SIDES[1:]), 1)
        told = [o.facts.pair for o in store.outcomes(2)]
        assert {t.configuration for t in told} == {CONFIG, f"A/A {CONFIG}"}
        assert [t.side for t in told if t.configuration == CONFIG].count("after") == 12  # decided at the first look
        assert store.run().id == 1, "a comparison is not what reports and checks take for the newest run"
    assert machine.trials == 2 * (12 + 6)


def test_an_opened_comparison_has_its_plan_and_is_held_again(machine: Machine, stage: Stage) -> None:
    assert compare(stage, *SIDES, "--no-aa").exit_code == 0
    held = open_run(stage.store, 2)
    assert (held.record.plan, held.plan.name) == ("compare/dots", "dots")
    with forgetting():
        plugins.load(stage.plugin)
        assert held.compare(*SIDES[1:], terms=Terms(aa=False)).run_id == 3
    result = call("export", "junit", "--store", stage.store, "--run", 2)
    assert result.exit_code == 2
    assert "Run 2 is a comparison, which has no JUnit form." in result.stderr
    assert f"cachemark check --store {stage.store} --run 2" in result.stderr


def test_equal_sides_pass_and_improvements_too(machine: Machine, stage: Stage) -> None:
    code, said = rows(stage, *SIDES, "--no-aa")
    assert (code, said[CONFIG, "latency"], machine.trials) == (0, "equivalent", 12)
    machine.speed = lambda planned, options: 0.7 if planned.case.method == "calm" else 1.0
    code, said = rows(stage, *SIDES, "--no-aa")
    assert (code, said[CONFIG, "latency"]) == (0, "improved")


def test_a_store_of_comparisons_alone_says_what_can_be_done_with_them(machine: Machine, stage: Stage) -> None:
    stage.store.unlink()
    assert compare(stage, *SIDES, "--no-aa").exit_code == 0
    for command in (["show"], ["report"], ["check"], ["baseline", "save"], ["export", "csv"], ["export", "asv", "asv"],
                    ["export", "grid", "grid.png"], ["export", "github"], ["baseline", "commit"]):
        result = call(*command, "--store", stage.store)
        assert (result.exit_code, result.stdout) == (4, ""), command
        assert "holds 1 comparison and no run of a plan. The newest is 1, of compare/dots." in result.stderr
        for named in ("show", "check", "report"):
            assert f"cachemark {named} --store {stage.store} --run 1" in result.stderr
    for named in ("show", "check", "report"):
        assert call(named, "--store", stage.store, "--run", 1).exit_code == 0
    accepted = call("baseline", "save", "--store", stage.store, "--run", 1, "--name", "dots")
    assert accepted.exit_code == 2
    assert "Run 1 is a comparison, which has two sides of its own." in accepted.stderr


def test_tonights_bias_of_equal_code_raises_the_minimum_effect(machine: Machine, stage: Stage) -> None:
    """Equal sides run from two folders, so a bias by folder shows; from the third sample on it counts, in that night too."""
    deltas = []
    for bias in (1.3, 0.75, 1.25):
        machine.speed = lambda planned, options, bias=bias: bias if "cachemark-equal-" in options.code else 1.0
        deltas.append(json.loads(compare(stage, *SIDES, "--json").stdout)["delta"])
    assert deltas[:2] == [0.1, 0.1]
    assert deltas[2] > 0.3


def test_images_are_not_begun_when_the_time_is_over(machine: Machine, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.changed = other_tokens
    now = SimpleNamespace(monotonic=lambda: 3600.0 * (machine.trials >= 12))
    monkeypatch.setattr("cachemark.workflows.compare.time", now)
    result = compare(stage, *SIDES, "--no-aa", "--minutes", 59)
    assert (result.exit_code, machine.trials, machine.seen) == (0, 12, [])
    with Store.open(stage.store, create=False, read_only=True) as store:
        (row,) = [row for row in store.verdicts(2) if row.metric == "status"]
    assert (row.verdict, row.reason) == ("not_compared", "time was up before its images were compared")


def test_what_time_does_not_allow_stays_open(machine: Machine, stage: Stage) -> None:
    assert compare(stage, *SIDES, "--minutes", 0).exit_code == 4
    machine.noise = 0.3
    code, said = rows(stage, *SIDES, "--no-aa")
    assert (code, said[CONFIG, "latency"]) == (3, "inconclusive")


def test_sides_of_two_kernels_are_refused_with_the_difference(machine: Machine, stage: Stage) -> None:
    machine.changed = lambda o, options: replace(o, facts=Facts(kernel="math")) if o.case.method == "calm" else o
    result = compare(stage, *SIDES)
    assert result.exit_code == 2
    assert "differ in attention kernel: sdpa and math" in result.stderr
    with Store.open(stage.store, create=False, read_only=True) as store:
        assert store.run(2).state == "failed"


def test_two_environments_that_differ_in_tf32_are_refused(machine: Machine, stage: Stage) -> None:
    machine.where = lambda options: replace(HERE, facts={**HERE.facts, "tf32": options.python == "new"})
    result = compare(stage, "--env", "old", "new")
    assert (result.exit_code, machine.trials) == (2, 0)
    assert "TF32 flag: False and True" in result.stderr
    with Store.open(stage.store, create=False, read_only=True) as store:
        assert len(store.runs()) == 1


@pytest.mark.parametrize(("more", "words"), [
    ('dtype = "bfloat16"', "compute dtype: float32 and bfloat16"), ("batch = 1", "batch: 2 and 1"),
])  # fmt: skip
def test_two_cases_that_differ_in_more_than_the_method_are_refused_before_a_pair(
    more: str, words: str, machine: Machine, stage: Stage,
) -> None:
    block = stage.plan.read_text().partition("[[cells]]")[2].replace("batch = 2", "" if "batch" in more else "batch = 2")
    stage.plan.write_text(f"{stage.plan.read_text()}\n[[cells]]{block.replace('streaming', 'window')}\n{more}\n")
    result = compare(stage, "--cases", "streaming 1/2", "window 1/2")
    assert (result.exit_code, machine.trials) == (2, 0)
    assert words in result.stderr


def test_two_environments_may_give_other_tokens(machine: Machine, stage: Stage) -> None:
    machine.where = lambda options: replace(HERE, fingerprint=options.python)
    machine.changed = lambda outcome, options: replace(outcome, output_hash=options.python)
    code, said = rows(stage, "--env", "old", "new", "--no-aa")
    assert code == 0
    assert {metric for _, metric in said} == {"latency", "kv_allocated", "psnr", "status"}
    machine.psnr = lambda planned, options: 30.0 if options.python == "old" else 20.0
    code, said = rows(stage, "--env", "old", "new", "--no-aa", "--samples", 20)
    assert code == 1, "images decide where tokens may differ"
    assert {config: said.get((config, "psnr"), said.get((config, "status"))) for config, _ in said} == {
        "dot full": "not_compared", "dot streaming 1/2": "regressed", "dot calm 1/2": "regressed"}, "the full cache's are to itself"
    machine.where = lambda options: HERE
    code, said = rows(stage, "--env", "old", "new", "--no-aa", "--only", "full")
    assert (code, said["dot full", "output_hash"]) == (1, "changed"), "the same environment under two names owes the same tokens"


@pytest.mark.parametrize(("samples", "code"), [(4, 2), (2001, 2), (0, 0), (5, 0)])
def test_images_are_as_many_as_can_tell_something(samples: int, code: int, machine: Machine, stage: Stage) -> None:
    machine.changed = other_tokens
    result = compare(stage, *SIDES, "--no-aa", "--samples", samples)
    assert result.exit_code == code
    assert (len(machine.seen), machine.trials > 0) == (2 * (code == 0 < samples), code == 0)
    assert ("are too few" in result.stderr) is (0 < samples < 5)


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
        told = [o for o in store.outcomes(2) if o.facts.pair.what == "images"]
        assert {o.facts.pair.side: len(o.samples["psnr"]) for o in told} == {"before": 40, "after": 40}
    machine.psnr = lambda planned, options: 30.0
    machine.seen.clear()
    code, said = rows(stage, *SIDES, "--no-aa", "--samples", 300)
    assert (code, said[CONFIG, "psnr"]) == (0, "equivalent")
    assert {(p.case.samples, p.case.seeds) for p in machine.seen} == {(300, "s2k")}


def test_where_tokens_are_the_same_there_is_nothing_to_compare(machine: Machine, stage: Stage) -> None:
    result = compare(stage, *SIDES, "--no-aa")
    assert "Images of 1 configuration: same tokens, nothing to compare." in result.stdout
    assert machine.seen == []
    machine.changed = other_tokens
    assert rows(stage, *SIDES, "--no-aa", "--samples", 0)[1].keys() == {(CONFIG, "latency"), (CONFIG, "kv_allocated")}
    assert machine.seen == []


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


@pytest.mark.parametrize(("failing", "code", "verdict"), [(("streaming", "calm"), 0, "not_compared"), (("calm",), 1, "regressed")])
def test_images_that_only_the_second_side_cannot_make_have_regressed(
    failing: tuple[str, ...], code: int, verdict: str, machine: Machine, stage: Stage,
) -> None:
    def fails(outcome: Outcome, options: TrialRequest) -> Outcome:
        bad = options.task is Task.IMAGES and outcome.case.method in failing
        return Outcome(outcome.case, Status.NAN_OUTPUT, log="NaN in the images") if bad else other_tokens(outcome, options)

    machine.changed = fails
    assert rows(stage, *SIDES, "--no-aa") == (
        code, {(CONFIG, "latency"): "equivalent", (CONFIG, "kv_allocated"): "not_compared", (CONFIG, "status"): verdict})


def test_how_much_must_be_judged_can_be_told(machine: Machine, stage: Stage) -> None:
    machine.changed = lambda o, options: Outcome(o.case, Status.OOM, log="out of memory") if o.case.method == "calm" else o
    both = ("--env", "old", "new", "--no-aa")
    assert compare(stage, *both).exit_code == 4, "one configuration of three fails in both sides"
    assert compare(stage, *both, "--min-coverage", 0.6).exit_code == 0
    judge = ("check", "--store", stage.store, "--run")
    assert [call(*judge, run).exit_code for run in (2, 3)] == [4, 0], "as each was held"
    assert [call(*judge, run, "--min-coverage", share).exit_code for run, share in ((2, 0.6), (3, 0.9))] == [0, 4]


def test_two_commits_owe_the_same_bytes_and_tokens(machine: Machine, stage: Stage, repository: Path) -> None:
    machine.changed = lambda o, options: replace(o, samples={**o.samples, "kv_allocated": [4096.0 + 1024 * (number(options) > 3)]})
    where = ("--repository", repository, "--no-aa", "--only", "calm 1/2")
    code, said = rows(stage, "--commits", "HEAD~16", "HEAD~14", *where)
    assert (code, set(said.values())) == (0, {"equivalent"})
    code, said = rows(stage, "--commits", "HEAD~16", "HEAD", *where)
    assert (code, said["dot calm 1/2", "kv_allocated"]) == (1, "regressed")
    assert len(git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(("more", "words"), [
    ((), "Use exactly one of --cases A B"), (("--cases", "a", "b", "--env", "a", "b"), "Use exactly one of --cases A B"),
    ((*SIDES, "--only", "full"), "so --only has no effect. Leave out one of the two."),
    (("--cases", "streaming 1/2", "clam 1/2"), "Did you mean 'calm 1/2'"),
])  # fmt: skip
def test_sides_are_named_in_one_way(more: tuple[str, ...], words: str, machine: Machine, stage: Stage) -> None:
    result = compare(stage, *more)
    assert (result.exit_code, machine.trials) == (2, 0)
    assert words in result.stderr
