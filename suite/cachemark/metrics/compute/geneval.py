"""GenEval: does an image show the requested objects, with the requested number, colors and positions?

Ghosh et al., "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment" (NeurIPS 2023), with the rules and thresholds
of the authors' script. Objects and colors come from any detector and color namer. The authors' detector is from
another library, so values approximate published ones if the same network is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .image_bytes import nearest_bytes

THRESHOLD, COUNTING = 0.3, 0.9  # least confidence of an object, and in tasks about a number of objects
MOST = 16  # objects of a class
DISTANCE = 0.1  # least distance of centers, relative to the extents of both objects
TASKS = {f"geneval_{tag}": tag for tag in ("single_object", "two_object", "counting", "colors", "position", "color_attr")}


@dataclass(frozen=True)
class Detection:
    """A detected object: class name, confidence, ``box`` (left, top, right, bottom) in pixels, and mask (H, W) bool if known."""

    name: str
    score: float
    box: tuple[float, float, float, float]
    mask: Tensor | None = None


Detector = Callable[[Tensor], Sequence[Detection]]  # all objects of at least the confidence THRESHOLD in bytes (3, H, W)
ColorNamer = Callable[[Tensor, Sequence[Detection], str], Sequence[str]]  # the color of each object of a class in bytes (3, H, W)


class GenEval:
    """Scores the images of GenEval's tasks."""

    def __init__(self, tasks: Sequence[Mapping[str, Any]], detector: Detector, colors: ColorNamer) -> None:
        self._tasks, self._detector, self._colors = tasks, detector, colors
        self._last: tuple[Tensor, list[bool]] | None = None

    def __call__(self, name: str, images: Tensor, labels: Sequence[int]) -> Tensor:
        """Return 1 or 0 for images (n, 3, H, W) in [−1, 1] of the tasks ``labels``, fp64 on the CPU.

        ``name`` is that of the metric, which may cover one kind of task only.
        """
        if self._last is None or self._last[0] is not images:  # metrics are called one after another with the same images
            self._last = images, [self._is_right(image, self._tasks[label]) for image, label in zip(images, labels, strict=True)]
        tag = TASKS.get(name)
        right = [right for right, label in zip(self._last[1], labels, strict=True) if tag in (None, self._tasks[label]["tag"])]
        return torch.tensor(right, dtype=torch.float64)

    def _is_right(self, image: Tensor, task: Mapping[str, Any]) -> bool:
        pixels = nearest_bytes(image).cpu()
        return is_right(task, counted(self._detector(pixels), task["tag"]), lambda objects, name: self._colors(pixels, objects, name))


def counted(detections: Sequence[Detection], tag: str) -> dict[str, list[Detection]]:
    """Return the objects that count in a task of this kind, by class, in order of confidence."""
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
