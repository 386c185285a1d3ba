"""The benchmarks of text-to-image models as a plan asks for them: measured whole, or not, with the one thing that is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.analysis.report_row import ON_DEMAND
from cachemark.core import seeds
from cachemark.core.errors import BadCheckpoint
from cachemark.metrics import benchmarks
from cachemark.metrics.benchmarks import NAMES, Benchmarks, stated
from cachemark.metrics.compute import clip, detector, dpg, preference
from cachemark.metrics.compute.geneval import Found
from cachemark.metrics.compute.preference import Preference
from cachemark.models.protocol import Request
from cachemark.plans import schema
from cachemark.plans.expand import Planned, expand
from cachemark.trial.child.bench import Bench
from cachemark.trial.request import TrialRequest
from support.measuring import run_case

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
    for module in (detector, clip, dpg):
        monkeypatch.setattr(module, "identity", lambda folder: f"hash of {folder}")
    monkeypatch.setattr(detector, "classes", lambda folder: {"dog", "cow"})
    stub = Preference("json", "json", (), "nobody/json", lambda package, folder, device: lambda image, prompt: float(len(prompt)))
    for module in (benchmarks, preference):
        monkeypatch.setitem(module.PREFERENCES, "hpsv2", stub)
    return tmp_path


def test_what_decides_a_figure_is_a_part_of_what_a_case_is(here: Path) -> None:
    whole = Request(prompts=str(here / "m.jsonl"), detector="found", clip="named", vqa="asked", hpsv2=str(here))
    found = stated(whole)
    assert set(found) == {"geneval", "dpg", "hpsv2"}
    assert {**found["geneval"], "tasks": ""} == {"detector": "hash of found", "clip": "hash of named", "tasks": ""}
    assert "own prompts" in found["dpg"]["missing"]
    other = stated(replace(whole, prompts=str(here / "dpg")))
    assert (other["dpg"]["weights"], "missing" in other["geneval"]) == ("hash of asked", True)
    assert stated(Request(prompts=str(here / "m.jsonl"), clip="named")) == {}
    (here / "m.jsonl").write_text(json.dumps(TASKS[0]))
    assert stated(whole)["geneval"]["tasks"] != found["geneval"]["tasks"]


LACKING: dict[str, tuple[Callable[[Path], Request], str, str]] = {
    "prompts": (lambda here: Request(detector="d", clip="c"), "geneval", "own prompts, named under fidelity.prompts, get "),
    "others": (lambda here: Request(detector="d", clip="c", prompts="own64"), "geneval", "needs its own prompts"),
    "colours": (lambda here: Request(detector="d", prompts=str(here / "m.jsonl")), "geneval", "needs a CLIP model for colours"),
    "questions": (lambda here: Request(vqa="v", prompts=str(here / "dpg")), "dpg", "needs dpg_bench.csv beside the prompts in "),
    "package": (lambda here: Request(image_reward=str(here)), "image_reward", "needs ImageReward, get it with: pip install image-reward"),
}


@pytest.mark.parametrize("kind", LACKING)
def test_a_benchmark_that_lacks_something_is_not_measured_and_says_what(here: Path, kind: str) -> None:
    request, name, says = LACKING[kind]
    (here / "dpg_bench.csv").unlink()
    missing = stated(request(here))[name]["missing"]
    assert missing.startswith("not measured: needs ")
    assert says in missing
    assert "get it with: " in missing or "get them with: " in missing
    assert "\n" not in missing


def test_a_detector_that_cannot_see_what_is_asked_for_measures_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "classes", lambda folder: {"dog"})
    missing = stated(Request(prompts=str(here / "m.jsonl"), detector="d", clip="c"))["geneval"]["missing"]
    assert missing.startswith("not measured: the detector in 'd' knows no 'cow', get one that does with: hf download ")


def test_figures_are_those_of_the_images_that_are_asked_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of a kind that no image has are no figure; every value stands beside its seed."""
    monkeypatch.setattr(benchmarks, "PretrainedDetector", lambda folder, device: lambda image: [Found("dog", 0.9, (0, 0, 4, 4))])
    monkeypatch.setattr(benchmarks, "ClipColours", lambda clip: None)
    given = Benchmarks(Request(prompts=str(here / "m.jsonl"), detector="d", clip="c", hpsv2=str(here)), ("a dog", "cow"), lambda: None)
    measured = dict.fromkeys(NAMES, False) | {"geneval": True, "hpsv2": True}
    images = torch.zeros(3, 3, 8, 8)
    assert list(given.figures(measured, [0, 0])) == ["geneval", "geneval_single_object", "hpsv2"]
    found = {name: figure(images, [0, 1, 0]).tolist() for name, figure in given.figures(measured, [0, 1, 0]).items()}
    assert found == {"geneval": [1, 0, 1], "geneval_single_object": [1, 1], "geneval_colors": [0], "hpsv2": [5, 3, 5]}
    assert given.figures(dict.fromkeys(NAMES, False), [0, 1]) == {}


def test_every_figure_of_a_benchmark_is_asked_for_by_its_key() -> None:
    assert {ON_DEMAND[name] for name in NAMES} == set(NAMES)


PLAN = """
name = "captions"
[timing]
warmup = 1
repeats = 3
[fidelity]
samples = 2
{more}
[[cells]]
model = "{model}"
methods = ["window"]
budgets = ["1/4"]
batch = 2
"""


def cases(here: Path, more: str, model: str = "tiny-t2i") -> dict[str, Planned]:
    (here / "plan.toml").write_text(PLAN.format(more=more, model=model))
    return {planned.case.label: planned for planned in expand(schema.load(str(here / "plan.toml")))}


def test_a_trial_scores_every_image_at_its_seed(here: Path) -> None:
    """Of the full cache, whose images are generated anyway."""
    planned = cases(here, f'hpsv2 = "{here}"\ndetector = "d"')
    full = planned["full"]
    bench = Bench.load(full)
    figures = bench.figures(full.case)
    assert "geneval" not in figures
    labels = seeds.subset("s64", len(bench.entry.prompts)).labels[:2]
    found = figures["hpsv2"](torch.zeros(2, 3, 64, 64), torch.zeros(2, 3, 64, 64), labels)
    assert found.tolist() == [len(bench.entry.prompts[label]) for label in labels]
    assert full.case.key != cases(here, "")["full"].case.key
    assert "hpsv2" not in cases(here, f'hpsv2 = "{here}"', "tiny-llamagen")["full"].case.evaluation, "a model of classes has no prompts"


@pytest.mark.slow
def test_a_whole_trial_has_a_figure_for_each_seed(here: Path) -> None:
    arm = cases(here, f'hpsv2 = "{here}"')["window 1/4"]
    outcome, _ = run_case(arm, Bench.load(arm))
    assert outcome.ok
    assert len(outcome.samples["hpsv2"]) == 2


def test_a_trial_that_asks_other_people_s_code_is_offline(here: Path) -> None:
    asks, not_ = (TrialRequest(cases=tuple(cases(here, more).values())).environment for more in (f'hpsv2 = "{here}"', ""))
    assert (asks["HF_HUB_OFFLINE"], asks["TORCH_FORCE_WEIGHTS_ONLY_LOAD"]) == ("1", "1")
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in not_


def test_a_file_that_was_damaged_meanwhile_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(package: Any, folder: Path, device: str) -> Any:
        raise ValueError("half a file")

    monkeypatch.setitem(benchmarks.PREFERENCES, "hpsv2", replace(benchmarks.PREFERENCES["hpsv2"], build=broken))
    figure: Callable[[Tensor, Sequence[int]], Tensor] = Benchmarks(Request(hpsv2=str(here)), ("a",), lambda: None).figures(
        dict.fromkeys(NAMES, False) | {"hpsv2": True}, [0])["hpsv2"]
    with pytest.raises(BadCheckpoint, match="half a file"):
        figure(torch.zeros(1, 3, 8, 8), [0])
