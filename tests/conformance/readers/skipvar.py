"""SkipVAR on Infinity: the two features of a decision, and the rows that each pass computes after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout, Site, Step, Tokens, squares
from cachemark.contract.deciding import Pictured
from cachemark.contract.method import Block, Method
from cachemark.core.spec import Sampling
from cachemark.methods.base.image_edges import high_frequencies, moved_edges
from cachemark.methods.skipvar import ImageOutcome, SkipVAR
from cachemark.models.infinity import Infinity, InfinityConfig

from ..checks import Check, Kind, Vector, apart, differing

SIDES = tuple(range(1, 14))  # as many scales as the file's, of fewer tokens, which no pass depends on


@dataclass
class Told(SkipVAR):
    """SkipVAR with a given outcome, which records the rows of each pass."""

    skipped: int = 0
    unguided: int = 0
    rows: list[int] = field(default_factory=list)

    def resolve(self, layout: Layout) -> None:
        self.threshold = 0.84

    def decide(self, pictured: Pictured) -> Sequence[Method]:
        return [ImageOutcome(self.skipped, self.unguided)]

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        if not site.layer:
            self.rows.append(len(tokens.x))
        return super().block(site, step, tokens, block)


class Pictures:
    """The file's pictures, and a small model of 13 scales."""

    def __init__(self, vector: Vector) -> None:
        side = vector.facts["side"]
        self.named = {name: self._picture(side, *numbers) for name, numbers in vector.facts["pictures"].items()}
        pairs = [[self.named[name] for name in pair] for pair in vector.facts["pairs"]]
        self.new, self.old = (torch.stack(part) for part in zip(*pairs, strict=True))
        config = InfinityConfig(2, 2, 32, chunks=1, scales=squares(SIDES), width=5, text=256, longest=8)
        self.model = Infinity(config, [torch.ones(3, config.text)]).initialise(1).eval()

    @staticmethod
    def _picture(side: int, a: int, p: int, q: int, s: int, salt: int) -> Tensor:
        """Return the picture (3, side, side) of the file's recipe."""
        i, j, channel = torch.arange(side)[:, None], torch.arange(side), torch.arange(3)[:, None, None]
        noise = (i * j * s + salt) & 31 if s else torch.zeros((), dtype=torch.int64)
        return ((((i >> a) * p + (j >> a) * q + 29 * channel + noise) % 256) / 128 - 1).float()

    def rows(self, skipped: int, unguided: int) -> list[int]:
        """Return the rows of each of the 13 passes, 0 for those that are not made."""
        method = Told(skipped=skipped, unguided=unguided)
        self.model.generate(torch.tensor([0]), [0], method, Sampling(cfg_scale=3.0), Memory())
        return (method.rows + [0] * len(SIDES))[: len(SIDES)]


def rows(subject: Pictures, vector: Vector) -> float:
    return differing(torch.tensor([subject.rows(*outcome) for outcome in vector.facts["outcomes"]]), vector["rows"])


KINDS = {
    "skipvar": Kind(Pictures, (
        Check("moved", 1e-6, lambda subject, vector: apart(moved_edges(subject.old, subject.new), vector["moved"]), ("moved",)),
        Check("high", 1e-6, lambda subject, vector: apart(high_frequencies(subject.new), vector["high"]), ("high",)),
        Check("rows", 0.0, rows, ("rows",)),
    ), "Infinity under SkipVAR: the numbers of a decision for nine pairs of pictures, and the rows of all passes by outcome", ("skipvar",)),
}
