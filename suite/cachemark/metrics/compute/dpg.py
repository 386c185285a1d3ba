"""DPG-Bench: the fraction of questions about a long prompt that are answered with yes for an image.

Hu et al., "ELLA: Equip Diffusion Models with LLM for Enhanced Semantic Alignment" (2024), with the rules of the authors' script: a
question counts as no if a question that it depends on counts as no. The authors' network is mPLUG-large; here any network for visual
question answering in transformers is used, and values of two networks do not compare. Differences to the authors' code: one image per
prompt instead of a grid of four; case and spaces of answers are ignored; a dependency on a missing question is ignored (theirs skips
the prompt).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...models.prompt_lists import Question
from .image_bytes import nearest_bytes
from .pretrained import built, folder_identity, toolkit

FILES = ("config.json", "model.safetensors", "preprocessor_config.json", "tokenizer_config.json")
MORE = ("tokenizer.json", "vocab.txt", "special_tokens_map.json", "processor_config.json", "generation_config.json")
LONGEST = 10  # tokens of an answer
PUBLISHED = "Salesforce/blip-vqa-capfilt-large"


Answerer = Callable[[Tensor, str], str]  # the answer to a question about bytes (3, H, W)


class Dpg:
    """Scores the images of prompts by their questions."""

    def __init__(self, questions: Sequence[Sequence[Question]], answerer: Answerer) -> None:
        self._questions, self._answerer = questions, answerer

    def __call__(self, images: Tensor, labels: Sequence[int]) -> Tensor:
        """Return the fraction of yes for images (n, 3, H, W) in [−1, 1] of the prompts ``labels``, (n,) fp64 on the CPU."""
        return torch.tensor([self._share(nearest_bytes(image).cpu(), label) for image, label in zip(images, labels, strict=True)],
                            dtype=torch.float64)

    def _share(self, image: Tensor, label: int) -> float:
        questions = self._questions[label]
        return share_of_yes(questions, [self._answerer(image, question.text) for question in questions])


def share_of_yes(questions: Sequence[Question], answers: Sequence[str]) -> float:
    """Return the fraction of questions that count as yes."""
    counts = {question.number: answer.strip().lower() == "yes" for question, answer in zip(questions, answers, strict=True)}
    for question in questions:
        if not all(counts.get(need, True) for need in question.needs):
            counts[question.number] = False
    return sum(counts.values()) / len(counts)


def identity(folder: str) -> str:
    """Return the hash of the network. Raises Unsupported for missing files."""
    return folder_identity(folder, FILES, MORE, PUBLISHED)


class PretrainedAnswerer:
    """A network for visual question answering, which generates answers (BLIP) or classifies (ViLT).

    Raises Unsupported for missing files, BadCheckpoint for inconsistent ones.
    """

    def __init__(self, folder: str, *, device: str = "cpu") -> None:
        identity(folder)
        transformers, own = toolkit(), {"local_files_only": True}
        kind = transformers.AutoModelForVisualQuestionAnswering
        self._model: Any = built(folder, "network for visual questions",
                                 lambda: kind.from_pretrained(folder, use_safetensors=True, **own).to(device).eval())
        self._ready: Any = built(folder, "network for visual questions", lambda: transformers.AutoProcessor.from_pretrained(folder, **own))
        self._device = device

    @torch.inference_mode()
    def __call__(self, image: Tensor, question: str) -> str:
        """Return the answer to a question about bytes (3, H, W)."""
        inputs = self._ready(images=image.numpy(), text=question, return_tensors="pt").to(self._device)
        if self._model.can_generate():
            return str(self._ready.decode(self._model.generate(**inputs, max_new_tokens=LONGEST)[0], skip_special_tokens=True))
        return str(self._model.config.id2label[int(self._model(**inputs).logits.argmax(-1))])
