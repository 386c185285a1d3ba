"""Attention of each head to the latest lines, which separates spatial from semantic heads (SSD heads)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...cache.layout import Layout, RowRun, Site, Step
from ...cache.slot import Slot
from ...contract.method import Method

DECIMALS = 6


class RecencyProfile(Method):
    """The full cache of a next-token model, which measures attention to the latest visual tokens.

    One instance serves many generations and averages over conditional rows in fp64. Not a method to benchmark.
    """

    needs_mass = True

    def __init__(self) -> None:
        self.rows = 0

    def begin(self, layout: Layout, sites: Any, memory: Any) -> None:
        super().begin(layout, sites, memory)
        if not self.rows:
            self._shares = torch.zeros(layout.layers, layout.kv_heads, layout.lines, dtype=torch.float64)
        self._asked = [[row for row in range(run.start, run.stop) if not layout.branches[row]] for run in layout.runs]
        self.rows += sum(map(len, self._asked))

    def observe(self, site: Site, step: Step, slot: Slot, q: Tensor, mass: Tensor | None) -> None:
        assert mass is not None
        if step.count:
            for run, rows in zip(slot.bank.runs, self._asked, strict=True):
                self._note(site.layer, step, run, mass[rows])

    def _note(self, layer: int, step: Step, run: RowRun, mass: Tensor) -> None:
        """Add the masses (rows, kv_heads, live) of a token's queries, if more lines are visible than counted."""
        tokens, line = step.first + step.count, self.layout.line
        latest = mass[..., run.condition : run.condition + tokens].double().flip(-1).cumsum(-1)
        lines = (tokens - 1) // line
        shares = latest[..., line - 1 : lines * line : line] / latest[..., -1:]
        self._shares[layer, :, :lines] += shares.sum(0).cpu()

    @property
    def recency(self) -> Tensor:
        """Fraction of attention to the latest 1, 2, … lines: (layers, kv_heads, lines) fp64.

        The mean over passes with more visual tokens than that, 1 if there are none. Only attention to visual tokens counts.
        """
        layout = self.layout
        passes = torch.arange(1, layout.lines + 1).mul(-layout.line).add(layout.visual - 1)
        return torch.where(passes > 0, self._shares / (self.rows * passes.clamp_min(1)), 1.0)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The table as lists, with its shape."""
        layout = self.layout
        shares = [[[round(share, DECIMALS) for share in lines] for lines in heads] for heads in self.recency.tolist()]
        return {"layers": layout.layers, "heads": layout.kv_heads, "lines": layout.lines, "line": layout.line, "recency": shares}
