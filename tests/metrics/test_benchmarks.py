"""Benchmarks of text-to-image models in a plan: measured completely, or not, with what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cachemark.core import seeds
from cachemark.metrics.base import ImageBatch, MetricContext
from cachemark.metrics.compute import detector, pretrained
from cachemark.metrics.compute.detector import Detection
from cachemark.metrics.preference_scores import HumanPreference
from cachemark.metrics.registry import image_metrics
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.plans import metrics, schema
from cachemark.plans.expand import Planned, expand
from cachemark.trial.child.bench import Bench
from cachemark.trial.request import TrialRequest
from support.examples import short_plan

TASKS = [{"tag": "single_object", "prompt": "a photo of a dog", "include": [{"class": "dog", "count": 1}]},
         {"tag": "colors", "prompt": "a photo of a red cow", "include": [{"class": "cow", "count": 1, "color": "red"}]}]
TABLE = "item_id,proposition_id,dependency,tuple,question_natural_language\n,,0,,\n1,1,0,entity (dog),Is there a dog?\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lists of both benchmarks; every network is there, and the detector knows a dog and a cow."""
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    (tmp_path / "dpg").mkdir()
    (tmp_path / "dpg" / "1.txt").write_text("a dog")
    (tmp_path / "dpg_bench.csv").write_text(TABLE)
    monkeypatch.setattr(pretrained.PublishedNetwork, "identity", lambda self, folder: f"hash of {folder}")
    monkeypatch.setattr(detector, "classes", lambda folder: {"dog", "cow"})
    for name, value in {"package": "json", "weights": (), "build": lambda *_: lambda image, prompt: float(len(prompt))}.items():
        monkeypatch.setattr(HumanPreference, name, value)
    return tmp_path


def stated(prompts: str = "", **requested: dict[str, str]) -> dict[str, Any]:
    """The part of a case's identity that metrics decide, of a model that is given prompts."""
    entry = replace(MODELS.get("tiny-t2i"), quality=())
    tables = [schema.MetricTable.model_validate({"name": name, **options}) for name, options in requested.items()]
    return dict(metrics.stated(tables, entry, Request(prompts=prompts, metrics=metrics.options_of(tables))))


def test_what_decides_a_figure_is_a_part_of_what_a_case_is(here: Path) -> None:
    requested = {"geneval": {"detector": "found", "clip": "named"}, "dpg": {"weights": "asked"}, "hpsv2": {"weights": str(here)}}
    identity = stated(str(here / "m.jsonl"), **requested)
    assert set(identity) == {"geneval", "dpg", "hpsv2"}
    assert {**identity["geneval"], "tasks": ""} == {"detector": "hash of found", "clip": "hash of named", "tasks": ""}
    assert "own prompts" in identity["dpg"]["missing"]
    other = stated(str(here / "dpg"), **requested)
    assert (other["dpg"]["weights"], "missing" in other["geneval"]) == ("hash of asked", True)
    assert stated(str(here / "m.jsonl")) == {}
    (here / "m.jsonl").write_text(json.dumps(TASKS[0]))
    assert stated(str(here / "m.jsonl"), **requested)["geneval"]["tasks"] != identity["geneval"]["tasks"]


GENEVAL = {"detector": "d", "clip": "c"}
LACKING: dict[str, tuple[str, str, dict[str, str], str]] = {
    "prompts": ("", "geneval", GENEVAL, "own prompts, named under fidelity.prompts, get "),
    "others": ("own64", "geneval", GENEVAL, "needs its own prompts"),
    "colours": ("m.jsonl", "geneval", {"detector": "d"}, "needs a CLIP model for colors"),
    "questions": ("dpg", "dpg", {"weights": "v"}, "needs dpg_bench.csv next to the prompts in "),
    "package": ("", "image_reward", {"weights": "w"}, "needs ImageReward, get it with: pip install image-reward"),
}


@pytest.mark.parametrize("kind", LACKING)
def test_a_benchmark_that_lacks_something_is_not_measured_and_says_what(here: Path, kind: str) -> None:
    prompts, name, options, says = LACKING[kind]
    (here / "dpg_bench.csv").unlink()
    missing = stated(str(here / prompts) if prompts in ("m.jsonl", "dpg") else prompts, **{name: options})[name]["missing"]
    assert missing.startswith("not measured: needs ")
    assert says in missing
    assert "get it with: " in missing or "get them with: " in missing
    assert "\n" not in missing


def test_a_detector_that_cannot_see_what_is_asked_for_measures_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "classes", lambda folder: {"dog"})
    missing = stated(str(here / "m.jsonl"), geneval=GENEVAL)["geneval"]["missing"]
    assert missing.startswith("not measured: the detector in 'd' knows no 'cow', get one that does with: hf download ")


def test_values_are_those_of_the_images_that_are_asked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of a kind that no image has give no value; every value is beside its seed."""
    monkeypatch.setattr(detector, "PretrainedDetector", lambda folder, device: lambda image: [Detection("dog", 0.9, (0, 0, 4, 4))])
    monkeypatch.setattr(detector, "ClipColors", lambda clip: None)
    monkeypatch.setattr(pretrained.Clip, "shared", lambda setting, folder: None)
    context = MetricContext(options={**GENEVAL, "weights": str(here)}, prompts=("a dog", "cow"), prompt_list=str(here / "m.jsonl"))
    images = torch.zeros(3, 3, 8, 8)
    values: dict[str, list[float]] = {}
    for name, cls in image_metrics().items():
        metric = cls().prepared(context)
        if cls.plan_name in ("geneval", "hpsv2") and metric.applies([0, 1, 0]):
            values[name] = metric.measure(ImageBatch(images, images, images, images, [0, 1, 0], [0, 1, 2])).tolist()
            assert metric.applies([0, 0]) == (name != "geneval_colors")
    assert values == {"geneval": [1, 0, 1], "geneval_single_object": [1, 1], "geneval_colors": [0], "hpsv2": [5, 3, 5]}


HPS = '{ name = "hpsv2", weights = "HERE" }'


def cases(here: Path, more: str, model: str = "tiny-t2i") -> dict[str, Planned]:
    (here / "plan.toml").write_text(
        short_plan(f'model = "{model}"\nmethods = ["window"]\nbudgets = ["1/4"]', top=f"metrics = [{more}]"))
    return {planned.case.label: planned for planned in expand(schema.load(str(here / "plan.toml")))}


def test_a_trial_scores_every_image_at_its_seed(here: Path) -> None:
    """Of the full cache, whose images are generated anyway."""
    planned = cases(here, f'{HPS}, {{ name = "geneval", detector = "d" }}'.replace("HERE", str(here)))
    full = planned["full"]
    bench = Bench.load(full)
    measured = {metric.name: metric for metric in bench.metrics(full.case)}
    assert "geneval" not in measured
    labels, images = seeds.subset("s64", len(bench.entry.prompts)).labels[:2], torch.zeros(2, 3, 64, 64)
    values = measured["hpsv2"].measure(ImageBatch(images, images, images, images, labels, [0, 1]))
    assert values.tolist() == [len(bench.entry.prompts[label]) for label in labels]
    assert full.case.key != cases(here, "")["full"].case.key
    of_classes = cases(here, HPS.replace("HERE", str(here)), "tiny-llamagen")["full"].case.metrics
    assert "hpsv2" not in of_classes, "a model of classes has no prompts"


def test_a_trial_that_asks_other_people_s_code_is_offline(here: Path) -> None:
    asks, not_ = (TrialRequest(cases=tuple(cases(here, more).values())).environment for more in (HPS.replace("HERE", str(here)), ""))
    assert (asks["HF_HUB_OFFLINE"], asks["TORCH_FORCE_WEIGHTS_ONLY_LOAD"]) == ("1", "1")
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in not_
