"""Spatial-semantic head decoupling: recent tokens in spatial heads, most-attended in semantic heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.arena import Memory
from ..cache.bank import SlotBank
from ..cache.layout import Layout, Step
from ..core.errors import BadBudget
from .base.calibrations import Calibrated
from .h2o import H2O
from .registry import method

TOKEN, LINE = "token", "line"  # evictions follow each token or each line


@method("ssd_heads")
@dataclass
class SSDHeads(Calibrated, H2O):
    """Keeps the latest ``B`` tokens in *spatial* heads, and the most-attended ``B`` in *semantic* heads.

    "Spatial-Semantic Head Decoupling" (SSD, arXiv 2510.18716), neither state-space duality nor speculative decoding. Semantic heads always
    keep the ``recent`` latest tokens (0: half of ``B``, as H2O). A head is spatial if at least ``tau`` of its attention to visual tokens
    goes to the ``near`` latest lines, measured once for the weights. ``buffer = "line"`` is its variant that compresses once per line: the
    tokens of the current line count in ``B``.

    Differs from the paper, whose code was not available: heads that share keys and values count as one; both kinds keep equally many
    entries, since the paper does not state how its budget is shared.
    """

    title = "SSD heads"
    source = "SSD heads (arXiv 2510.18716); no code found; read from its abstract and from notes"
    authors_code = "none"
    unstated = {
        "calibration": "ours: which prompts and how many are not stated; here ten tuning seeds, conditional rows alone",
        "near": "ours: the span within which attention counts as spatial is not stated",
        "tau": "ours (docs/adr/0025-ssd-heads-defaults.md): neither the threshold nor the share of heads that it makes spatial is stated",
        "recent": "H2O's half (docs/adr/0025-ssd-heads-defaults.md): whether semantic heads spare the latest tokens too is not stated",
        "buffer": "both variants are the paper's; that the line that is written counts in the budget is ours",
    }
    paradigms = ("next-token",)
    parts = ("recency",)

    near: int = 1
    tau: float = 0.5
    recent: int = 0
    buffer: str = TOKEN

    # -- planning -----------------------------------------------------------------------------------------------------
    def resolve(self, layout: Layout) -> None:
        super().resolve(layout)
        self.check_choice("buffer", TOKEN, LINE)
        self.check_range("near", 1 <= self.near <= layout.lines, f"Use 1 … {layout.lines} lines.")
        self.check_range("tau", 0 <= self.tau <= 1, "Use a number from 0 to 1.")
        n = layout.line if self.buffer == LINE else 0
        if n and (self.B % n or n == self.B):
            raise BadBudget(f"ssd_heads: B = {self.B} does not fit lines of {n} tokens, which are evicted one line at a time.",
                            remedy=f"B must be a multiple of {n} and at least {2 * n}.")
        most = self.B - n
        self.recent = self.recent or max(1, most // 2)
        if not 1 <= self.recent <= most:
            raise BadBudget(f"ssd_heads: recent = {self.recent} does not fit B = {self.B}: {most} entries stay after an eviction.",
                            remedy=f"Use recent in 1 … {most}; the token just fed always stays.")
        self.spatial = [[head[self.near - 1] >= self.tau for head in heads] for heads in self.facts(layout)["recency"]]

    @property
    def evicts_behind(self) -> str:
        return self.buffer

    @property
    def slack(self) -> int:  # type: ignore[override]
        """One entry above the budget, unless a line is evicted at a time."""
        return int(self.buffer == TOKEN)

    # -- one generation -----------------------------------------------------------------------------------------------
    def prepare(self, slots: SlotBank, memory: Memory) -> None:
        """Allocate attention masses, and which heads are spatial: (sites, 1, kv_heads, 1)."""
        super().prepare(slots, memory)
        kinds = torch.tensor([self.spatial[site.layer] for site in slots.sites])[:, None, :, None]
        self.latest = memory.zeros(f"spatial.{slots.sites[0]}", tuple(kinds.shape), torch.bool).copy_(kinds)

    def score(self, step: Step, slots: SlotBank) -> Tensor:
        """Return ages in spatial heads and attention masses in semantic ones."""
        visual = slots.table()
        spared = visual > step.first - self.recent
        mass = self.mass[..., : visual.size(-1)].masked_fill(spared, float("inf"))
        return torch.where(self.latest, visual.float(), mass)
