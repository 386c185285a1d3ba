"""GenEval with its six kinds of prompts: are the objects, numbers, colors and positions in the image?

Ghosh et al., "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment" (NeurIPS 2023), with the rules and thresholds
of the authors' script. Objects and colors come from any detector and color namer. The authors' detector is from
another library, so values approximate published ones if the same network is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import Unsupported
from ..core.spec import digest
from ..models.prompt_lists import prompt_list
from .base import ImageBatch, ImageMetric, MetricContext, benchmark_prompts

if TYPE_CHECKING:
    from torch import Tensor

    from .compute.detector import ClipColors, Detection, PretrainedDetector

TASKS = ("geneval_single_object", "geneval_two_object", "geneval_counting", "geneval_colors", "geneval_position", "geneval_color_attr")
PROMPTS_SOURCE = "https://raw.githubusercontent.com/djghosh13/geneval/main/prompts/"
COUNTING = 0.9  # least confidence of an object in tasks about a number of objects
MOST = 16  # objects of a class
DISTANCE = 0.1  # least distance of centers, relative to the extents of both objects


class ObjectScore(ImageMetric):
    """A score by GenEval's rules, from an object detector and a color classifier."""

    unit = "share"
    within = (0.0, 1.0)
    prompted = True
    plan_name = "geneval"
    options = ("detector", "clip")

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        """Return detector, colors and tasks. Raises Unsupported if one or a class of the detector is missing."""
        from .compute import detector
        from .compute.pretrained import CLIP, DETECTOR

        prompts = benchmark_prompts(setting, "geneval", "evaluation_metadata.jsonl", PROMPTS_SOURCE)
        folder = setting.options["detector"]
        parts = {"detector": DETECTOR.identity(folder)}
        if not setting.options.get("clip"):
            raise Unsupported(f"not measured: needs a CLIP model for colors, named by the option clip of geneval, get it with: "
                              f"hf download openai/clip-vit-large-patch14 --local-dir {folder.rstrip('/')}-clip")
        classes = {clause["class"] for task in prompts.tasks for part in ("include", "exclude") for clause in task.get(part, ())}
        if unseen := sorted(classes - detector.classes(folder)):
            raise Unsupported(f"not measured: the detector in {folder!r} knows no {unseen[0]!r}, get one that does with: "
                              f"hf download {DETECTOR.repository} --local-dir {folder}")
        return {**parts, "clip": CLIP.identity(setting.options["clip"]), "tasks": digest(prompts.tasks)}

    def applies(self, labels: Sequence[int]) -> bool:
        """Return whether a prompt of this kind is among these."""
        return bool(self._counting(labels))

    def measure(self, batch: ImageBatch) -> Tensor:
        """Return 1 or 0 for each image whose prompt is of this kind, fp64 on the CPU."""
        import torch

        tasks = prompt_list(self.setting.prompt_list).tasks
        right = self.setting.latest("geneval", batch.images, lambda images: [
            self._is_right(image, tasks[label]) for image, label in zip(images, batch.labels, strict=True)])
        return torch.tensor([right[number] for number in self._counting(batch.labels)], dtype=torch.float64)

    def _counting(self, labels: Sequence[int]) -> list[int]:
        """Return the positions of the prompts that count for this metric."""
        tasks = prompt_list(self.setting.prompt_list).tasks
        return [number for number, label in enumerate(labels) if self.name not in TASKS or self.name == f"geneval_{tasks[label]['tag']}"]

    def _is_right(self, image: Tensor, task: Mapping[str, Any]) -> bool:
        from .compute.image_bytes import nearest_bytes

        detector, colors = self.setting.once("geneval networks", self._networks)
        pixels = nearest_bytes(image).cpu()
        return is_right(task, counted(detector(pixels), task["tag"]), lambda objects, name: colors(pixels, objects, name))

    def _networks(self) -> tuple[PretrainedDetector, ClipColors]:
        from .compute.detector import ClipColors, PretrainedDetector
        from .compute.pretrained import Clip

        colors = ClipColors(Clip.shared(self.setting, self.setting.options["clip"]))
        return PretrainedDetector(self.setting.options["detector"], device=self.setting.device), colors


class GenEvalScore(ObjectScore):
    """Fraction of images that show everything in their prompt of GenEval."""

    name = "geneval"
    title = "GenEval"
    scope = "the prompt's content, not how clean objects are or the rest of the image"


class GenEvalOverall(ObjectScore):
    """Mean of the scores of the six kinds of prompts, as published in papers."""

    name = "geneval_overall"
    title = "GenEval, overall"
    mean_of = TASKS


def _of_kind(tag: str, title: str, requests: str) -> type[ObjectScore]:
    meaning = f"The same, of images whose prompt requests {requests}."
    return ObjectScore.variant(f"geneval_{tag}", title=f"GenEval, {title}", meaning=meaning)


OF_SINGLE_OBJECT = _of_kind("single_object", "object", "one object")
OF_TWO_OBJECT = _of_kind("two_object", "two objects", "two objects")
OF_COUNTING = _of_kind("counting", "count", "a number of objects")
OF_COLORS = _of_kind("colors", "color", "an object in a color")
OF_POSITION = _of_kind("position", "position", "an object next to, above or below another")
OF_COLOR_ATTRIBUTES = _of_kind("color_attr", "attributes", "two objects, each in its own color")


def counted(detections: Sequence[Detection], tag: str) -> dict[str, list[Detection]]:
    """Return the objects that count in a task of this kind, by class, in order of confidence."""
    from .compute.detector import THRESHOLD

    least = COUNTING if tag == "counting" else THRESHOLD
    by_class: dict[str, list[Detection]] = {}
    for detection in sorted(detections, key=lambda detection: -detection.score):
        if detection.score > least and len(by_class.get(detection.name, ())) < MOST:
            by_class.setdefault(detection.name, []).append(detection)
    return by_class


def is_right(task: Mapping[str, Any], objects: Mapping[str, Sequence[Detection]], colors: Any) -> bool:
    """Return whether everything that a task includes is present and nothing that it excludes.

    Colors (``colors(objects, name)``) and positions are tested for the most confident objects of a class, as many as requested. The
    position must hold for every object of the clause that it refers to, which must be right itself.
    """
    groups: list[Sequence[Detection] | None] = []
    for clause in task["include"]:
        name, count = clause["class"], clause["count"]
        surest = objects.get(name, ())[:count]
        right = len(surest) == count
        if right and "color" in clause:
            right = list(colors(surest, name)).count(clause["color"]) >= count
        if right and "position" in clause:
            relation, other = clause["position"]
            beside = groups[other]
            right = beside is not None and all(relation in relations(a.box, b.box) for a in surest for b in beside)
        groups.append(surest if right else None)
    return None not in groups and all(len(objects.get(clause["class"], ())) < clause["count"] for clause in task.get("exclude", ()))


def relations(box: Sequence[float], anchor: Sequence[float]) -> set[str]:
    """Return the relations of a box (left, top, right, bottom) to another; empty if they are too close."""
    offset = [(box[i] + box[i + 2] - anchor[i] - anchor[i + 2]) / 2 for i in (0, 1)]
    extents = [abs(box[i + 2] - box[i]) + abs(anchor[i + 2] - anchor[i]) for i in (0, 1)]
    beyond = [math.copysign(max(abs(d) - DISTANCE * e, 0.0), d) for d, e in zip(offset, extents, strict=True)]
    if max(map(abs, beyond)) < 1e-3:
        return set()
    across, down = (d / math.hypot(*offset) for d in beyond)
    holds = {"left of": across < -0.5, "right of": across > 0.5, "above": down < -0.5, "below": down > 0.5}
    return {name for name, true in holds.items() if true}
