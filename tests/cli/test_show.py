"""``cachemark show`` on a comparison."""

from __future__ import annotations

import re
from dataclasses import replace

from cachemark.core.spec import Sampling
from cachemark.store.db import Store
from support.stages import Stage, call

from .test_commands import good


def test_show_prints_each_side_of_the_pairs_of_a_case(stage: Stage) -> None:
    """All of them share one key."""
    with Store.open(stage.store) as store:
        run, (full, *_) = store.run(1), store.outcomes(1)
        number = store.begin_run("compare/dots", {}, run.environment, run.code)
        told = {"run": number, "configuration": "full", "side": "before", "what": "times"}
        for pair in (1, 2):
            store.save(number, replace(full, facts={**full.facts, "pair": {**told, "number": pair}}), trial=f"pair {pair}")
        store.finish_run(number, "finished")
    text = good(call("show", "full", "--run", number, "--store", stage.store))
    told = [line for line in text.splitlines() if line.strip().startswith("pair ")]
    assert [f"'number': {number}" in line for number, line in enumerate(told, 1)] == [True, True]


def test_a_label_of_several_cases_lists_them_with_what_tells_them_apart(stage: Stage) -> None:
    with Store.open(stage.store) as store:
        run, (full, *_) = store.run(1), store.outcomes(1)
        number = store.begin_run("dots", {}, run.environment, run.code)
        cases = [full.case, replace(full.case, batch=4, dtype="float16"), replace(full.case, batch=4, sampling=Sampling(top_k=3))]
        for case in cases:
            store.save(number, replace(full, case=case))
        store.finish_run(number, "finished")
    where = ("--run", number, "--store", stage.store)
    result = call("show", "full", *where)
    assert result.exit_code == 2
    assert "'full' names 3 cases of this run. Use a key: " in result.stderr
    paper = full.case.sampling.cfg_scale
    assert f"{cases[0].key} (dot full, batch 2, dtype float32, cfg_scale {paper}, top_k 0" in result.stderr
    assert f"{cases[1].key} (dot full, batch 4, dtype float16, cfg_scale {paper}, top_k 0" in result.stderr
    assert f"{cases[2].key} (dot full, batch 4, dtype float32, cfg_scale 1.0, top_k 3" in result.stderr
    assert good(call("show", cases[1].key, *where)) == good(call("show", cases[1].key[:8], *where))
    assert re.search(r"^ *batch  2$", good(call("show", "dot full, batch 2", *where)), re.M), "a title with its batch"


def test_a_label_of_two_models_names_the_models(stage: Stage) -> None:
    with Store.open(stage.store) as store:
        run, (full, *_) = store.run(1), store.outcomes(1)
        number = store.begin_run("dots", {}, run.environment, run.code)
        for model in ("dot", "dash"):
            store.save(number, replace(full, case=replace(full.case, model=model)))
        store.finish_run(number, "finished")
    where = ("--run", number, "--store", stage.store)
    assert re.search(r"key: \w{16} \(dot\), \w{16} \(dash\)\.", call("show", "full", *where).stderr)
    assert re.search(r"^ *model  dash$", good(call("show", "dash full", *where)), re.M), "as a list of several models names it"
    assert "Known: full.\n" in call("show", "fool", *where).stderr, "each label once"


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
