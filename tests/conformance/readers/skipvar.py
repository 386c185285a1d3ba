"""SkipVAR's code on Infinity: the rows that each pass computes, by scales that are skipped or have no guidance."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from cachemark.cache.arena import Memory
from cachemark.cache.layout import Layout, Site, Step, Tokens, squares
from cachemark.contract.method import Block, Method
from cachemark.core.spec import Sampling
from cachemark.methods.fewer_scales import FewerScales
from cachemark.methods.guidance_off import GuidanceOff
from cachemark.models.infinity import Infinity, InfinityConfig

from ..checks import Check, Kind, Vector, differing

SIDES = tuple(range(1, 14))  # as many scales as the file's, of fewer tokens, which no pass depends on


@dataclass
class Recording(Method):
    """Computes what another method declares, and records the rows of each pass."""

    declared: Method = field(default_factory=Method)
    rows: list[int] = field(default_factory=list)

    def scales(self, layout: Layout) -> int:
        return self.declared.scales(layout)

    def computed_rows(self, layout: Layout, scale: int) -> int:
        return self.declared.computed_rows(layout, scale)

    def block(self, site: Site, step: Step, tokens: Tokens, block: Block) -> Tokens:
        if not site.layer:
            self.rows.append(len(tokens.x))
        return super().block(site, step, tokens, block)


class SmallInfinity:
    """A small model of 13 scales."""

    def __init__(self, vector: Vector) -> None:
        config = InfinityConfig(2, 2, 32, chunks=1, scales=squares(SIDES), width=5, text=256, longest=8)
        self.model = Infinity(config, [torch.ones(3, config.text)]).initialise(1).eval()

    def rows(self, skipped: int, unguided: int) -> list[int]:
        """Return the rows of each of the 13 passes, 0 for those that are not made."""
        method = Recording(FewerScales(skipped) if skipped else GuidanceOff(len(SIDES) - unguided))
        self.model.generate(torch.tensor([0]), [0], method, Sampling(cfg_scale=3.0), Memory())
        return (method.rows + [0] * len(SIDES))[: len(SIDES)]


def rows(subject: SmallInfinity, vector: Vector) -> float:
    return differing(torch.tensor([subject.rows(*outcome) for outcome in vector.facts["outcomes"]]), vector["rows"])


KINDS = {
    "skipvar": Kind(SmallInfinity, (Check("rows", 0.0, rows, ("rows",)),),
                    "Infinity under SkipVAR: the rows of all passes by outcome", ("fewer_scales", "guidance_off")),
}
