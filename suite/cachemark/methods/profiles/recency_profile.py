"""The share of a head's attention that goes to the latest tokens of a raster, which tells spatial heads from semantic ones."""

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
    """The full cache of a next-token model, which also notes how much of the attention to visual tokens goes to the latest ones.

    One instance serves many generations and takes means over the conditional rows of all, in fp64; no unconditional row counts. It is no
    method to be measured.
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
        """Add the masses (rows, kv_heads, live) of a token's queries, wherever there is more to see than the lines that are counted."""
        tokens, line = step.first + step.count, self.layout.line
        latest = mass[..., run.condition : run.condition + tokens].double().flip(-1).cumsum(-1)
        lines = (tokens - 1) // line
        shares = latest[..., line - 1 : lines * line : line] / latest[..., -1:]
        self._shares[layer, :, :lines] += shares.sum(0).cpu()

    @property
    def recency(self) -> Tensor:
        """Share of a query's attention to visual tokens that goes to the latest 1, 2, … lines of them, its own among them: (layers,
        kv_heads, lines) fp64, mean over the passes that have more to see; 1 where none has. Queries that share a K/V head count by the
        attention that they pay to visual tokens."""
        layout = self.layout
        passes = torch.arange(1, layout.lines + 1).mul(-layout.line).add(layout.visual - 1)
        return torch.where(passes > 0, self._shares / (self.rows * passes.clamp_min(1)), 1.0)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The shares as lists, with the shape that they belong to."""
        layout = self.layout
        shares = [[[round(share, DECIMALS) for share in lines] for lines in heads] for heads in self.recency.tolist()]
        return {"layers": layout.layers, "heads": layout.kv_heads, "lines": layout.lines, "line": layout.line, "recency": shares}
