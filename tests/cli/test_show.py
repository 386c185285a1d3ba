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
