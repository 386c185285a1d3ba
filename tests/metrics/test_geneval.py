"""Rules of GenEval and DPG-Bench on detections and answers made by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cachemark.core import seeds
from cachemark.metrics import object_scores, question_score
from cachemark.metrics.base import ImageBatch, ImageMetric, MetricContext
from cachemark.metrics.compute import detector, pretrained
from cachemark.metrics.object_scores import counted, is_right, relations
from cachemark.metrics.preference_scores import HumanPreference
from cachemark.metrics.registry import image_metrics
from cachemark.models.prompt_lists import PromptList, Question
from cachemark.models.protocol import Request
from cachemark.models.registry import MODELS
from cachemark.plans import metrics, schema
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.trial.child.bench import Bench
from cachemark.trial.request import TrialRequest
from support.examples import short_plan


def seen(name: str, score: float = 0.95, box: tuple[float, ...] = (0, 0, 10, 10)) -> detector.Detection:
    return detector.Detection(name, score, box)


def nobody(objects: Sequence[detector.Detection], name: str) -> list[str]:
    raise AssertionError("no colour was asked for")


def task(*include: dict[str, Any], exclude: Sequence[dict[str, Any]] = (), tag: str = "two_object") -> dict[str, Any]:
    return {"tag": tag, "prompt": "x", "include": [*include], "exclude": [*exclude]}


DOG, CAT = {"class": "dog", "count": 1}, {"class": "cat", "count": 1}
THREE = task({"class": "dog", "count": 3}, exclude=[{"class": "dog", "count": 4}], tag="counting")


def test_every_object_must_be_there_in_its_exact_number() -> None:
    for there, right in ((["dog", "cat"], True), (["cat", "dog", "cow"], True), (["dog", "dog"], False), ([], False)):
        assert is_right(task(DOG, CAT), counted([seen(name) for name in there], "two_object"), nobody) is right
    for scores, right in (
        ([0.95] * 3, True), ([0.95] * 2, False), ([0.95] * 4, False), ([0.95] * 3 + [0.9], True), ([0.95, 0.95, 0.9], False),
    ):
        assert is_right(THREE, counted([seen("dog", score) for score in scores], "counting"), nobody) is right


def test_colours_are_those_of_the_surest_objects() -> None:
    red = task({"class": "dog", "count": 1, "color": "red"}, tag="colors")
    objects_by_class = counted([seen("dog", 0.5, (1, 0, 5, 5)), seen("dog", 0.8, (2, 0, 5, 5))], "colors")
    classified: list[detector.Detection] = []

    def named(objects: Sequence[detector.Detection], name: str) -> list[str]:
        classified.extend(objects)
        return ["red" if detection.box[0] == 2 else "blue" for detection in objects]

    assert is_right(red, objects_by_class, named)
    assert [detection.score for detection in classified] == [0.8]
    assert not is_right(red, objects_by_class, lambda objects, name: ["blue"] * len(objects))
    assert not is_right(red, {}, nobody), "no colour is named of nothing"
    both = task({**DOG, "color": "red"}, {**CAT, "color": "blue"}, tag="color_attr")
    seen_both = counted([seen("dog"), seen("cat")], "color_attr")
    assert is_right(both, seen_both, lambda objects, name: ["red" if name == "dog" else "blue"]), "two are bound to their own objects"
    assert not is_right(both, seen_both, lambda objects, name: ["blue" if name == "dog" else "red"])


LEFT = [(0.0, 0.0, 10.0, 10.0), (20.0, 0.0, 30.0, 10.0)]
CATS = [(40.0, 0.0, 50.0, 10.0), (60.0, 0.0, 70.0, 10.0)]


def test_relations_need_a_tenth_of_the_extents_and_every_pair_must_be_at_its_place() -> None:
    """For boxes of 10, (offset − 2) / offset must exceed 1/2, so the offset must exceed 4."""
    for box, anchor, expected in (
        (*LEFT, {"left of"}), (LEFT[1], LEFT[0], {"right of"}), ((0, 20, 10, 30), (0, 0, 10, 10), {"below"}),
        ((0, 0, 10, 10), (0, 20, 10, 30), {"above"}), ((0, 0, 10, 10), (20, 20, 30, 30), {"left of", "above"}),
        (LEFT[0], LEFT[0], set()), ((0, 0, 10, 10), (2, 0, 12, 10), set()), ((0, 0, 10, 10), (2.1, 0, 12.1, 10), set()),
        ((0, 0, 10, 10), (5, 0, 15, 10), {"left of"}), ((0, 0, 10, 10), (4, 0, 14, 10), set()),
    ):
        assert relations(box, anchor) == expected
    for dog, cats, count, right in (
        (LEFT[0], LEFT[1:], 1, True), (LEFT[1], LEFT[:1], 1, False), (LEFT[0], [], 1, False),  # there is no cat to stand beside
        (LEFT[1], CATS, 2, True), ((80.0, 0.0, 90.0, 10.0), CATS, 2, False), ((51.0, 0.0, 59.0, 10.0), CATS, 2, False),
    ):
        beside = task({"class": "cat", "count": count}, {"class": "dog", "count": 1, "position": ["left of", 0]}, tag="position")
        detections = [seen("dog", box=dog), *(seen("cat", 0.9 - k / 10, box) for k, box in enumerate(cats))]
        assert is_right(beside, counted(detections, "position"), nobody) is right


def measured(name: str, context: MetricContext, images: torch.Tensor, labels: list[int]) -> list[float]:
    metric: ImageMetric = image_metrics()[name]().prepared(context)
    values = metric.measure(ImageBatch(images, images, images, images, labels, [*range(len(images))])).tolist()
    assert metric.applies(labels) is bool(values)
    return list(values)


def test_a_metric_has_the_images_of_its_kind_and_each_is_detected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [task(DOG, tag="single_object"), THREE, task({**DOG, "color": "red"}, tag="colors")]
    looked: list[float] = []

    def detects(image: torch.Tensor) -> list[detector.Detection]:
        looked.append(float(image.float().mean()))
        return [seen("dog")] * (3 if image.float().mean() > 200 else 1)

    networks = detects, lambda image, objects, name: ["red"] * len(objects)
    monkeypatch.setattr(object_scores, "prompt_list", lambda name: PromptList("geneval", "", (), tasks=(*tasks,)))
    monkeypatch.setattr(object_scores.ObjectScore, "_networks", lambda self: networks)
    images = torch.stack([torch.full((3, 8, 8), value) for value in (-1.0, 1.0, -1.0, 0.0, -1.0)])
    labels, context = [0, 1, 1, 2, 2], MetricContext()
    assert measured("geneval", context, images, labels) == [1, 1, 0, 1, 1]
    assert measured("geneval_counting", context, images, labels) == [1, 0]
    assert measured("geneval_colors", context, images, labels) == [1, 1]
    assert measured("geneval_position", context, images, labels) == []
    assert looked == [0, 255, 0, 128, 0]


def questions(*needs: tuple[int, ...]) -> tuple[Question, ...]:
    return tuple(Question(number, f"{number}?", each) for number, each in enumerate(needs, 1))


def test_a_question_counts_only_with_its_dependencies_and_an_image_is_asked_those_of_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    for needs, answers, share in (
        ([(), (), ()], "yes yes no", 2 / 3), ([(), (1,), (1,)], "no yes yes", 0.0), ([(), (1,), (2,)], "yes no yes", 1 / 3),
        ([(), (), (1, 2)], "yes no yes", 1 / 3), ([(), (9,)], "yes yes", 1.0), ([(2,), ()], "yes no", 0.0), ([()], "YES", 1.0),
        ([()], "yes,", 0.0),
    ):  # fmt: skip
        assert question_score.share_of_yes(questions(*needs), answers.split(" ")) == pytest.approx(share)
    asked: list[tuple[float, str]] = []

    def answer(image: torch.Tensor, question: str) -> str:
        asked.append((float(image.float().mean()), question))
        return "yes" if question == "1?" else " No "

    prompts = PromptList("dpg", "", (), questions=(questions((), ()), questions(())))
    monkeypatch.setattr(question_score, "prompt_list", lambda name: prompts)
    monkeypatch.setattr(question_score, "answerer", lambda folder, device: answer)
    images = torch.stack([torch.full((3, 4, 4), value) for value in (-1.0, 1.0)])
    assert measured("dpg", MetricContext(options={"weights": ""}), images, [1, 0]) == [1.0, 0.5]
    assert asked == [(0, "1?"), (255, "1?"), (255, "2?")]


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
    values = {"package": "json", "module": "json", "weights": (), "build": lambda *_: lambda image, prompt: float(len(prompt))}
    for name, value in values.items():
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


HPS = '{ name = "hpsv2", weights = "HERE" }'


def cases(here: Path, more: str, model: str = "tiny-t2i") -> dict[str, Prepared]:
    (here / "plan.toml").write_text(short_plan(f'model = "{model}"\nmethods = ["window"]\nbudgets = ["1/4"]', top=f"metrics = [{more}]"))
    return {planned.case.label: Prepared.of(planned) for planned in expand(schema.load(str(here / "plan.toml")))}


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
    request = TrialRequest(cases=tuple(planned.values()))
    assert request.environment.items() >= {"HF_HUB_OFFLINE": "1", "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1"}.items(), "other people's code"
