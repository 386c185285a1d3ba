"""Figures of a whole set of images on their way through the house: stored, exchanged, judged, shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from click.testing import CliRunner
from gate_examples import CODE, ENVIRONMENT, case, changed, exchange, ok

from cachemark.analysis.baseline_comparison import changes
from cachemark.cli import main
from cachemark.core.errors import UnknownName
from cachemark.core.result import Outcome, Status
from cachemark.gate.baseline_check import compare
from cachemark.store.db import Store
from cachemark.store.exchange import dump, load

FIGURES = {"fid_scene_2k": [12.25], "kid_scene_2k": [-0.0001234567890123], "isc_scene_2k": [9.5], "precision_scene_2k": [0.875],
           "recall_adm_50k": [0.5]}  # fmt: skip


def plan() -> list[Outcome]:
    return [ok(case("full"), **FIGURES), ok(case("linear"), **FIGURES)]


def test_they_are_stored_and_exchanged_exactly(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        run = store.begin_run("demo", {"plan": "demo"}, ENVIRONMENT, CODE)
        for outcome in plan():
            store.save(run, outcome)
        kept = store.outcomes(run)
    assert [{name: list(o.samples[name]) for name in FIGURES} for o in kept] == [FIGURES, FIGURES]
    again = load(dump(kept, ENVIRONMENT, CODE), "x")
    assert {name: list(again.outcomes[0].samples[name]) for name in FIGURES} == FIGURES
    assert {name: again.metrics[name] for name in FIGURES} == dict.fromkeys(FIGURES, 1)
    shown = CliRunner().invoke(main, ["show", "linear 1/4", "--store", str(tmp_path / "s.sqlite")])
    assert shown.exit_code == 0, shown.output
    assert "fid_scene_2k  mean 12.25" in shown.output
    assert "recall_adm_50k  mean 0.5  median 0.5 share" in shown.output


def test_the_gate_names_them_and_leaves_them_to_a_paired_test() -> None:
    worse = changed(plan(), "linear", samples={"fid_scene_2k": [99.0]})
    found = compare(exchange(plan()), worse, ENVIRONMENT)
    rows = {row.metric: row for row in found.rows if row.label.startswith("tiny linear")}
    assert FIGURES.keys() <= rows.keys()
    assert {rows[name].verdict for name in FIGURES} == {"not_compared"}
    assert "needs a paired test" in rows["fid_scene_2k"].reason
    assert found.exit_code == 0
    without = [dataclasses.replace(o, samples={n: v for n, v in o.samples.items() if n not in FIGURES}) for o in plan()]
    assert {r.verdict for r in compare(exchange(plan()), without, ENVIRONMENT).rows if r.metric in FIGURES} == {"missing"}
    assert {r.verdict for r in compare(exchange(without), plan(), ENVIRONMENT).rows if r.metric in FIGURES} == {"new"}
    titles = {change.entry.metric: change.title for change in changes(found)}
    assert titles["fid_scene_2k"] == "FID, scene, 2k images"
    assert titles["recall_adm_50k"] == "Recall, adm, 50k images"


def test_a_figure_of_a_set_is_a_judgement() -> None:
    Outcome(case("linear"), Status.OK, {"latency": [1.0], "fid_scene_2k": [12.0]})
    with pytest.raises(ValueError, match="needs samples and a judgement"):
        Outcome(case("linear"), Status.OK, {"latency": [1.0]})
    with pytest.raises(UnknownName, match="Did you mean 'fid_scene_2k'"):
        Outcome(case("linear"), Status.OK, {"latency": [1.0], "fid_scene_2000": [12.0]})
