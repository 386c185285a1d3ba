"""DPG-Bench: how many questions about what a long prompt says does a picture answer with yes?

Hu et al., "ELLA: Equip Diffusion Models with LLM for Enhanced Semantic Alignment" (2024), with the rules of the authors' script: a question
that depends on one whose answer counts as no counts as no itself. Their network is mPLUG-large, of another library; here any network for
visual questions that transformers knows answers, and values of two networks do not compare. What differs from the authors' code: one image
for each prompt instead of four in a grid; an answer is read without regard to capitals and spaces; a question that depends on one that the
table lacks depends on nothing (theirs leaves out the whole prompt).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ...models.prompt_lists import Question
from .image_bytes import nearest_bytes
from .pretrained import built, folder_identity, toolkit

FILES = ("config.json", "model.safetensors", "preprocessor_config.json", "tokenizer_config.json")
MORE = ("tokenizer.json", "vocab.txt", "special_tokens_map.json", "processor_config.json", "generation_config.json")
LONGEST = 10  # tokens of an answer
PUBLISHED = "Salesforce/blip-vqa-capfilt-large"


class Answerer(Protocol):
    """Answers questions about pictures."""

    def __call__(self, image: Tensor, question: str) -> str:
        """The answer to a question about bytes (3, H, W)."""


class Dpg:
    """Scores the pictures of a list of prompts, each with its questions."""

    def __init__(self, questions: Sequence[Sequence[Question]], answerer: Answerer) -> None:
        self._questions, self._answerer = questions, answerer

    def __call__(self, images: Tensor, labels: Sequence[int]) -> Tensor:
        """Images (n, 3, H, W) in [−1, 1] whose prompts are those of ``labels``: the share of each one's questions that count as yes, (n,)
        fp64 on the CPU."""
        return torch.tensor([self._share(nearest_bytes(image).cpu(), label) for image, label in zip(images, labels, strict=True)],
                            dtype=torch.float64)

    def _share(self, image: Tensor, label: int) -> float:
        questions = self._questions[label]
        return share_of_yes(questions, [self._answerer(image, question.text) for question in questions])


def share_of_yes(questions: Sequence[Question], answers: Sequence[str]) -> float:
    """The share of questions that count as yes, in their order."""
    counts = {asked.number: answer.strip().lower() == "yes" for asked, answer in zip(questions, answers, strict=True)}
    for question in questions:
        if not all(counts.get(need, True) for need in question.needs):
            counts[question.number] = False
    return sum(counts.values()) / len(counts)


def identity(folder: str) -> str:
    """The part of a case's identity that the network decides. Raises Unsupported, with how to get it, for what is lacking."""
    return folder_identity(folder, FILES, MORE, PUBLISHED)


class PretrainedAnswerer:
    """A network for visual questions from a folder, that writes its answer (BLIP) or chooses among those it knows (ViLT). Raises what
    :func:`identity` raises, and BadCheckpoint for files that do not fit together."""

    def __init__(self, folder: str, *, device: str = "cpu") -> None:
        identity(folder)
        known, own = toolkit(), {"local_files_only": True}
        kind = known.AutoModelForVisualQuestionAnswering
        self._model: Any = built(folder, "network for visual questions",
                                 lambda: kind.from_pretrained(folder, use_safetensors=True, **own).to(device).eval())
        self._ready: Any = built(folder, "network for visual questions", lambda: known.AutoProcessor.from_pretrained(folder, **own))
        self._device = device

    @torch.inference_mode()
    def __call__(self, image: Tensor, question: str) -> str:
        """The answer to a question about bytes (3, H, W)."""
        given = self._ready(images=image.numpy(), text=question, return_tensors="pt").to(self._device)
        if self._model.can_generate():
            return str(self._ready.decode(self._model.generate(**given, max_new_tokens=LONGEST)[0], skip_special_tokens=True))
        return str(self._model.config.id2label[int(self._model(**given).logits.argmax(-1))])
