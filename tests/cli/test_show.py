"""``cachemark show`` on a comparison."""

from __future__ import annotations

from dataclasses import replace

from cachemark.store.db import Store
from support.stages import Stage, call

from .test_commands import good


def test_show_prints_each_arm_of_the_pairs_of_a_case(stage: Stage) -> None:
    """They share a key, so that no key could tell them apart."""
    with Store.open(stage.store) as store:
        run, (full, *_) = store.run(1), store.outcomes(1)
        number = store.begin_run("compare/dots", {}, run.environment, run.code)
        told = {"run": number, "cell": "full", "arm": "before", "what": "times"}
        for pair in (1, 2):
            store.save(number, replace(full, facts={**full.facts, "pair": {**told, "number": pair}}), trial=f"pair {pair}")
        store.finish_run(number, "finished")
    text = good(call("show", "full", "--run", number, "--store", stage.store))
    told = [line for line in text.splitlines() if line.strip().startswith("pair ")]
    assert [f"'number': {number}" in line for number, line in enumerate(told, 1)] == [True, True]


def test_a_list_names_the_kind_of_each_figure_and_shows_what_the_report_does(stage: Stage) -> None:
    """The mean of three times may order methods the other way round than their median."""
    with Store.open(stage.store) as store:
        run, (full, *_) = store.run(1), store.outcomes(1)
        number = store.begin_run("dots", {}, run.environment, run.code)
        store.save(number, replace(full, samples={**full.samples, "latency": [1.0, 1.0, 4.0]}))
        store.finish_run(number, "finished")
    text = good(call("show", "--run", number, "--store", stage.store))
    assert "latency 1 s (median)" in text
    assert "kl 0 nat/token (mean)" in text


def test_a_list_says_which_cases_are_flagged(stage: Stage) -> None:
    with Store.open(stage.store) as store:
        run, (full, *others) = store.run(1), store.outcomes(1)
        number = store.begin_run("dots", {}, run.environment, run.code)
        store.save(number, replace(full, facts={**full.facts, "flagged": [{"expected": "as many bytes", "found": "more"}]}))
        store.save(number, others[0])
        store.finish_run(number, "finished")
    first, second = good(call("show", "--run", number, "--store", stage.store)).splitlines()[1:]
    assert "  flagged  " in first
    assert "flagged" not in second
