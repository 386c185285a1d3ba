"""LazyMAR's schedule: which passes are full, and how many tokens the others keep."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import torch
from torch import Tensor

from ...cache.layout import Layout
from ...cache.masked_layout import MaskedLayout, MaskedStep
from ...core.errors import BadBudget, BadParameter
from ...roofline.flops_budget import fitted
from .partial import Selecting

SPAN = 64  # passes that the published numbers are meant for
AUTHORS = (64, 32)  # numbers of passes that the authors ran them with
PUBLISHED = (1.0,) * 20 + (0.6,) + (0.5,) * 4 + (0.4,) * 5 + (0.15,) * 5 + (0.12,) * 5 + (0.05,) * 24


@dataclass
class Scheduled(Selecting):
    """The schedule of LazyMAR (arXiv 2503.12450) as in its published code; a subclass defines the scores.

    Passes before ``start`` are full, and every ``period``-th one from there. The others compute all tokens up to the attention of decoder
    block ``layer`` (from 0), and after it the fraction in ``table`` (None: the published one) times ``scale``; at least the tokens of this
    pass and the previous one (*forced*) and ``extra`` more. ``count`` > 0 sets a fixed number of tokens instead.

    ``schedule = "published"`` reads start, period and table at pass s, as the code does for any number of passes T; ``scaled`` reads them
    at ⌊64·s/T⌋, and a pass is full if a refresh has become due since the previous one. ``auto`` is ``published`` for T = 64 or 32, which
    the authors ran.
    """

    schedule: str = "auto"
    start: int = 5
    period: int = 9
    table: Sequence[float] | None = None
    scale: float = 1.0
    count: int = 0
    extra: int = 15
    layer: int = 3

    sizes = ("scale", "count")
    unstated = {
        "schedule": "the published code reads its numbers at the pass itself, whatever the number of passes; `scaled` is ours",
        "start": "5 at 64 passes, as here; at 32 the paper states 4, the published code 5",
        "period": "9 at 64 passes, as here; at 32 the paper states 5, the published code 9",
        "table": "of the published code; the paper skips about 270 of 320 tokens in every partial pass at 64 passes, about 250 at 32",
        "scale": "ours: set by the budget",
        "count": "ours: the default follows the published code; the paper computes about 50 tokens at 64 passes, about 70 at 32",
        "extra": "of the published code",
        "layer": "of the published code, which counts from 0; the paper's third block would be 2",
    }
    most_scale = 20  # turns even the least share of the published table into all tokens

    # -- planning -----------------------------------------------------------------------------------------------------
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """Return the largest ``scale``, in hundredths, within this fraction of the FLOPs."""
        shape = cast(MaskedLayout, layout)
        return {"scale": fitted(self.name, lambda i: replace(self, scale=i / 100), 100 * self.most_scale, budget, shape) / 100}

    def check(self) -> None:
        for parameter, least in (("start", 1), ("period", 1), ("scale", 0), ("count", 0), ("extra", 0)):
            self.check_range(parameter, getattr(self, parameter) >= least, f"Use at least {least}.")
        table = (1.0,) if self.table is None else self.table
        valid = bool(table) and all(isinstance(entry, int | float) and 0 <= entry <= 1 for entry in table)
        self.check_range("table", valid, "Use a list with a number in [0, 1] for each pass.")
        self.check_choice("schedule", "auto", "published", "scaled")
        if self.schedule == "auto":
            self.schedule = "published" if len(self.steps) in AUTHORS else "scaled"
        self.check_range("layer", 0 <= self.layer < self.shape.layers, f"Use a decoder block in 0 … {self.shape.layers - 1}.")

    # -- full passes, and numbers of tokens ---------------------------------------------------------------------------
    def _read_at(self, index: int) -> int:
        """Return the position in start, period and table for pass ``index``."""
        return index if self.schedule == "published" else SPAN * index // len(self.steps)

    def refreshes(self, step: MaskedStep) -> bool:
        now, before = self._read_at(step.index), self._read_at(step.index - 1)
        due, was_due = ((at - self.start) // self.period if at >= self.start else -1 for at in (now, before))
        return now < self.start or due > was_due

    def keep(self, step: MaskedStep) -> int:
        forced, places = step.count + self.steps[step.index - 1].count, self.shape.places
        if self.count:
            if self.count < forced:
                raise BadBudget(f"{self.name}: count = {self.count} is less than the {forced} tokens that pass {step.index} must compute.",
                                remedy="Use more, or 0 for the table.")
            return self.count
        table, at = self.table or PUBLISHED, self._read_at(step.index)
        if at >= len(table):
            raise BadParameter(f"{self.name}: pass {step.index} of {step.total} reads entry {at} of a table of {len(table)}.",
                               remedy="Use schedule = 'scaled', fewer passes, or a longer table.")
        return max(forced + self.extra, int(places * min(1, table[at] * self.scale)))

    # -- blocks and tokens of partial passes --------------------------------------------------------------------------
    @property
    def selects_at(self) -> int:
        return self.layer

    def spans(self, block: int) -> tuple[bool, bool]:
        return block <= self.layer, block < self.layer

    @property
    def forced_score(self) -> float:
        """The score of a forced token."""
        return float("-inf")

    @abstractmethod
    def scores(self, step: MaskedStep, v: Tensor) -> Tensor:
        """Return scores (rows, places); the lowest are computed. ``v``: values of block ``layer``, all tokens."""

    def choose(self, step: MaskedStep, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return positions by ascending score; ties by position."""
        forced = self.image(torch.cat((step.generating, step.previous), 1), len(v))
        scores = self.scores(step, v).scatter(1, forced, self.forced_score)
        return scores.argsort(dim=1, stable=True)
