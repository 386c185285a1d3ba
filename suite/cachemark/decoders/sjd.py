"""Speculative Jacobi decoding, with options of SJD++ (reuse) and GSD (token groups)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.spec import DISTRIBUTION
from . import rules
from .registry import decoder
from .speculative import ANOTHER, DraftWindow, Speculative

GAP = 0.15  # largest difference of probabilities in a group, as in GSD's code
GROUPED = "Accepts drafts by groups of tokens, so its images do not follow the distribution of sequential decoding."


@decoder("sjd")
@dataclass
class SJD(Speculative):
    """Accepts each draft with probability min(1, p/q), for its current distribution p and earlier one q.

    "Accelerating Auto-regressive Text-to-Image Generation with Training-free Speculative Jacobi Decoding" (ICLR 2025, arXiv 2410.01699).
    Images follow the distribution of sequential decoding. The leftmost rejected draft is redrawn from max(p − q, 0) and is the last token
    that the pass keeps; the positions after it are redrawn from p. ``proposals`` initializes positions that no pass has drawn yet; except
    with ``newest``, these drafts count as certain (q = 1), as in the authors' code.

    ``reuse`` (SJD++, arXiv 2512.07503): keeps a draft after the first rejected one if p/q exceeds this ratio; 0 redraws all. Such a draft
    has a distribution other than p and q. This decoder computes it and tests the draft against it, so images still follow the distribution
    of sequential decoding.

    ``group`` (GSD, ICCV 2025, arXiv 2508.07747): sums p and q over this many tokens, ranked next to the draft by p and within 0.15 of its
    p; 0 uses the draft alone, the authors' code uses 14. This changes the distribution of the images. The authors also compare token
    embeddings, which a decoder cannot see, and their groups accept drafts that top-k or the image format excludes.

    Differs from the authors' code, which serves one image: images of a batch advance by the shortest acceptance, and tokens already
    accepted in other images stay accepted. (Their code tests these again against the old q, which changes the distribution.) The window
    covers all tokens; theirs starts and ends a few tokens inside the image.
    """

    title = "SJD"
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
