"""Common checks of models that read prompts: generations, and their slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.contract.method import Method
from cachemark.core.spec import Sampling
from cachemark.methods.full import Full
from cachemark.models.llama import LlamaConfig, PromptedLlama

from ..checks import LOGITS, Check, Vector, apart, filled


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


def noting(cls: type[PromptedLlama], *sizes: Any, weights: Mapping[str, Tensor]) -> Any:
    """Build a model of ``cls`` that records its passes, with these weights."""
    return filled(type(f"Noting{cls.__name__}", (Noting, cls), {})(*sizes), weights)


def decoder_of(c: Mapping[str, Any], rope_base: float, **options: bool) -> LlamaConfig:
    """Return the sizes of a decoder by the names of transformers."""
    decoder = LlamaConfig(c["num_hidden_layers"], c["num_attention_heads"], c["hidden_size"], c["intermediate_size"], c["vocab_size"],
                          c["num_key_value_heads"], c["rms_norm_eps"], rope_base, **options)
    assert decoder.head_dim == c.get("head_dim", decoder.head_dim)
    return decoder


@dataclass(frozen=True)
class Ran:
    """A greedy generation, unconditional rows last: tokens, guided logits, hidden states and logits, and the method."""

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


def runs_of(vector: Vector) -> list[str]:
    """Return the letters of the file's runs, in order: the labels of the samples."""
    return [which for _, which in vector.matching("run_*/prompt_ids")]


@dataclass
class Generator:
    """The file's runs, each alone or all in one batch. ``build``: the model of a run; ``tokens``: what it drew; ``scale``: guidance."""

    vector: Vector
    build: Callable[[Vector, str], Noting]
    tokens: Callable[[Vector, str], Tensor]
    scale: float
    together: bool = False
    ran: dict[tuple[str, bool], Ran] = field(default_factory=dict)

    def batch(self, which: str) -> list[str]:
        """Return the runs of the batch that has this one."""
        return runs_of(self.vector) if self.together else [which]

    def run(self, which: str, forced: bool = True) -> Ran:
        """Return the generation of a run, cached, along the file's tokens or greedy."""
        batch = self.batch(which)
        if (batch[0], forced) not in self.ran:
            tokens = torch.stack([self.tokens(self.vector, run) for run in batch]) if forced else None
            self.ran[batch[0], forced] = Ran.of(self.build(self.vector, which), len(batch), self.scale, tokens)
        return self.ran[batch[0], forced]

    def rows(self, which: str) -> tuple[int, int]:
        """Return the conditional and the unconditional row of a run."""
        batch = self.batch(which)
        return batch.index(which), len(batch) + batch.index(which)


def part(name: str, branch: int = 0, forced: bool = True) -> Callable[[Generator, Vector, str], Tensor]:
    """Return a function for ``name`` of a run's generation, in the conditional row (0) or the other (1)."""
    return lambda subject, _, which: getattr(subject.run(which, forced), name)[subject.rows(which)[branch]]


def to_uint8(images: Tensor) -> Tensor:
    """Convert images to bytes (B, H, W, 3) as published: clamped, (x + 1)/2·255, truncated."""
    return ((images.clamp(-1, 1) + 1) / 2 * 255).permute(0, 2, 3, 1).to(torch.uint8)


def slots(layer: int, names: Sequence[str], stored: Callable[[Vector, str, int], Tensor]) -> Check:
    """Check a layer's keys and values in each row: ``stored`` gives the tensor ``names``, of each branch, of a run; "kv" is k or v."""
    def named(which: str, name: str, kind: str) -> str:
        return f"run_{which}/{name.replace('kv', kind)}_layer{layer}"

    def measure(subject: Generator, vector: Vector, which: str) -> float:
        rows = zip(subject.rows(which), names, strict=False)
        return max(subject.run(which).slot_apart(layer, row, [stored(vector, named(which, name, kind), branch) for kind in "kv"])
                   for branch, (row, name) in enumerate(rows))

    return Check(f"slots{layer}_*", LOGITS, measure, tuple(dict.fromkeys(named("*", name, kind) for name in names for kind in "kv")))
