"""SkipVAR: skip an image's last scales, or their guidance, depending on an early scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from ..cache.layout import Layout, Site, Step
from ..contract.deciding import Deciding, Pictured
from ..contract.method import Method
from ..contract.planning import MethodOverhead, Profiler
from ..core.errors import BadBudget, BadParameter
from ..roofline.scale_flops import share
from .base.calibrations import Calibrated
from .base.image_edges import high_frequencies, moved_edges
from .base.outcome_profile import LAST, THRESHOLDS, OutcomeProfile
from .base.saves_flops import SavesFlops
from .registry import method

PICTURE = 8  # tokens along a side of the images that are read


@dataclass
class ImageOutcome(Method):
    """The computation of one image after the decision.

    ``skipped`` last scales are absent, or ``unguided`` last scales have no guidance.
    """

    skipped: int = 0
    unguided: int = 0

    def scales(self, layout: Layout) -> int:
        return len(layout.scales) - self.skipped

    def computed_rows(self, layout: Layout, scale: int) -> int:
        return layout.rows if scale < len(layout.scales) - self.unguided else layout.batch

    def kind(self, layout: Layout, site: Site) -> bool:
        return not site.layer

    def overhead(self, layout: Layout, site: Site, step: Step) -> MethodOverhead:
        """Return the work of adding the last map to the image for the decision, unless a later scale adds it."""
        reads = self.skipped == LAST and not site.layer and step.last and layout.work is not None
        return MethodOverhead(products=layout.work.scale * layout.batch // layout.rows if reads and layout.work else 0)


COUNTS = range(1, LAST + 1)
OUTCOMES = (ImageOutcome(), *(ImageOutcome(skipped=count) for count in COUNTS), *(ImageOutcome(unguided=count) for count in COUNTS))


@method("skipvar")
@dataclass
class SkipVAR(Calibrated, Deciding, SavesFlops):
    """Skips up to three of the last scales of an image, or their guidance, as a fitted table decides.

    Li et al., "SkipVAR: Accelerating Visual Autoregressive Modeling via Adaptive Frequency-Aware Skipping" (arXiv 2506.08908). After the
    fourth of the last scales, the image so far and the one before that scale are decoded at 8×8 tokens. Two linear classifiers read how
    much edges have moved and the share of high frequencies: one chooses how many last scales are skipped, and if none is, the other how
    many have no guidance. A calibration fits them to the SSIM of the tuning images, for each ``threshold`` that an image should reach
    against the full cache's; a budget takes the highest threshold whose expected FLOPs meet it. A threshold of 1 decides nothing.

    Differs from the authors' code: the tables are fitted on the model's tuning seeds (theirs: 3000 samples of Infinity-2B) and each has
    all four classes; any batch and VAR are supported; VAR's decoder clamps the images that are read. FLOPs do not include decoding them.
    """

    sizes = ("threshold",)
    source = "SkipVAR (arXiv 2506.08908), and its code for Infinity"
    unstated = {"calibration": "ours: fitted on tuning seeds; the authors' tables are for Infinity-2B",
                "threshold": "the default of the authors' code, for Infinity"}
    neutral = {"threshold": 1.0}

    threshold: float = 0.84

    @classmethod
    def profiler(cls) -> Profiler:
        return OutcomeProfile(PICTURE, OUTCOMES)

    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the highest threshold whose expected FLOPs are within this fraction of an image's."""
        if budget == 1:
            return {"threshold": 1.0}
        shares = {threshold: share(self._at(threshold), layout) for threshold in THRESHOLDS}
        if not (within := [threshold for threshold in THRESHOLDS if shares[threshold] <= budget]):
            least = min(shares.values())
            raise BadBudget(f"skipvar: at its thresholds it computes at least {float(least):.5g} of the FLOPs of an image, more than "
                            f"{budget}.", remedy="Raise the budget, or give its threshold.")
        return {"threshold": max(within)}

    def _at(self, threshold: float) -> SkipVAR:
        """Return the method at another threshold, with the same calibration."""
        other = replace(self, threshold=threshold)
        other.calibrate(self._measured)
        return other

    def resolve(self, layout: Layout) -> None:
        if len(layout.scales) < LAST + 2:
            raise BadParameter(f"skipvar: {len(layout.scales)} scales are too few to decide about the last {LAST}.",
                               remedy=f"Use a model of at least {LAST + 2} scales.")
        facts = self.facts(layout)
        choices = f"Use one of {', '.join(map(str, THRESHOLDS))}, 1 for no decision, or a budget such as 3/4."
        self.check_range("threshold", self.threshold in (*THRESHOLDS, 1), choices)
        if self.threshold < 1:
            row = THRESHOLDS.index(self.threshold)
            self.skips_by, self.unguides_by, self.frequencies = facts["skip"][row], facts["unguided"][row], facts["outcomes"][row]

    def tables(self, facts: Mapping[str, Any], layout: Layout) -> Mapping[str, tuple[int, ...]]:
        classes = (len(THRESHOLDS), LAST + 1, 3)
        return {"skip": classes, "unguided": classes, "outcomes": (len(THRESHOLDS), len(OUTCOMES))}

    def expected(self, layout: Layout) -> Sequence[tuple[float, Method]]:
        if self.threshold == 1:
            return [(1.0, OUTCOMES[0])]
        total = sum(self.frequencies) or 1.0
        return [(frequency / total, outcome) for frequency, outcome in zip(self.frequencies, OUTCOMES, strict=True)]

    def decides_after(self, layout: Layout) -> int | None:
        return len(layout.scales) - LAST - 1 if self.threshold < 1 else None

    def decide(self, pictured: Pictured) -> Sequence[Method]:
        old, new = pictured(min(PICTURE, *self.layout.scales[-1]))
        features = torch.stack((moved_edges(old, new), high_frequencies(new)), 1).double().cpu()
        skipped, unguided = chosen(features, self.skips_by), chosen(features, self.unguides_by)
        without = LAST if any(self.layout.branches) else 0
        return [OUTCOMES[skip] if skip else OUTCOMES[LAST + row if row and without else 0]
                for skip, row in zip(skipped, unguided, strict=True)]


def chosen(features: Tensor, weights: Sequence[Sequence[float]]) -> list[int]:
    """Return the class of each image from its ``features`` (batch, 2).

    ``weights``: (classes, 3), two factors and a bias.
    """
    table = torch.tensor(weights, dtype=torch.float64)
    return ((features[:, None] * table[:, :2]).sum(2) + table[:, 2]).argmax(1).tolist()
