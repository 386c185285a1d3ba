"""Misbehaving plug-ins beside well-behaved methods: what these draw, weigh and report is what it is without them, to the last bit."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from cachemark.core.result import CHANGED, FULL_BESIDE, INSPECTED, Outcome
from cachemark.core.units import metric
from cachemark.store.db import Store
from support import stages
from support.bad_plugins import MORE, TWELVE, BadPlugin
from support.stages import Stage

CALM = ["full", "full (floor)", "full (numerics)", "streaming 1/2", "calm 1/2"]
SIX = ("threads", "softmax", "surroundings", "leaver", "pipe", "interrupts")


def run(folder: Path, bad: dict[str, BadPlugin], **plan: object) -> Stage:
    """A run of the plan of ``measured``, with the misbehaving methods before the well-behaved ones."""
    made = stages.stage(folder, ", ".join(f'"{name}"' for name in (*bad, "streaming")), **plan)
    result = made.run(*(option for name, one in bad.items() for option in ("--plugin", one.write(folder, name))))
    assert result.exit_code == 0, result.output
    return made


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return run(tmp_path_factory.mktemp("beside") / "stage", {name: TWELVE[name] for name in SIX})


def lasting(outcome: Outcome) -> dict[str, object]:
    """Everything that a case says but how long it took, and in which process and on which processors it ran."""
    data = outcome.to_json()
    samples = {name: values for name, values in data["samples"].items() if metric(name).kind != "speed"}
    timed = ("slope", "footnotes", "limit", "cpus", FULL_BESIDE, INSPECTED)
    facts = {name: fact for name, fact in data["facts"].items() if name not in timed}
    return {**data, "samples": samples, "facts": facts, "seconds": 0.0}


def unchanged(alone: Stage, beside: Stage) -> None:
    one, other = alone.outcomes(), beside.outcomes()
    assert list(one) == CALM
    assert [label for label in other if label in CALM] == CALM
    for label in CALM:
        assert lasting(other[label]) == lasting(one[label])
        assert other[label].samples.keys() == one[label].samples.keys()
        assert CHANGED not in other[label].facts


def test_well_behaved_methods_are_what_they_are_alone(measured: Stage, beside: Stage) -> None:
    unchanged(measured, beside)


def test_a_plug_in_comes_last_in_its_process_unless_the_next_case_needs_it(beside: Stage) -> None:
    with Store.open(beside.store, create=False, read_only=True) as store:
        trials = store.trials(1)
    by_trial: dict[str, list[str]] = {}
    for outcome in beside.outcomes().values():
        by_trial.setdefault(trials[outcome.case.key], []).append(outcome.case.method)
    assert list(by_trial.values()) == [["full", "full", "full", "streaming", "calm", SIX[0]], *([name] for name in SIX[1:])]


def judged(outcome: Outcome, expected: BadPlugin) -> None:
    assert outcome.status == expected.status, outcome.log
    told = [*outcome.facts.get("footnotes", ()), outcome.log]
    for words in expected.words:
        assert any(words in text for text in told), told
    for words in expected.changed:
        assert any(words in text for text in outcome.facts.get(CHANGED, ())), outcome.facts.get(CHANGED)
        assert any(words in note for note in outcome.facts["footnotes"])
    assert len(outcome.log) < 25_000


@pytest.mark.parametrize("name", SIX)
def test_each_ends_as_it_should(name: str, beside: Stage) -> None:
    judged(beside.outcomes()[f"{name} 1/2"], TWELVE[name])


def test_times_under_other_settings_are_kept_and_not_compared(beside: Stage) -> None:
    assert beside.outcomes()["threads 1/2"].facts["quality_only"].endswith("A speed-up would measure that.")


def test_one_that_starts_a_process_is_flagged_and_not_compared(beside: Stage) -> None:
    outcome = beside.outcomes()["leaver 1/2"]
    assert any("starts a process" in flag for flag in outcome.flags), outcome.flags
    assert "starts a process" in outcome.facts["quality_only"]


def test_what_has_left_its_process_group_ends_too(beside: Stage) -> None:
    pid = int((beside.folder / "leaver.py.pid").read_text())
    stages.until(lambda: stages.ended(pid), "the end of a process that has left its group")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bad", [TWELVE, MORE], ids=["twelve", "more"])
def test_all_of_them_end_as_they_should(bad: dict[str, BadPlugin], measured: Stage, tmp_path: Path) -> None:
    stage = run(tmp_path / "stage", bad)
    unchanged(measured, stage)
    for name, expected in bad.items():
        judged(stage.outcomes()[f"{name} 1/2"], expected)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_times_beside_them_are_within_noise(tmp_path: Path) -> None:
    """Medians beside those that disturb for as long as they can, between two runs without them."""
    bad = {name: TWELVE[name] for name in ("threads", "clock", "thread", "mode", "surroundings", "leaver")}
    runs = [run(tmp_path / str(number), plugins).outcomes() for number, plugins in enumerate(({}, bad, {}))]
    for label in ("full", "streaming 1/2", "calm 1/2"):
        one, beside, other = (statistics.median(found[label].samples["latency"]) for found in runs)
        assert 0.5 * min(one, other) < beside < 2 * max(one, other)
