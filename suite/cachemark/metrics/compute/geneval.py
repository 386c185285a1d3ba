"""GenEval: does a picture show the objects that it was asked for, as many, in these colours, at these places?

Ghosh et al., "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment" (NeurIPS 2023), with the rules and thresholds of
the authors' script. Who finds objects and who names colours is given: anything that does what :class:`Detector` and :class:`ColourNamer`
say. What differs from the authors' code: none of the rules; their detector is of another library, so that values come near to published
ones where the same network is given, and need not equal them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .image_bytes import nearest_bytes

THRESHOLD, COUNTING = 0.3, 0.9  # confidence above which an object counts, and where a number of objects is asked for
MOST = 16  # objects of a class
DISTANCE = 0.1  # of the extents of two objects, by which their centres must be apart beyond nothing
TASKS = {f"geneval_{tag}": tag for tag in ("single_object", "two_object", "counting", "colors", "position", "color_attr")}


@dataclass(frozen=True)
class Found:
    """An object in a picture: the name of its class, how sure that is, its ``box`` (left, top, right, bottom) in pixels, and which pixels
    are its own, (H, W) bool, where the detector knows."""

    name: str
    score: float
    box: tuple[float, float, float, float]
    mask: Tensor | None = None


class Detector(Protocol):
    """Finds objects."""

    def __call__(self, image: Tensor) -> Sequence[Found]:
        """Every object of at least the confidence ``THRESHOLD`` in bytes (3, H, W)."""


class ColourNamer(Protocol):
    """Names the colours of objects."""

    def __call__(self, image: Tensor, objects: Sequence[Found], name: str) -> Sequence[str]:
        """The likeliest of GenEval's colours of each object, all called ``name``, in bytes (3, H, W)."""


class GenEval:
    """Scores the pictures of a list of tasks, the lines of GenEval's file."""

    def __init__(self, tasks: Sequence[Mapping[str, Any]], detector: Detector, colours: ColourNamer) -> None:
        self._tasks, self._detector, self._colours = tasks, detector, colours
        self._last: tuple[Tensor, list[bool]] | None = None

    def __call__(self, name: str, images: Tensor, labels: Sequence[int]) -> Tensor:
        """The value called ``name`` of images (n, 3, H, W) in [−1, 1] whose tasks are those of ``labels``: for each image, or each whose
        task is of the value's kind, 1 where all is right, else 0; fp64 on the CPU."""
        if self._last is None or self._last[0] is not images:  # values ask one after another about the same images
            self._last = images, [self._is_right(image, self._tasks[label]) for image, label in zip(images, labels, strict=True)]
        tag = TASKS.get(name)
        right = [right for right, label in zip(self._last[1], labels, strict=True) if tag in (None, self._tasks[label]["tag"])]
        return torch.tensor(right, dtype=torch.float64)

    def _is_right(self, image: Tensor, task: Mapping[str, Any]) -> bool:
        pixels = nearest_bytes(image).cpu()
        return is_right(task, counted(self._detector(pixels), task["tag"]), lambda objects, name: self._colours(pixels, objects, name))


def counted(detections: Sequence[Found], tag: str) -> dict[str, list[Found]]:
    """The objects that count in a task of this kind, by class, the surest first."""
    least = COUNTING if tag == "counting" else THRESHOLD
    by_class: dict[str, list[Found]] = {}
    for detection in sorted(detections, key=lambda detection: -detection.score):
        if detection.score > least and len(by_class.get(detection.name, ())) < MOST:
            by_class.setdefault(detection.name, []).append(detection)
    return by_class


def is_right(task: Mapping[str, Any], objects: Mapping[str, Sequence[Found]], colours: Any) -> bool:
    """True where all that a task includes is there and nothing that it excludes. Of each class only the surest objects, as many as are
    asked for, are looked at for their colours (``colours(objects, name)`` names them) and places; one stands at its place where it does so
    to every object of the clause that it refers to, which must be right itself."""
    groups: list[Sequence[Found] | None] = []
    for clause in task["include"]:
        name, count = clause["class"], clause["count"]
        surest = objects.get(name, ())[:count]
        right = len(surest) == count
        if right and "color" in clause:
            right = list(colours(surest, name)).count(clause["color"]) >= count
        if right and "position" in clause:
            relation, other = clause["position"]
            beside = groups[other]
            right = beside is not None and all(relation in relations(one.box, two.box) for one in surest for two in beside)
        groups.append(surest if right else None)
    return None not in groups and all(len(objects.get(clause["class"], ())) < clause["count"] for clause in task.get("exclude", ()))


def relations(one: Sequence[float], two: Sequence[float]) -> set[str]:
    """The places of a box (left, top, right, bottom) beside another, none where they are too near: two may hold at once."""
    offset = [(one[i] + one[i + 2] - two[i] - two[i + 2]) / 2 for i in (0, 1)]
    extents = [abs(one[i + 2] - one[i]) + abs(two[i + 2] - two[i]) for i in (0, 1)]
    beyond = [math.copysign(max(abs(d) - DISTANCE * e, 0.0), d) for d, e in zip(offset, extents, strict=True)]
    if max(map(abs, beyond)) < 1e-3:
        return set()
    across, down = (d / math.hypot(*offset) for d in beyond)
    held = {"left of": across < -0.5, "right of": across > 0.5, "above": down < -0.5, "below": down > 0.5}
    return {name for name, holds in held.items() if holds}
