"""What plans cost, on paper and from what they took before; what a deadline lets begin, and in which order."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cachemark.core import limits
from cachemark.core.errors import BadParameter, Infrastructure
from cachemark.core.limits import Rates
from cachemark.core.result import Outcome, Status
from cachemark.machine import gpu
from cachemark.methods.full import Full
from cachemark.models import costs
from cachemark.models.registry import MODELS
from cachemark.plans import price, schema as plans
from cachemark.plans.deadline import Deadline, breadth_first
from cachemark.plans.expand import expand
from cachemark.plans.planned import Planned, Prepared
from cachemark.store.db import Store
from cachemark.workflows.decidable import too_few_seeds
from cachemark.workflows.list import COSTS
from cachemark.workflows.price import _memory, price_list
from cachemark.workflows.run import PlanRunner, run as measure
from cachemark.workflows.session import Machine
from support import stages, stub
from support.fake_nvml import FakeNvml
from support.stages import call
from tools.cards.plans import cost

from .test_paper_plans import TABLES


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the files of published models are not here


def rated(planned: Iterable[Planned]) -> list[Prepared]:
    """The cases with the rates of an H100."""
    return [Prepared.of(each, rates=limits.gpu("h100", each.case.dtype)) for each in planned]


# Anchors and tables of papers are in test_paper_plans.py.
@pytest.mark.parametrize("name", [name for name in plans.names() if not name.startswith("anchor-") and name not in TABLES])
def test_shipped_plans_are_named_as_their_files_and_mean_something(name: str) -> None:
    plan = price.without_missing(plans.load(name))[0]
    cells = [block.model_copy(update={"budgets": block.budgets[-1:]}) for block in plan.cells]  # the smallest
    methods = {planned.case.method for planned in expand(plan.model_copy(update={"cells": cells}), "cuda")}
    assert plan.name == name
    assert methods > {"full"} or (name, methods) == ("bundled", {"full"})


def test_the_listed_costs_are_estimates_of_the_plans() -> None:
    stored = json.loads(COSTS.read_text())
    assert list(stored) == plans.names()
    for name in ("demo", "nightly", "linear-table4"):
        assert stored[name] == cost(name), "write it again: python -m tools.cards docs --costs"


def test_missing_files_are_all_named_and_priced_as_if_they_were_here(tmp_path: Path) -> None:
    plan = plans.load("anchor-mar-l")
    bare, missing = price.without_missing(plan)
    assert missing == ["weights/mar/mar_large/checkpoint-last.pth", "weights/mar/kl16.ckpt",
                       "weights/weights-inception-2015-12-05-6726825d.pth", "weights/VIRTUAL_imagenet256_labeled.npz"]
    assert price.fetch_commands(plan, missing) == dict.fromkeys(missing[:2], "cachemark weights fetch mar-l")
    todo = rated(expand(bare, "cuda"))
    (absent,), (present,) = (price.by_model(plan, todo, missing=files) for files in (missing, []))
    assert absent.hours - price.STARTUP / 3600 > 20 * (present.hours - price.STARTUP / 3600), "50 000 images are most of the price"
    (tmp_path / "janus").mkdir()
    cells = [{"model": "janus-pro-1b", "methods": ["linear"], "weights": folder} for folder in ("janus", "absent/janus")]
    metrics = [{"name": "clip_score", "weights": "absent/clip"}, {"name": "geneval", "detector": "absent/detector", "clip": "janus"}]
    plan = plans.Plan.model_validate({"name": "p", "cells": cells, "metrics": metrics, "fidelity": {"prompts": "absent/prompts.txt"}})
    bare, missing = price.without_missing(plan)
    assert missing == ["absent/janus", "absent/clip", "absent/detector", "absent/prompts.txt"]
    assert bare.metrics == []
    assert [cell.weights for cell in bare.cells] == ["janus", ""], "published weights may be a folder"
    assert price.without_missing(bare) == (bare, [])
    packaged = plan.model_copy(update={"fidelity": plan.fidelity.model_copy(update={"prompts": "own64"})})
    assert "own64" not in price.without_missing(packaged)[1]


def test_methods_that_need_a_measurement_of_missing_weights_are_priced_and_the_files_named() -> None:
    methods = ["ams_kv", "scalekv", "heatkv", "hack", "hackpp"]
    cell = {"model": "var-d16", "methods": methods, "budgets": ["1/2", "ams_kv"], "weights": "absent/var.pth", "batch": 4}
    prices = price_list(plans.Plan.model_validate({"name": "p", "cells": [cell]}), on="h100")
    assert prices.missing == ("absent/var.pth",)
    assert prices.cases == 1 + 2 * len(methods)
    with pytest.raises(BadParameter, match="no inter-scale similarity found"):  # as in a run with random weights
        price_list(plans.Plan.model_validate({"name": "p", "cells": [{**cell, "weights": ""}]}), on="h100")


def test_models_that_need_more_memory_than_there_is_are_named() -> None:
    text = call("price", "linear-table4", "--card", "4090").output
    assert re.findall(r"(\S+) needs (\S+ GiB), and there are 24.0 GiB. Lower batch", text) == [
        ("llamagen-xl", "52.4 GiB"), ("janus-pro-7b", "47.2 GiB"), ("lumina-mgpt-7b-768", "40.7 GiB")]
    assert "and there are" not in call("price", "linear-table4", "--card", "h100").output
    for cap, named in (("64MiB", 0), ("16MiB", 2)):
        assert call("price", "demo", "--memory-cap", cap).output.count(f"and there are {cap[:2]}.0 MiB") == named


def test_memory_of_a_gpu_is_the_driver_s_and_0_where_it_says_none(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process takes none of it, and a price of stored durations needs no driver."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    devices = gpu.gpus(nvml)
    for names, found, expected in (((), devices, 80 << 30), (("1",), devices, 80 << 30), (("9",), devices, 0), ((), [], 0)):
        monkeypatch.setattr(gpu, "gpus", lambda found=found: found)
        assert _memory("", Machine("cuda", gpus=names)) == expected
    monkeypatch.setattr(gpu, "gpus", partial(gpu.first, []))
    assert _memory("", Machine("cuda")) == 0


def test_what_was_measured_comes_before_paper() -> None:
    todo = rated(expand(stub.tiny_plan()))
    rows = price.by_model(stub.tiny_plan(), todo, stored={todo[3].case.key: 77.0}.get)
    assert [(row.model, row.from_stored) for row in rows] == [("llamagen-b", 1), ("llamagen-l", 0)]
    expected = price.STARTUP + 77.0 + sum(price.price(p, None).seconds for p in todo if p.case.model == "llamagen-b" and p is not todo[3])
    assert rows[0].hours * 3600 == pytest.approx(expected)
    alone, shared = (sum(row.hours for row in price.by_model(stub.tiny_plan(trial=trial), todo)) for trial in ("case", "model"))
    assert (alone - shared) * 3600 == pytest.approx(price.STARTUP * (len(todo) - 2)), "a process for each case, or for each model"


@pytest.mark.parametrize("model", ["llamagen-b", "tiny-var", "tiny-mar"])
def test_the_price_stands_on_the_roofline_time_that_reports_hold_times_against(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"name": "p", "cells": [{"model": model, "methods": ["full"], "batch": 4, "dtype": "bfloat16"}]}
    planned = expand(plans.Plan.model_validate(table))[0]
    case, entry, rates = planned.case, MODELS.get(model), limits.gpu("h100")
    counted = costs.case_bill(case, entry, Full()).roofline_time(rates)  # type: ignore[union-attr]
    assert price.roofline_time(planned, rates, price.paper(planned)) > counted, "launches come on top"
    monkeypatch.setattr(price, "CALL", 0.0)
    assert price.roofline_time(planned, rates, price.paper(planned)) == counted
    monkeypatch.setattr(Planned, "entry", replace(entry, parameter_counts=lambda: None))
    assert counted / 4 < price.roofline_time(planned, rates, price.paper(planned)) < 2 * counted, "of a model that nobody has counted"


def test_a_price_measures_nothing(tmp_path: Path) -> None:
    result = stages.call("price", "nightly", "--card", "h100", "--store", tmp_path / "none.sqlite", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["cases"] == printed["to_run"] == sum(row["cases"] for row in printed["models"])
    assert printed["hours"] == pytest.approx(sum(row["hours"] for row in printed["models"]))
    assert "hf:FoundationVision/var" in printed["missing"]
    assert not list(tmp_path.iterdir())


class Hours:
    """A clock that a stub moves on: each case takes ``each`` seconds."""

    def __init__(self, each: float) -> None:
        self.now, self.each, self.begun = 100.0, each, list[tuple[str, float]]()

    def begin(self, case: object) -> None:
        self.begun.append((case.key, self.now))  # type: ignore[attr-defined]
        self.now += self.each


def run(seconds: float, each: float, priced: float, *, measured: bool = True, **more: object) -> tuple[Hours, list[Outcome]]:
    clock = Hours(each)
    deadline = Deadline(seconds, lambda p: (priced, measured), clock=lambda: clock.now)
    with Store.open(Path("s.sqlite")) as store:
        summary = PlanRunner(stub.tiny_plan(**more), store, stub.Stub(before=clock.begin), deadline=deadline).measure()
        return clock, store.outcomes(summary.run_id)


def test_a_plan_twice_too_long_gives_every_cell_its_first_pair_and_starts_nothing_late() -> None:
    """Twelve cases of 10 s, and a minute."""
    clock, outcomes = run(60.0, 10.0, 10.0)
    reached = [o.case for o in outcomes if o.ok]
    late = [o for o in outcomes if o.status is Status.NOT_REACHED]
    assert (len(reached), len(late)) == (6, 6)
    for cell in {o.case.cell for o in outcomes}:
        assert [c.role for c in reached if c.cell == cell][:2] == ["baseline", "candidate"], "a full cache and a candidate beside it"
    assert all(begun + 10 <= 160 for _, begun in clock.begun)
    assert len(clock.begun) == 6
    assert late[0].log == "It was not started: it takes about 10 s, and 0 s were left before the deadline."


def test_paper_is_corrected_by_what_cases_really_take_and_declared_priority_comes_first() -> None:
    """Paper says 1 s, cases take 2 (as the stub reports them): the third begins only with 2 s left."""
    cells = [stub.CELLS[0] | {"priority": 5}, stub.CELLS[1] | {"priority": 1}]
    clock, outcomes = run(5.0, 2.0, 1.0, measured=False, cells=cells)
    assert [begun for _, begun in clock.begun] == [100.0, 102.0]
    assert [o.case.model for o in outcomes if o.ok] == ["llamagen-l"] * 2


def test_paper_prices_with_the_rates_of_those_who_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = stub.Stub()
    monkeypatch.setattr("cachemark.workflows.price.rate", lambda *_: pytest.fail("rates were measured here"))
    monkeypatch.setattr(Machine, "places", lambda *_: nullcontext(worker))

    def within(seconds: float, rates: dict[str, Rates]) -> Counter[Status]:
        worker.rates = lambda *_: rates  # type: ignore[method-assign]
        summary = measure(stub.tiny_plan(), tmp_path / "s.sqlite", machine=Machine("cpu", 1), fresh=True, seconds=seconds)
        return Counter(o.status for o in summary.outcomes)

    fast, slow = ({"float32": Rates(rate, rate)} for rate in (1e30, 1.0))
    assert within(3600.0, slow) == {Status.NOT_REACHED: 12}
    with pytest.raises(Infrastructure, match="rates of cpu cannot be measured"):
        within(3600.0, {})
    assert within(3600.0, fast) == {Status.OK: 12}
    assert within(3600.0, {}) == {Status.OK: 12}, "stored durations need no rates"


def test_the_order_is_breadth_first() -> None:
    planned = expand(stub.tiny_plan())
    order = [(p.case.model[-1], p.case.label) for group in breadth_first(planned, "case") for p in group]
    assert order[:4] == [("b", "full"), ("b", "window 1/2"), ("l", "full"), ("l", "window 1/2")]
    assert len(order) == len(planned) == 12
    late = [replace(p, case=replace(p.case, role=role)) for p, role in zip(planned, ("other_seeds", "baseline", "candidate"), strict=False)]
    assert [p.case.role for group in breadth_first(late, "case") for p in group] == ["baseline", "candidate", "other_seeds"]
    shared = breadth_first(planned, "model")
    assert [len(group) for group in shared][:2] == [2, 2], "what follows each other on one model shares a process"


def test_a_plan_says_beforehand_how_many_seeds_a_rank_needs() -> None:
    for model, fidelity, note in (
        ("tiny-llamagen", {"samples": 32}, "Set samples = 80 in [fidelity]"), ("tiny-llamagen", {"samples": 96}, ""),
        ("llamagen-b", {"samples": 32}, ""), ("tiny-llamagen", {"samples": 32, "seeds": "s64"}, ', seeds = "s256" in [fidelity]'),
    ):
        cells = [{"model": model, "methods": ["window", "rkv", "linear"]}]
        text = too_few_seeds(expand(plans.Plan.model_validate({"name": "p", "fidelity": fidelity, "cells": cells})))
        assert text.startswith("3 comparisons need 80 seeds") is bool(note)
        assert note in text
