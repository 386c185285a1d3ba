"""GenEval with its six kinds of prompts (Ghosh et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import Unsupported
from ..core.spec import digest
from .base import ImageBatch, ImageMetric, MetricContext
from .prompt_lists import benchmark_prompts

if TYPE_CHECKING:
    from torch import Tensor

    from .compute.geneval import GenEval

TASKS = ("geneval_single_object", "geneval_two_object", "geneval_counting", "geneval_colors", "geneval_position", "geneval_color_attr")
PROMPTS_SOURCE = "https://raw.githubusercontent.com/djghosh13/geneval/main/prompts/"


class ObjectScore(ImageMetric):
    """A score by GenEval's rules, from an object detector and a color classifier."""

    unit = "share"
    within = (0.0, 1.0)
    prompted = True
    plan_name = "geneval"
    options = ("detector", "clip")

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        """Return detector, colors and tasks. Raises Unsupported if one is missing, or the detector lacks a class."""
        from .compute import clip, detector

        prompts = benchmark_prompts(setting, "geneval", "evaluation_metadata.jsonl", PROMPTS_SOURCE)
        folder = setting.options["detector"]
        parts = {"detector": detector.identity(folder)}
        if not setting.options.get("clip"):
            raise Unsupported(f"not measured: needs a CLIP model for colors, named by the option clip of geneval, get it with: "
                              f"hf download openai/clip-vit-large-patch14 --local-dir {folder.rstrip('/')}-clip")
        classes = {clause["class"] for task in prompts.tasks for part in ("include", "exclude") for clause in task.get(part, ())}
        if unseen := sorted(classes - detector.classes(folder)):
            raise Unsupported(f"not measured: the detector in {folder!r} knows no {unseen[0]!r}, get one that does with: "
                              f"hf download {detector.PUBLISHED} --local-dir {folder}")
        return {**parts, "clip": clip.identity(setting.options["clip"]), "tasks": digest(prompts.tasks)}

    def measure(self, batch: ImageBatch) -> Tensor:
        return self.setting.once("geneval", self._benchmark)(self.name, batch.images, batch.labels)

    def tags(self, labels: Sequence[int]) -> set[str]:
        """Return the kinds of the prompts with these labels."""
        return {str(self._tasks()[label]["tag"]) for label in labels}

    def _tasks(self) -> Sequence[Any]:
        from ..models.prompt_lists import prompt_list

        return prompt_list(self.setting.prompt_list).tasks

    def _benchmark(self) -> GenEval:
        from .compute.clip import Clip
        from .compute.detector import ClipColors, PretrainedDetector
        from .compute.geneval import GenEval

        folder, device = self.setting.options["clip"], self.setting.device
        clip = self.setting.once(("clip", folder), lambda: Clip(folder, device=device))
        return GenEval(self._tasks(), PretrainedDetector(self.setting.options["detector"], device=device), ClipColors(clip))


class GenEvalScore(ObjectScore):
    """Fraction of images that show everything in their prompt of GenEval."""

    name = "geneval"
    title = "GenEval"
    scope = "what the prompt asked for, not how clean objects are or the rest of the image"


class GenEvalOverall(ObjectScore):
    """Mean of the scores of the six kinds of prompts, as published in papers."""

    name = "geneval_overall"
    title = "GenEval, overall"
    mean_of = TASKS


class GenEvalTask(ObjectScore):
    """The score of one kind of prompts."""

    def applies(self, labels: Sequence[int]) -> bool:
        """Return whether a prompt of this kind is among these."""
        return self.name.removeprefix("geneval_") in self.tags(labels)


class GenEvalSingleObject(GenEvalTask):
    """GenEval's score of prompts for one object."""

    meaning = "The same, of images whose prompt requests one object."
    name = "geneval_single_object"
    title = "GenEval, object"


class GenEvalTwoObject(GenEvalTask):
    """GenEval's score of prompts for two objects."""

    meaning = "The same, of images whose prompt requests two objects."
    name = "geneval_two_object"
    title = "GenEval, two objects"


class GenEvalCounting(GenEvalTask):
    """GenEval's score of prompts for a number of objects."""

    meaning = "The same, of images whose prompt requests a number of objects."
    name = "geneval_counting"
    title = "GenEval, count"


class GenEvalColors(GenEvalTask):
    """GenEval's score of prompts for an object in a color."""

    meaning = "The same, of images whose prompt requests an object in a color."
    name = "geneval_colors"
    title = "GenEval, color"


class GenEvalPosition(GenEvalTask):
    """GenEval's score of prompts for an object next to, above or below another."""

    meaning = "The same, of images whose prompt requests an object next to, above or below another."
    name = "geneval_position"
    title = "GenEval, position"


class GenEvalColorAttributes(GenEvalTask):
    """GenEval's score of prompts for two objects, each in its own color."""

    meaning = "The same, of images whose prompt requests two objects, each in its own color."
    name = "geneval_color_attr"
    title = "GenEval, attributes"
