"""Misbehaving plug-ins beside well-behaved methods: what these draw, weigh and report is what it is without them, to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachemark.core.result import Outcome
from cachemark.core.units import metric
from cachemark.store.db import Store
from support import stages
from support.bad_plugins import MORE, PLUGINS, BadPlugin
from support.stages import Stage

TIMED = ("slope", "limit", "cpus", "footnotes", "full_beside", "other_load")  # facts that differ from run to run
CALM = ["full", "full (other seeds)", "full (other batch)", "streaming 1/2", "calm 1/2"]


def run(folder: Path, bad: dict[str, BadPlugin]) -> Stage:
    """A run of the plan of ``measured``, with the misbehaving methods before the well-behaved ones."""
    made = stages.stage(folder, ", ".join(f'"{name}"' for name in (*bad, "streaming")))
    result = made.run(*(option for name, plugin in bad.items() for option in ("--plugin", plugin.write(folder, name))))
    assert result.exit_code == 0, result.output
    return made


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return run(tmp_path_factory.mktemp("beside") / "stage", PLUGINS)


def lasting(outcome: Outcome) -> dict[str, object]:
    """Everything in an outcome but times, and the process and processors of its case."""
    data = outcome.to_json()
    samples = {name: values for name, values in data["samples"].items() if metric(name).kind != "speed"}
    facts = {name: fact for name, fact in data["facts"].items() if name not in TIMED}
    return {**data, "samples": samples, "facts": facts, "seconds": 0.0}


def check(alone: Stage, beside: Stage, bad: dict[str, BadPlugin]) -> None:
    expected, outcomes = alone.outcomes(), beside.outcomes()
    assert list(expected) == CALM
    assert [label for label in outcomes if label in CALM] == CALM
    for label in CALM:
        assert lasting(outcomes[label]) == lasting(expected[label])
        assert outcomes[label].samples.keys() == expected[label].samples.keys()
    for name, plugin in bad.items():
        outcome = outcomes[f"{name} 1/2"]
        assert (outcome.status, plugin.words in outcome.log) == (plugin.status, True), outcome.log
        assert len(outcome.log) < 25_000


def test_each_ends_its_own_case_only_and_the_next_one_gives_the_same_tokens(measured: Stage, beside: Stage) -> None:
    check(measured, beside, PLUGINS)
    assert beside.states() == ["finished"]
    assert beside.whole()
    with Store.open(beside.store, create=False, read_only=True) as store:
        trials = store.trials(1)
    assert len(set(trials.values())) == len(trials) == len(CALM) + len(PLUGINS), "a process for each, since the model is a plug-in's"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_other_misbehavior_ends_its_own_case_only(measured: Stage, tmp_path: Path) -> None:
    check(measured, run(tmp_path / "stage", MORE), MORE)
