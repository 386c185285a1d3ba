"""Plans that repeat published tables and anchors."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from cachemark.analysis.papers import PaperCell, published
from cachemark.core.errors import BadCheckpoint
from cachemark.core.limits import gpu
from cachemark.core.spec import Sampling
from cachemark.gate import anchors
from cachemark.methods.base.calibrations import even
from cachemark.methods.fewer_steps import FewerSteps
from cachemark.methods.recap import ReCAP
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.planned import Planned
from cachemark.roofline.bill import bill
from cachemark.roofline.flops_budget import share

TABLES = {
    "linear-table1": "LineAR, Table 1", "linear-table4": "LineAR, Table 4", "ams-kv-table3": "AMS-KV, Table 3",
    "ams-kv-table6": "AMS-KV, Table 6",
    "lazymar-table1": "LazyMAR, Table 1", "lazymar-table2": "LazyMAR, Table 2", "lazymar-table3": "LazyMAR, Table 3",
    "marche-table1": "MARché, Table 1", "marche-table4": "MARché, Table 4",
    "scalekv-table1": "ScaleKV, Table 1", "scalekv-figure7": "ScaleKV, Figure 7b", "heatkv-figure1": "HeatKV, Figure 1",
    "ams-kv-table4": "AMS-KV, text on Infinity", "gtr-mar-h": "GtR, MAR-H", "disa-figure1": "DiSA, Figure 1e",
    "headkv-table4": "HeadKV, Table 4", "code-var": "CoDe, main table",
    "recap-mar": "ReCAP, released scripts", "fastvar-table1": "FastVAR, Table 1",
}  # fmt: skip
QUALITY_TABLES = {  # which print no speed: each model with its methods, and the budgets in parts of the full cache
    "linear-table2": {"llamagen-xl": (["linear"], [4, 6, 8]), "llamagen-xxl": (["linear"], [4, 6, 8])},
    "linear-table3": dict.fromkeys(["llamagen-xl", "janus-pro-1b"], (["random", "streaming", "h2o", "rkv", "linear"], [6, 8])),
    "ams-kv-table4": {"infinity-2b": (["ams_kv"], [])},  # of which the text prints speed
    "fastvar-table2": {"infinity-2b": (["fastvar", "fewer_scales"], [])},
}
CELLS = [cell for cell in published().cells if cell.plan]
UNEXPLAINED = [published().row("GtR, MAR-H", "GtR-H, 32")]
UNCALIBRATED = [cell for cell in published().cells if cell.model and not cell.plan]  # nobody has measured what the method asks of the model


@cache
def expanded(name: str) -> list[Planned]:
    return expand(plans.load(name))


def test_each_table_has_its_plan() -> None:
    assert {(cell.plan, cell.table) for cell in CELLS} == set(TABLES.items())
    assert set(TABLES) <= set(plans.names())
    assert {cell.table for cell in published().cells} == set(published().notes)


@pytest.mark.parametrize("name", TABLES)
def test_a_plan_is_its_table(name: str) -> None:
    """Every cell is one case and every candidate one cell. A table may compare candidates with another full cache."""
    planned, cells = expanded(name), [cell for cell in CELLS if cell.plan == name]
    keys_of = {cell.row: [p.case.key for p in planned if cell.means(p.case)] for cell in cells}
    assert all(len(keys) == 1 for keys in keys_of.values()), keys_of
    assert {p.case.key for p in planned if p.case.role == "candidate"} <= {keys[0] for keys in keys_of.values()}
    assert not [p.unsupported_reason for p in planned if p.unsupported_reason]
    assert {p.case.method for p in planned} > {"full"} or len({p.case.model for p in planned}) == len(cells), "or a model for each row"
    assert (plans.load(name).name, bool(plans.load(name).description)) == (name, True)


@pytest.mark.parametrize("name", QUALITY_TABLES)
def test_a_plan_has_the_rows_of_its_table(name: str) -> None:
    assert not [p.unsupported_reason for p in expanded(name) if p.unsupported_reason]
    for model, (methods, parts) in QUALITY_TABLES[name].items():
        full, candidates = ([p.case for p in expanded(name) if (p.case.model, p.case.role) == (model, role)]
                            for role in ("baseline", "candidate"))
        budgets = sorted((case.method, case.parameters["B"]) for case in candidates if "B" in case.parameters)
        assert budgets == sorted((method, 576 // part) for method in methods for part in parts)
        assert ({case.method for case in candidates}, [case.method for case in full]) == (set(methods), ["full"])
    assert {p.case.model for p in expanded(name)} == set(QUALITY_TABLES[name])


def test_a_plan_runs_in_the_width_of_its_paper_on_random_weights() -> None:
    for planned in (planned for name in {*TABLES, *QUALITY_TABLES} for planned in expanded(name)):
        assert planned.case.dtype in ("bfloat16", "float16")
        assert planned.case.weights in ("random:0/random:0", "random:0+random:0/random:0")
        assert (planned.case.warmup, planned.case.repeats) == (2, 5)


def test_the_roofline_time_that_is_written_down_is_the_one_that_is_worked_out() -> None:
    """Reports are made without torch, so roofline times of the papers' GPUs stand beside the printed values: here one of each table."""
    for cell in {cell.table: cell for cell in [*CELLS, *UNCALIBRATED]}.values():
        entry = MODELS.get(cell.model)
        if cell.plan:
            case = next(planned.case for planned in expanded(cell.plan) if cell.means(planned.case))
            sampling, batch, method, parameters = case.sampling, case.batch, case.method, case.parameters
        else:
            sampling, batch, method, parameters = entry.presets["paper"], cell.batch, cell.ours["method"], cell.ours.get("parameters", {})
        layout = replace(entry.shape(sampling, batch), dtype=torch.bfloat16)
        own = {} if cell.plan or method == "full" else {"calibration": even(layout, method)}
        seconds = bill(METHODS.get(method).build({**parameters, **own}), layout, entry.parameter_counts()).roofline_time(gpu(cell.gpu))
        assert cell.roofline_time == pytest.approx(seconds / batch, rel=1e-3), cell.table


def test_the_printed_flops_follow_from_the_plan() -> None:
    """Within 7 %, as the full model's do: one row of each table, and those that do not follow are noted."""
    printed = [cell for cell in CELLS if "FLOPs" in cell.printed and cell.table != "LazyMAR, Table 3" and cell not in UNEXPLAINED]
    for cell in {cell.table: cell for cell in printed}.values():
        assert flops(cell) == pytest.approx(float(cell.printed["FLOPs"].removesuffix(" T")), rel=0.07)
    for cell in UNEXPLAINED:
        assert flops(cell) > 1.5 * float(cell.printed["FLOPs"].removesuffix(" T"))
        assert any(f"{flops(cell):.1f}" in note and "do not follow" in note for note in published().notes[cell.table])


def test_fewer_steps_of_equal_flops_are_the_most_within_recaps() -> None:
    for name in (cell.row for cell in CELLS if cell.plan == "recap-mar" and cell.ours["method"] == "recap"):
        cell = published().row("ReCAP, released scripts", name)
        case = next(p.case for p in expanded(cell.plan) if cell.means(p.case))
        (rival,) = [p.case for p in expanded(cell.plan) if p.case.method == "fewer_steps" and p.case.cell == case.cell]
        layout, steps = MODELS.get(case.model).shape(case.sampling, 1), rival.parameters["steps"]
        fewer, own, more = (share(method, layout) for method in (FewerSteps(steps), ReCAP.build(case.parameters), FewerSteps(steps + 1)))
        assert fewer <= own < more
        assert f", {steps} of {case.sampling.steps}, equal FLOPs" in next(c.row for c in CELLS if c.means(rival))


def flops(cell: PaperCell) -> float:
    """10¹² of an image, without image decoding."""
    case = next(p.case for p in expanded(cell.plan) if cell.means(p.case))
    entry = MODELS.get(case.model)
    layout = entry.shape(case.sampling, 8)
    return bill(METHODS.get(case.method).build(case.parameters), layout, entry.parameter_counts(), images=False).flops / 8 / 10**12


def test_printed_latencies_and_throughputs_are_the_seconds_of_an_image() -> None:
    for cell in published().cells:
        if "img/s" in (text := cell.printed.get("throughput", "")):
            assert cell.seconds == pytest.approx(1 / float(text.removesuffix(" img/s")), rel=1e-4)
        elif "a batch" in (text := cell.printed.get("latency", "")):
            assert cell.seconds == pytest.approx(float(text.removesuffix(" s a batch")) / cell.batch, rel=1e-4)
        elif text.endswith(" ms"):
            assert cell.seconds == pytest.approx(float(text.removesuffix(" ms")) / 1000)
        elif text:
            assert cell.seconds == float(text.removesuffix(" s an image"))


ANCHORS = [name for name in plans.names() if name.startswith("anchor-")]
PUBLISHED = {  # what the images of the published figure were drawn with
    "llamagen-xl": Sampling(cfg_scale=1.75),
    "var-d30": Sampling(cfg_scale=1.5, cfg_schedule="linear", top_k=900, top_p=0.96),
    "mar-l": Sampling(cfg_scale=3.0, cfg_schedule="linear", steps=256),
}


@pytest.mark.parametrize("name", ANCHORS)
def test_an_anchor_measures_the_full_cache_with_the_files_of_its_model(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(anchors.shipped()) == set(PUBLISHED) == {name.removeprefix("anchor-") for name in ANCHORS}
    monkeypatch.chdir(tmp_path)
    plan = plans.load(name)
    (cells,) = plan.cells
    assert (plan.quality.seeds, plan.quality.samples, plan.quality.preset) == ("s50k", 50_000, "adm")
    assert plan.anchor.metric == "fid_adm_50k"
    assert (plan.name, bool(plan.description)) == (name, True)
    with pytest.raises(BadCheckpoint, match=rf"{name}\.toml:\d+: .*{cells.weights}"):
        expand(plan)
    bare = plan.model_copy(update={"cells": [cells.model_copy(update={"weights": "", "decoder_weights": ""})]})
    (only,) = expand(bare)
    assert (only.case.method, only.case.role, only.case.sampling) == ("full", "baseline", PUBLISHED[only.case.model])
