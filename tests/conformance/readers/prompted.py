"""Common checks of Janus-Pro and Lumina-mGPT: generations of models that read prompts, and their slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.models.llama import PromptedLlama

from ..checks import apart


class Noting(PromptedLlama):
    """Records normed hidden states and logits of every pass, rows first."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.hidden: list[Tensor] = []
        self.plain: list[Tensor] = []

    def logits(self, hidden: Tensor) -> Tensor:
        self.hidden.append(self.decoder.norm(hidden))
        self.plain.append(super().logits(hidden))
        return self.plain[-1]


@dataclass(frozen=True)
class Ran:
    """A greedy generation, unconditional rows last.

    Tokens (samples, N), guided logits (samples, N, vocab), hidden states and logits (rows, N, …), and the method.
    """

    tokens: Tensor
    guided: Tensor
    hidden: Tensor
    plain: Tensor
    method: Method

    @classmethod
    def of(cls, model: Noting, samples: int, scale: float, forced: Tensor | None) -> Ran:
        method, guided = Full(), list[Tensor]()
        model.hidden.clear()
        model.plain.clear()
        tokens = model.generate(torch.arange(samples), range(samples), method, Sampling(cfg_scale=scale, temperature=0.0), Memory(),
                                forced=forced, see=lambda _, logits: guided.append(logits.clone()))
        return cls(tokens, torch.cat(guided, 1), torch.stack(model.hidden, 1), torch.stack(model.plain, 1), method)

    def slot_apart(self, layer: int, row: int, expected: Sequence[Tensor]) -> float:
        """Compare keys and values of a layer in a row, each (heads, entries, head_dim), with the stored ones."""
        slot = next(slot for site, slot in self.method.slots.items() if site.layer == layer)
        run, live = next((run, live) for run, live in zip(slot.bank.runs, slot.live, strict=True) if run.start <= row < run.stop)
        return max(apart(part[row - run.start], tensor) for part, tensor in zip(slot.read(run, live), expected, strict=True))
