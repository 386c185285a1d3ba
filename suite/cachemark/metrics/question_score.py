"""DPG-Bench: the fraction of questions about a long prompt that a network answers with yes.

Hu et al., "ELLA: Equip Diffusion Models with LLM for Enhanced Semantic Alignment" (2024), with the rules of the authors' script: a
question counts as no if a question that it depends on counts as no. The authors' network is mPLUG-large; here any network for visual
question answering in transformers is used, and values of two networks do not compare. Differences to the authors' code: one image per
prompt instead of a grid of four; case and spaces of answers are ignored; a dependency on a missing question is ignored (theirs skips
the prompt).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..core.errors import Unsupported
from ..core.spec import digest
from ..models.prompt_lists import Question, prompt_list
from .base import ImageBatch, ImageMetric, MetricContext, benchmark_prompts

if TYPE_CHECKING:
    from torch import Tensor

SOURCE = "https://raw.githubusercontent.com/TencentQQGYLab/ELLA/main/dpg_bench/"
LONGEST = 10  # tokens of an answer


class QuestionScore(ImageMetric):
    """Fraction of DPG-Bench's questions about the prompt answered with yes, like all their parents."""

    name = "dpg"
    title = "DPG-Bench"
    unit = "share"
    within = (0.0, 1.0)
    prompted = True
    plan_name = "dpg"
    options = ("weights",)
    scope = "the prompt's content, not how clean the image is or the rest of it"

    @classmethod
    def identity(cls, setting: MetricContext) -> dict[str, str]:
        """Return the network and its questions. Raises Unsupported if one is missing."""
        from .compute.pretrained import ANSWERER

        prompts = benchmark_prompts(setting, "dpg", "dpg_bench.csv", SOURCE)
        if not prompts.questions:
            raise Unsupported(f"not measured: needs dpg_bench.csv next to the prompts in {setting.prompt_list!r}, get it with: "
                              f"curl -LO {SOURCE}dpg_bench.csv")
        questions = [[[question.number, question.text, question.needs] for question in group] for group in prompts.questions]
        return {"weights": ANSWERER.identity(setting.options["weights"]), "questions": digest(questions)}

    def measure(self, batch: ImageBatch) -> Tensor:
        import torch

        from .compute.image_bytes import nearest_bytes

        answer = self.setting.once("dpg", lambda: answerer(self.setting.options["weights"], self.setting.device))
        groups, shares = prompt_list(self.setting.prompt_list).questions, []
        for image, label in zip(batch.images, batch.labels, strict=True):
            pixels, questions = nearest_bytes(image).cpu(), groups[label]
            shares.append(share_of_yes(questions, [answer(pixels, question.text) for question in questions]))
        return torch.tensor(shares, dtype=torch.float64)


def share_of_yes(questions: Sequence[Question], answers: Sequence[str]) -> float:
    """Return the fraction of questions that count as yes."""
    counts = {question.number: answer.strip().lower() == "yes" for question, answer in zip(questions, answers, strict=True)}
    for question in questions:
        if not all(counts.get(need, True) for need in question.needs):
            counts[question.number] = False
    return sum(counts.values()) / len(counts)


def answerer(folder: str, device: str = "cpu") -> Callable[[Tensor, str], str]:
    """Return a function that answers a question about bytes (3, H, W).

    Its network writes (BLIP) or classifies (ViLT). Raises Unsupported for missing files, BadCheckpoint for inconsistent ones.
    """
    import torch

    from .compute.pretrained import ANSWERER

    ANSWERER.identity(folder)
    model = ANSWERER.part(folder, "AutoModelForVisualQuestionAnswering", use_safetensors=True).to(device).eval()
    ready = ANSWERER.part(folder, "AutoProcessor")

    @torch.inference_mode()
    def answer(image: Tensor, question: str) -> str:
        inputs = ready(images=image.numpy(), text=question, return_tensors="pt").to(device)
        if model.can_generate():
            return str(ready.decode(model.generate(**inputs, max_new_tokens=LONGEST)[0], skip_special_tokens=True))
        return str(model.config.id2label[int(model(**inputs).logits.argmax(-1))])

    return answer
