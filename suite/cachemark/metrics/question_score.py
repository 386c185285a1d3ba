"""DPG-Bench (Hu et al., 2024): the questions about a long prompt that a network answers with yes for an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import Unsupported
from ..core.spec import digest
from ..models.prompt_lists import prompt_list
from .base import ImageBatch, ImageMetric, MetricContext
from .prompt_lists import benchmark_prompts

if TYPE_CHECKING:
    from torch import Tensor

    from .compute.dpg import Dpg

SOURCE = "https://raw.githubusercontent.com/TencentQQGYLab/ELLA/main/dpg_bench/"


class QuestionScore(ImageMetric):
    """Fraction of DPG-Bench's questions about the prompt whose answer, and that of their parents, is yes."""

    name = "dpg"
    title = "DPG-Bench"
    unit = "share"
    within = (0.0, 1.0)
    prompted = True
    plan_name = "dpg"
    options = ("weights",)
    scope = "what the prompt asked for, not how clean the image is or the rest of it"

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        """Return the network and its questions. Raises Unsupported if one is missing."""
        from .compute import dpg

        prompts = benchmark_prompts(setting, "dpg", "dpg_bench.csv", SOURCE)
        if not prompts.questions:
            raise Unsupported(f"not measured: needs dpg_bench.csv beside the prompts in {setting.prompt_list!r}, get it with: "
                              f"curl -LO {SOURCE}dpg_bench.csv")
        questions = [[[question.number, question.text, question.needs] for question in group] for group in prompts.questions]
        return {"weights": dpg.identity(setting.options["weights"]), "questions": digest(questions)}

    def measure(self, batch: ImageBatch) -> Tensor:
        return self.setting.once("dpg", self._benchmark)(batch.images, batch.labels)

    def _benchmark(self) -> Dpg:
        from .compute.dpg import Dpg, PretrainedAnswerer

        answerer = PretrainedAnswerer(self.setting.options["weights"], device=self.setting.device)
        return Dpg(prompt_list(self.setting.prompt_list).questions, answerer)
