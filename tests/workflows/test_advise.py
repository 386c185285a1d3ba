"""Advice: from planted stores whose truth is known, by the real command."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import cachemark as cm
from cachemark.core.facts import Facts
from cachemark.core.limits import GPUS, Limit
from cachemark.core.result import Environment, Outcome, Status
from cachemark.core.spec import Case
from cachemark.models.costs import case_bill
from cachemark.models.registry import MODELS
from cachemark.plans.expand import expand
from cachemark.plans.schema import Plan
from cachemark.store.db import Store
from cachemark.trial.child.bench import method_factory
from cachemark.workflows.frames import NothingStored
from support.stages import call, data

H100 = Environment("NVIDIA H100 80GB HBM3", "nvidia-h100", "0" * 16, {})
CPU = Environment("Example CPU", "example", "1" * 16, {})
SEEDS = 512
Truth = Mapping[str, tuple[float, float]]  # by budget of linear: fraction of the ideal gain, color consistency lost


@dataclass(frozen=True)
class Planted:
    path: Path

    def add(self, batches: Sequence[int], truth: Truth, *, where: Environment = H100, weights: str = "9c2e/5b71", **facts: Any) -> None:
        cell = {"model": "llamagen-xl", "methods": ["linear"], "budgets": list(truth), "dtype": "bfloat16"}
        plan = Plan.model_validate({"name": "planted", "cells": [{**cell, "batch": batch} for batch in batches],
                                    "fidelity": {"seeds": "s2k", "samples": SEEDS}})
        cases = [p.case for p in expand(plan, "cuda" if where is H100 else "cpu") if p.case.role in ("candidate", "baseline")]
        with Store.open(self.path) as store, store.new_run("planted", plan.model_dump(mode="json"), where, {}) as run:
            for case in cases:
                made = outcome(replace(case, weights=weights), truth)
                store.save(run, replace(made, facts=made.facts | Facts.from_json(facts)) if case.role == "candidate" else made)

    def ask(self, *more: str, batch: int = 64) -> dict[str, Any]:
        return asked("llamagen-xl", "--batch", str(batch), "--store", str(self.path), *more)


def asked(model: str, *more: str) -> dict[str, Any]:
    return dict(data(call("advise", "--model", model, "--card", "h100", "--json", *more)))


LIMITS: dict[tuple[str, int], Limit] = {}  # by label and batch, each added up once


def limit(case: Case) -> Limit:
    key = case.label, case.batch
    if key not in LIMITS:
        LIMITS[key] = case_bill(case, MODELS.get(case.model), method_factory(case)()).limit(GPUS["h100"])
    return LIMITS[key]


def outcome(case: Case, truth: Truth) -> Outcome:
    """A case as the truth has it: the full cache takes 1.4 times its roofline time."""
    reached, lost = (1.0, 0.0) if case.role == "baseline" else truth[case.budget]
    seconds = 1.4 * (limit(case).roofline_time if case.role == "baseline" else limit(case).roofline_time / reached)
    spoilt, kv = round(lost * SEEDS), case.batch * 212e6 * (1.0 if case.role == "baseline" else case.parameters["B"] / 576)
    samples = {"latency": [seconds * (1 + 0.0005 * k) for k in range(9)], "kv_allocated": [kv], "kv_logical": [kv], "kv_state": [0.0],
               "peak_memory": [kv + case.batch * 40e6], "color_consistency": [0.0] * spoilt + [1.0] * (SEEDS - spoilt)}
    if case.role == "candidate":
        stream = random.Random(f"{case.label} {case.batch}")
        samples["token_agreement"] = [0.6 + 0.1 * stream.random() for _ in range(SEEDS)]
    return Outcome(case, Status.OK, samples, seconds=1.0, facts=Facts(kernel="sdpa", limit=limit(case)))


# 1/8 gains most and spoils one image in five, 1/4 is the best that does not, 1/2 gains less
TRUTH = {"1/2": (0.95, 0.0), "1/4": (0.95, 0.0), "1/8": (0.95, 0.2)}


@pytest.fixture
def store(tmp_path: Path) -> Planted:
    return Planted(tmp_path / "s.sqlite")


def test_the_full_cache_at_batch_1_and_the_planted_best_at_a_large_one(store: Planted) -> None:
    store.add([1, 64], TRUTH)
    alone, many = store.ask(batch=1), store.ask(batch=64)
    assert (alone["recommended"], many["recommended"], len(many["not_recommended"])) == ("full", "LineAR at 1/4", 1)
    assert [line["name"] for line in many["ranked"]] == ["LineAR at 1/4", "LineAR at 1/2"]
    first = many["ranked"][0]
    assert first["low"] < first["gain"] <= first["allowed"]
    assert (first["basis"], first["metric"], first["quality"]["value"]) == ("measured", "color_consistency", 1.0)
    assert (many["measure"], many["commands"]) == (False, [])
    text = call("advise", "--model", "llamagen-xl", "--card", "h100", "--batch", 64, "--store", store.path).stdout
    assert re.match(r"(?s)Use LineAR at 1/4\. 1\.70×.*\n  1\. LineAR at 1/4: 1\.70×", text)


def test_a_prediction_is_marked_and_says_how_to_measure_it(store: Planted) -> None:
    store.add([16], TRUTH)
    advice = store.ask(batch=64)
    first = advice["ranked"][0]
    assert (advice["recommended"], first["basis"]) == ("LineAR at 1/4", "predicted")
    assert 0.9 < first["gain"] / first["allowed"] < 1, "the efficiency measured at batch 16"
    assert advice["commands"] == ["cachemark roofline llamagen-xl --card h100 --batch 64",
                                 f"cachemark run --store {store.path} linear-table2 --device cuda"]


UNSEEN = "random:0/random:0"  # its images are not judged


@pytest.mark.parametrize(("batch", "truth", "more", "recommended", "basis"), [
    pytest.param(16, TRUTH, {"where": CPU}, "full", {"bound"}, id="never measured on the device"),
    pytest.param(64, TRUTH, {"weights": UNSEEN}, "full", set(), id="fidelity alone"),
    pytest.param(64, {"1/2": (0.95, 0.0), "1/4": (1.5, 0.0)}, {}, "LineAR at 1/2", {"measured"}, id="faster than its roofline time")])
def test_what_shows_no_gain(batch: int, truth: Truth, more: dict[str, Any], recommended: str, basis: set[str], store: Planted) -> None:
    store.add([batch], truth, **more)
    advice = store.ask()
    assert (advice["recommended"], {line["basis"] for line in advice["ranked"]}) == (recommended, basis)
    assert "exceeds the" in str(advice["not_recommended"]) or recommended == "full"


def test_quality_may_come_from_another_device_and_speed_may_not(store: Planted) -> None:
    store.add([16], TRUTH, where=CPU)
    store.add([64], TRUTH, weights=UNSEEN)
    advice = store.ask()
    assert (advice["recommended"], advice["ranked"][0]["basis"]) == ("LineAR at 1/4", "measured")


def test_memory_and_the_margin_change_the_answer(store: Planted, tmp_path: Path) -> None:
    store.add([64], {"1/2": (0.6, 0.0), "1/4": (0.4, 0.0)})
    asked = [store.ask(*more) for more in ((), ("--memory", "16GiB"), ("--memory", "9GiB"), ("--memory", "1GiB"))]
    assert [advice["recommended"] for advice in asked] == ["full", "LineAR at 1/2", "LineAR at 1/4", "full"]
    assert "does not fit" in asked[2]["not_recommended"][0]["why_not"]
    assert asked[3]["ranked"] == []
    (near := Planted(tmp_path / "near.sqlite")).add([64], {"1/2": (0.95, 0.0), "1/4": (0.95, 0.015)})
    assert [near.ask(*more)["recommended"] for more in ((), ("--max-loss", "0.01"))] == ["LineAR at 1/4", "LineAR at 1/2"]


@pytest.mark.parametrize(("model", "batch", "most"), [("glm-image", 1, 1.01), ("glm-image", 16, 1.05)])
def test_without_results_it_explains_that_no_cache_can_help(model: str, batch: int, most: float) -> None:
    """Its keys and values take 40 KiB per token, and its weights 18 GB."""
    text = asked(model, "--batch", str(batch), "--store", "none.sqlite")["text"]
    assert "No cache can help" in text
    bound, cost = (float(number) for number in re.findall(r"(\d+\.\d+)×", text))
    assert 1 <= bound < most
    assert 1 <= cost < 1.1, "eight tokens cost little more than one"
    with pytest.warns(NothingStored, match=r"No result of .* is stored\..* To measure it: cm\."):
        assert cm.advise(model, "H100", batch=batch, store=None).empty


def test_a_case_without_a_speedup_was_measured_all_the_same(store: Planted) -> None:
    store.add([64], {"1/4": TRUTH["1/4"]}, kernel="flash")
    (line,) = store.ask()["ranked"]
    assert (line["basis"], line["low"]) == ("bound", None)
    assert line["no_speedup"].startswith("Attention kernels differ")
