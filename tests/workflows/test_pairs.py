"""Measurement of pairs: order, content, and repetition of disturbed ones."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from cachemark.core import seeds
from cachemark.core.errors import BadPlan, BadPlugin, CachemarkError, UnknownName, Unsupported
from cachemark.core.result import Outcome, Status
from cachemark.gate.comparison import PairOfOutcomes
from cachemark.gate.judgement import RunJudgement
from cachemark.gate.nights import Night
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.plans.schema import Plan, load, prepare
from cachemark.plugins import loading
from cachemark.store.rows import RunRecord
from cachemark.trial.child.bench import Bench
from cachemark.trial.executors.local import Local
from cachemark.trial.request import Task, TrialRequest
from cachemark.workflows.pairs import REDOS, PairRunner, Side, configs_of, image_side, orders, sides_of
from cachemark.workflows.plugin_versions import sides_of_versions, version_requests
from report.report_sample import ENVIRONMENT
from support import bad_plugins, examples, stages, stub
from support.measuring import run_side, see_side
from support.repositories import git

REQUEST = TrialRequest(60.0, 1, task=Task.TIMES)


@pytest.fixture(scope="module")
def bundled() -> dict[str, Prepared]:
    return configs_of(load("bundled"), "cpu")


@pytest.fixture
def own_plan(tmp_path: Path) -> Plan:
    """Of the small model, whose plug-in is loaded."""
    made = stages.stage(tmp_path / "stage")
    loading.load(made.plugin)
    return load(str(made.plan))


def answer(planned: Prepared, request: TrialRequest) -> Outcome:
    return Outcome(planned.case, Status.OK, {"latency": [1.0]}, request.code)


def sides(configs: dict[str, Prepared]) -> tuple[Side, Side, Local]:
    return Side("a", configs, replace(REQUEST, code="a")), Side("b", configs, replace(REQUEST, code="b")), Local()


def test_half_of_the_pairs_begin_with_either_side_by_chance() -> None:
    drawn, again, other = (list(itertools.islice(orders(seed), 400)) for seed in (0, 0, 1))
    assert drawn == again != other
    assert all(one != two for one, two in zip(drawn[::2], drawn[1::2], strict=True))
    assert 70 < sum(drawn[::2]) < 130


def test_a_round_is_a_fresh_process_for_each_side_and_model(bundled: dict[str, Prepared], monkeypatch: pytest.MonkeyPatch) -> None:
    ran = stub.answering(monkeypatch, answer)
    configs = {name: p for name, p in bundled.items() if p.case.label in ("full", "window 1/2")}
    models = len({p.case.model for p in configs.values()})
    runner, drawn = PairRunner(*sides(configs), seed=3), set()
    for number, swapped in enumerate(itertools.islice(orders(3), 6), 1):
        ran.clear()
        pairs_of_round = runner.round(list(configs))
        drawn.add(swapped)
        assert [c.config for c in pairs_of_round] == list(configs)
        assert {(c.number, c.swapped, c.redone) for c in pairs_of_round} == {(number, swapped, 0)}
        assert {(c.before.unjudged, c.after.unjudged) for c in pairs_of_round} == {("a", "b")}, "sides are not mixed up"
        assert [request.code for request, _ in ran] == (["b", "a"] if swapped else ["a", "b"]) * models
        assert sorted(label for request, labels in ran for label in labels if request.code == "a") == sorted(
            p.case.label for p in configs.values())
    assert drawn == {True, False}


NOTED = examples.MODEL + """
import pathlib
import time

_generate = llamagen.LlamaGen.generate


def noted(self, *arguments, **options):
    began = time.monotonic()
    tokens = _generate(self, *arguments, **options)
    with open(pathlib.Path(__file__).with_name("spans"), "a") as file:
        file.write(f"{os.getpid()} {began} {time.monotonic()}\\n")
    return tokens


def set_up():
    llamagen.LlamaGen.generate = noted
"""


def test_the_processes_of_a_pair_alternate_after_each_generation(tmp_path: Path) -> None:
    stage = stages.stage(tmp_path, plugin=NOTED)
    with stages.forgetting():
        plan, plugins = prepare(stage.plan, [stage.plugin])
        configs = configs_of(plan, "cpu", ["streaming 1/2"], 3)
    request = replace(REQUEST, plugins=plugins)
    (pair,) = PairRunner(Side("a", configs, request), Side("b", configs, request), Local()).round(list(configs))
    assert pair.ok
    assert [len(side.samples["latency"]) for side in pair.sides] == [3, 3]
    spans = sorted((float(began), float(ended), pid) for pid, began, ended in map(str.split, (tmp_path / "spans").read_text().splitlines()))
    assert all(ended <= began for (_, ended, _), (began, _, _) in itertools.pairwise(spans)), "they compute at the same time"
    assert len(spans) == 2 * 6, "a watched one, a warm-up, three timed ones, and one whose images are hashed, on each side"
    assert all(one != other for (_, _, one), (_, _, other) in itertools.pairwise(spans))


@pytest.mark.parametrize(("status", "times", "redone"), [
    (Status.THROTTLED, 1, 1), (Status.CONTENDED, 3, 3), (Status.THROTTLED, 99, 3), (Status.OOM, 99, 0)])
def test_what_is_spoilt_is_measured_again(
        status: Status, times: int, redone: int, bundled: dict[str, Prepared], monkeypatch: pytest.MonkeyPatch) -> None:
    configs = {name: bundled[name] for name in ("tiny-llamagen window 1/2", "tiny-llamagen window 1/4")}
    left = iter(range(times))

    def spoilt(planned: Prepared, options: TrialRequest) -> Outcome:
        bad = planned.case.label == "window 1/4" and options.code == "b" and next(left, None) is not None
        return Outcome(planned.case, status, log="too hot") if bad else answer(planned, options)

    ran = stub.answering(monkeypatch, spoilt)
    measured: list[PairOfOutcomes] = []
    by_config = {c.config: c for c in PairRunner(*sides(configs), on_pair=measured.append).round(list(configs))}
    assert [by_config[name].redone for name in configs] == [0, redone]
    assert by_config["tiny-llamagen window 1/4"].ok is (times <= REDOS)
    assert [labels for _, labels in ran[2:]] == [["window 1/4"]] * 2 * redone, "only what was spoilt"
    assert {c.config: c.number for c in measured} == dict.fromkeys(configs, 1)


def test_configs_of_a_plan_are_its_timed_cases_and_two_are_sides_where_a_model_has_both(bundled: dict[str, Prepared]) -> None:
    plan, configs = load("bundled"), bundled
    assert {p.case.role for p in configs.values()} == {"candidate", "baseline"}
    settings = {(p.case.repeats, p.case.warmup, p.case.samples - p.case.batch, len(p.case.evaluation)) for p in configs.values()}
    assert settings == {(8, 2, 0, 0)}
    assert all(name == f"{p.case.model} {p.case.label}" for name, p in configs.items())
    assert {p.case.model for p in configs_of(plan, "cpu", ["full"], 3).values()} == {"tiny-llamagen", "tiny-t2i", "tiny-var", "tiny-mar"}
    assert list(configs_of(plan, "cpu", ["tiny-llamagen window 1/2"])) == ["tiny-llamagen window 1/2"]
    with pytest.raises(UnknownName, match="Did you mean 'window 1/2'"):
        configs_of(plan, "cpu", ["windw 1/2"])
    before, after = sides_of(plan, "cpu", ("window 1/2", "linear 1/2"))
    assert list(before) == list(after) == [f"{model} window 1/2 → linear 1/2" for model in ("tiny-llamagen", "tiny-t2i")]
    assert [p.case.method for side in (before, after) for p in side.values()] == ["window"] * 2 + ["linear"] * 2
    (masked, *_) = (p.case.label for p in configs.values() if p.case.method == "lazymar")
    with pytest.raises(CachemarkError, match="No model of plan bundled has both"):
        sides_of(plan, "cpu", ("linear 1/2", masked))


def test_a_side_is_timed_and_its_tokens_and_images_hashed_and_nothing_is_judged(own_plan: Plan) -> None:
    (planned,) = configs_of(own_plan, "cpu", ["streaming 1/2"], 4).values()
    bench = Bench.load(planned)
    first, artifacts = run_side(planned, bench)
    assert (artifacts, len(first.samples["latency"]), bool(first.facts.kernel)) == ({}, 4, True)
    assert first.unjudged.startswith("a side of a pair")
    assert {"kv_allocated", "peak_memory", "kl", "token_agreement"} & set(first.samples) == {"kv_allocated", "peak_memory"}
    again = run_side(planned, bench)[0]
    assert (again.output_hash, again.facts.images_hash) == (first.output_hash, first.facts.images_hash)
    assert "" not in (first.output_hash, first.facts.images_hash)
    other = replace(planned, case=replace(planned.case, parameters={**planned.case.parameters, "B": 6}))
    assert run_side(other, bench)[0].output_hash != first.output_hash
    decode = bench.loaded.decode
    bench.loaded = replace(bench.loaded, decode=lambda tokens: -decode(tokens))
    negative = run_side(planned, bench)[0]
    assert (negative.output_hash == first.output_hash, negative.facts.images_hash == first.facts.images_hash) == (True, False)


def test_images_of_a_side_are_judged_as_another_case_than_the_plans_and_nothing_is_timed(own_plan: Plan) -> None:
    """The timeout applies to a batch of images, not to all of them: each gives a sign of life."""
    counts = []
    for samples in (2, 12):
        (planned,) = configs_of(own_plan, "cpu", ["streaming 1/2"], samples, image_side).values()
        signs: list[int] = []
        bench = Bench.load(planned, signs.append)
        first, artifacts = see_side(planned, bench)
        counts.append(len(signs))
        assert (artifacts, planned.case.batch) == ({}, 2)
        assert {"token_agreement", "kl", "psnr", "ssim"} <= set(first.samples)
        assert not {"latency", "kv_allocated"} & set(first.samples)
        assert {len(values) for values in first.samples.values()} == {samples}
    assert counts[1] == 6 * counts[0] > 0
    assert see_side(planned, bench)[0].samples == first.samples
    bench.loaded = replace(bench.loaded, weights="random:0")
    with pytest.raises(Unsupported, match="random weights"):
        see_side(planned, bench)
    own = {p.case.label: p.case for p in expand(own_plan, "cpu") if p.case.role in ("candidate", "baseline")}
    sides = {p.case.label: p.case for p in configs_of(own_plan, "cpu", images=0, side=image_side).values()}
    assert sides == {label: replace(case, evaluation={**case.evaluation, "only": "images"}) for label, case in own.items()}
    assert all(sides[label].key != own[label].key for label in own)


@pytest.mark.parametrize(("plan_has", "asked_for", "found"), [
    ("s64", 64, "s64"), ("s64", 100, "s256"), ("s64", 2000, "s2k"), ("tune64", 64, "tune64"), ("tune64", 65, "tune256"), ("s2k", 5, "s2k")])
def test_more_seeds_are_of_the_same_series(plan_has: str, asked_for: int, found: str, bundled: dict[str, Prepared]) -> None:
    """Tuning seeds and measuring seeds stay disjoint."""
    planned = next(iter(bundled.values()))
    planned = replace(planned, case=replace(planned.case, seeds=plan_has))
    assert image_side(planned, asked_for).case.seeds == found
    assert set(seeds.subset(plan_has, 10).seeds[:5]) <= set(seeds.subset(found, 10).seeds)
    if plan_has == "tune64":
        with pytest.raises(BadPlan, match=r"257 images at the seeds of 'tune64'.*has 256"):
            image_side(planned, 257)


def test_blocks_that_differ_in_their_batch_are_configs_of_their_own() -> None:
    blocks = [{"model": "llamagen-b", "methods": ["window", "linear"], "batch": batch} for batch in (4, 8)]
    both = Plan.model_validate({"name": "p", "cells": blocks})
    configs = configs_of(both, "cpu")
    assert len(configs) == len({p.case.key for p in configs.values()}) == 2 * len({p.case.label for p in configs.values()}) > 4
    assert all(name == f"{p.case.model} {p.case.label}, batch {p.case.batch}" for name, p in configs.items())
    (config,) = configs_of(both, "cpu", ["window 1/2, batch 8"])
    assert config == "llamagen-b window 1/2, batch 8"
    assert list(configs_of(both, "cpu", ["llamagen-b window 1/2"])) == [config.replace("8", "4"), config]
    before, after = sides_of(both, "cpu", ("window 1/2", "linear 1/2"))
    assert list(before) == list(after) == [f"llamagen-b window 1/2 → linear 1/2, batch {batch}" for batch in (4, 8)]
    assert [p.case.batch for side in (before, after) for p in side.values()] == [4, 8, 4, 8]


def test_each_side_runs_its_own_version_of_the_cases_that_use_it(tmp_path: Path) -> None:
    file = bad_plugins.BadPlugin("pass", "ok").write(tmp_path, "knorm")  # a sound one
    code = file.read_text()
    (plan := tmp_path / "p.toml").write_text('name = "p"\n[[cells]]\nmodel = "tiny-llamagen"\nmethods = ["window"]\n')
    git(tmp_path, "init")
    git(tmp_path, "add", "knorm.py")
    git(tmp_path, "commit", "-m", "one")
    file.write_text(code + "\n\nX = 1\n")
    with stages.forgetting():
        loaded, files = prepare(str(plan), [file])
        cases = {planned.case.label: planned for planned in expand(loaded)}
        with version_requests(TrialRequest(60.0, 1, files), ("HEAD", str(file))) as requests:
            assert Path(requests[0].plugins[0]).read_text() == code
            before, after = sides_of_versions(cases, files, requests)
            assert list(before) == list(after) == ["knorm 1/2"]
            for side, request in ((before, requests[0]), (after, requests[1])):
                assert side["knorm 1/2"].needs == (loading.read(request.plugins[0]).digest,)
        with version_requests(TrialRequest(60.0, 1, files), (str(file), str(file))) as requests, pytest.raises(BadPlugin, match="equal"):
            sides_of_versions(cases, files, requests)
        with pytest.raises(BadPlugin, match="2 plug-ins"), version_requests(TrialRequest(60.0, 1, (*files, *files)), ("a", "b")):
            pass


@pytest.mark.parametrize(("stated", "sides", "unchanged"), [
    ({"options": ["--versions", "a" * 40, "b", "--plugin", "/f.py"]}, ["--versions", "a" * 12, "b", "--plugin", "/f.py"], False),
    ({"options": ["--commits", "main~1", "main"], "code": [{"commit": "a" * 40}] * 2}, ["--commits", "a" * 12, "a" * 12], True),
    ({"options": ["--commits", "a", "b", "--plugin", "/f.py", "--device", "cuda"], "code": [{"commit": "a" * 40}, {"commit": "b" * 40}]},
     ["--commits", "a" * 12, "b" * 12, "--plugin", "/f.py", "--device", "cuda"], False),
    ({"options": ["--env", "a", "b"], "code": [{"commit": "a" * 40}] * 2}, ["--env", "a", "b"], False)])
def test_the_printed_command_names_the_sides_as_they_were_compared(stated: dict[str, object], sides: list[str], unchanged: bool) -> None:
    record = RunRecord(1, "compare/p", {"sides": ["c" * 40, "b"], "alike": "same", **stated}, "2026", "2026", "finished", ENVIRONMENT, {})
    night = Night(record, ())
    assert (night.sides, night.unchanged) == (sides, unchanged)
    assert f"Pairs: comparison 1, {'c' * 12} → b." in RunJudgement(night=night).remarks()
