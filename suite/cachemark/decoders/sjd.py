"""Speculative Jacobi decoding, and its successors as options: reused drafts (SJD++), trees (SJD-PAC), groups of tokens (GSD)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import BadParameter
from ..core.spec import DISTRIBUTION
from . import rules
from .registry import decoder
from .speculative import ANOTHER, DraftWindow, Speculative

GAP = 0.15  # largest difference of probabilities in a group, as in GSD's code
GROUPED = "Accepts drafts by groups of tokens, so its images do not follow the distribution of sequential decoding."


@decoder("sjd")
@dataclass
class SJD(Speculative):
    """Accepts each draft with probability min(1, p/q): p is its distribution now, q its earlier one.

    "Accelerating Auto-regressive Text-to-Image Generation with Training-free Speculative Jacobi Decoding" (ICLR 2025, arXiv 2410.01699).
    Images follow the distribution of sequential decoding. From the left, the first rejected draft is redrawn from max(p − q, 0) and is the
    last token that the pass keeps; the positions after it are redrawn from p. ``proposals`` initializes positions that no pass has drawn;
    all but ``newest`` are taken as certain, q = 1, as in the authors' code.

    ``reuse`` (SJD++, arXiv 2512.07503): a draft behind the first rejected one stays if p/q exceeds this ratio; 0 redraws all. A draft that
    may stay has neither the distribution p nor q. This decoder computes it and tests the draft against it, so that images still follow the
    distribution of sequential decoding.

    ``branches`` (SJD-PAC, CVPR 2026, arXiv 2603.18599): so many drafts are fed for each of the first two positions of a pass, see
    :class:`~.speculative.Speculative`. With ``coupling = "maximal"``, :class:`~.scd.SCD` with branches is all of SJD-PAC.

    ``group`` (GSD, ICCV 2025, arXiv 2508.07747): sums p and q over the so many tokens whose p ranks next to the draft's and differs by less
    than 0.15; 0 for the draft alone, 14 in the authors' code. This changes the distribution of the images. The authors also compare the
    embeddings of tokens, which a decoder does not see, and their groups let pass drafts that top-k or the format of the image excludes.

    Differs from the authors' code, which serves one image: images of a batch advance by the shortest acceptance, and tokens that a longer
    one has accepted stay accepted. (Their code tests these again against the old q, which changes the distribution.) The window reaches
    from the first token to the last; theirs starts and ends a few tokens inside the image.
    """

    source = "Speculative Jacobi decoding, arXiv 2410.01699"

    group: int = 0
    reuse: float = 0.0

    @property
    def keeps(self) -> str:  # type: ignore[override]
        """The distribution, unless drafts are accepted by groups."""
        return "" if self.group else DISTRIBUTION

    @property
    def footnotes(self) -> tuple[str, ...]:  # type: ignore[override]
        return (GROUPED if self.group else ANOTHER,)

    def check(self) -> None:
        super().check()
        self.check_range("group", self.group >= 0 and self.group % 2 == 0, "Use an even number of tokens, or 0 for the draft alone.")
        self.check_range("reuse", self.reuse >= 0, "Use a ratio of probabilities such as 1, or 0 to redraw all drafts.")
        if self.group and self.branches > 1:
            raise BadParameter(f"{self.name}: group = {self.group} tests one draft per position, and branches = {self.branches}.",
                               remedy="Use branches = 1, or group = 0.")

    def passes(self, coins: Tensor, p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
        if not self.group:
            return super().passes(coins, p, q, drafts)
        possible = p.gather(-1, drafts[..., None])[..., 0] > 0
        return possible & rules.group_accepted(coins, p, q, rules.group_of(p, p, drafts, self.group, GAP))

    def next_drafts(self, tested: DraftWindow) -> Tensor:
        drawn = super().next_drafts(tested)
        if not self.reuse:
            return drawn
        stays = rules.reused(tested.p, tested.q, tested.drafts, self.reuse)
        stays[:, -1] = False  # the last position has no draft
        return torch.where(stays, tested.drafts, drawn)

    def remembered(self, tested: DraftWindow) -> Tensor:
        return rules.reused_distribution(tested.p, tested.q, self.reuse) if self.reuse else super().remembered(tested)
