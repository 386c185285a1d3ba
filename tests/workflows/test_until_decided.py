"""Doubling of seeds until every method is decided, and what later runs inherit."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.errors import BadPlan, NothingMeasured
from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.seeds import SIZES
from cachemark.plans.expand import expand
from cachemark.plans.schema import Plan
from cachemark.store.db import Store
from cachemark.workflows import until_decided as module
from cachemark.workflows.results import Run
from cachemark.workflows.until_decided import Interim, UntilDecided, until_decided
from support.stages import call

HERE = Environment("Example CPU", "example", "1" * 16, {})
PLAN = Plan.model_validate({
    "name": "planted", "fidelity": {"seeds": "s64", "samples": 48},
    "cells": [{"model": "tiny-llamagen", "methods": ["linear"], "budgets": ["1/2", "1/4"], "batch": 4}],
})


@dataclass
class Planted:
    """Simulated runs in which candidates lose these points of color consistency, by label."""

    store: Path
    truth: Mapping[str, float]
    seconds: float = 0.0
    asked: list[int] = field(default_factory=list)

    def run(self, plan: Plan, store: Path, **given: Any) -> Run:
        self.asked.append(plan.fidelity.samples)
        with Store.open(store) as target, target.new_run(plan.name, plan.model_dump(mode="json"), HERE, {}) as number:
            for planned in expand(plan):
                if planned.case.role in ("candidate", "baseline"):
                    outcome = self.outcome(planned)
                    if target.reuse(number, outcome.result_key) is None:
                        target.save(number, outcome)
        return Run(store, number)

    def outcome(self, planned: Any) -> Outcome:
        case = planned.case
        stream, lost = random.Random(f"truth of {case.label}"), self.truth.get(case.label, 0.0)
        colors = [float(stream.random() >= lost) for _ in range(case.samples)]
        seconds = 1.0 if case.role == "baseline" else 0.8
        samples = {"latency": [seconds, 1.001 * seconds, 1.002 * seconds], "color_consistency": colors, "kv_allocated": [1e6],
                   "peak_memory": [1e7]}
        agreement = {} if case.role == "baseline" else {"token_agreement": [0.6] * case.samples}
        return Outcome(replace(case, weights="9c2e/5b71"), Status.OK, samples | agreement, seconds=1.0, facts={"kernel": "sdpa"},
                       result_key=f"{case.label} {case.samples}")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    planted = Planted(tmp_path / "s.sqlite", {"linear 1/2": 0.0, "linear 1/4": 0.4})
    monkeypatch.setattr(module, "run", planted.run)
    return planted


def decided(world: Planted, **more: Any) -> UntilDecided:
    return until_decided(PLAN, world.store, **more)


def test_it_ends_at_the_first_look_at_which_all_is_decided(world: Planted) -> None:
    """Two claims need 101 seeds without a loss; a loss of 40 points is significant early."""
    interims: list[Interim] = []
    found = decided(world, on_interim=interims.append)
    assert (found.ended, world.asked) == ("decided", [48, 96, 192])
    assert list(found.interims) == interims
    assert [interim.disqualified for interim in interims] == [("tiny-llamagen linear 1/4",)] * 3
    assert [interim.open for interim in interims] == [("tiny-llamagen linear 1/2",)] * 2 + [()]
    assert interims[-1].qualified == ("tiny-llamagen linear 1/2",)
    assert found.run.record.sequential
    assert "quality loss below 5 points" in found.run.answers["tiny-llamagen"].text


def test_what_loses_the_margin_is_looked_at_to_the_end_of_the_series(world: Planted) -> None:
    world.truth = {"linear 1/2": 0.05, "linear 1/4": 0.4}
    plan = PLAN.model_copy(update={"fidelity": PLAN.fidelity.model_copy(update={"seeds": "tune64"})})
    found = until_decided(plan, world.store)
    assert (found.ended, world.asked) == ("seeds", [48, 96, 192])
    assert found.interims[-1].open == ("tiny-llamagen linear 1/2",)


def test_no_look_begins_that_would_end_too_late(world: Planted) -> None:
    found = decided(world, minutes=0)
    assert (found.ended, world.asked) == ("time", [48])


def test_seeds_come_from_the_next_subset_that_holds_the_one_before() -> None:
    grown = module._larger(PLAN)
    asked = [(plan.fidelity.seeds, plan.fidelity.samples) for plan in grown]
    assert asked[:4] == [("s64", 48), ("s256", 96), ("s256", 192), ("s2k", 384)]
    assert all(samples <= SIZES[name] for name, samples in asked)
    assert all(plan.fidelity.sequential for plan in grown)
    own = PLAN.model_copy(update={"cells": [PLAN.cells[0].model_copy(update={"samples": 24})]})
    assert [plan.cells[0].samples for plan in module._larger(own)][:3] == [24, 48, 96]


def test_figures_of_whole_sets_and_runs_without_quality_are_refused(world: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadPlan, match="cannot be decided seed by seed"):
        until_decided("quality", world.store)
    monkeypatch.setattr(Planted, "outcome", lambda self, planned: replace(
        bare := whole(self, planned), judgement="Its weights are random.", samples={"latency": bare.samples["latency"]}))
    with pytest.raises(NothingMeasured, match="No case has a quality value"):
        decided(world)


whole = Planted.outcome


def test_a_plain_run_that_carries_what_was_looked_at_is_judged_as_it_was(world: Planted) -> None:
    """Otherwise optional stopping could be hidden in a later run."""
    decided(world)
    plain = PLAN.model_copy(update={"fidelity": PLAN.fidelity.model_copy(update={"seeds": "s256", "samples": 96})})
    carried = world.run(plain, world.store)
    assert not carried.record.stored_plan["fidelity"]["sequential"]
    assert carried.record.sequential
    with Store.open(world.store, read_only=True) as store:
        assert {run.id: run.sequential for run in store.runs()} == {1: True, 2: True, 3: True, 4: True}
    other = Planted(world.store.with_name("other.sqlite"), world.truth)
    alone = other.run(plain, other.store)
    assert not alone.record.sequential
    reasons = [run.answers["tiny-llamagen"].row for run in (carried, alone)]
    assert reasons[0] is None, "96 seeds are too few where they were looked at"
    assert reasons[1] is not None


@pytest.mark.slow
def test_a_real_method_that_ruins_images_is_found_out_by_the_real_command(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text('''
name = "decide"
[timing]
warmup = 1
repeats = 3
[fidelity]
samples = 32
reference_samples = 8
forced_samples = 8
batch = 32
[[cells]]
model = "tiny-llamagen"
methods = ["window"]
budgets = ["1/4"]
batch = 4
''')
    store = tmp_path / "s.sqlite"
    result = call("run", tmp_path / "plan.toml", "--store", store, "--until-decided", "--threads", 1, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr.rstrip().splitlines()[-1] == "32 samples: 1 worse."
    assert json.loads(result.stdout)["answers"][0]["method"] == "full"
    with Store.open(store, read_only=True) as held:
        assert [run.sequential for run in held.runs()] == [True]
