"""LazyMAR's schedule: which passes of a masked generation are full, and how many tokens the others keep."""

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
from ...roofline.masked_flops import fitted
from .partial import Partial

SPAN = 64  # passes that the published numbers are meant for
AUTHORS = (64, 32)  # numbers of passes that the authors ran them with
PUBLISHED = (1.0,) * 20 + (0.6,) + (0.5,) * 4 + (0.4,) * 5 + (0.15,) * 5 + (0.12,) * 5 + (0.05,) * 24


@dataclass
class Scheduled(Partial):
    """The schedule of LazyMAR (arXiv 2503.12450) as its code was published; a subclass gives the scores.

    Passes are full before ``start`` and every ``period`` from there. In the others all tokens go up to the attention of the
    decoder's block ``layer`` (from 0), and behind it the share of them that ``table`` (None: the published one), times
    ``scale``, has for the pass; at least the tokens of this pass and the one before (*forced*) and ``extra`` more. ``count`` > 0 is a
    number of tokens in place of all that.

    ``schedule = "published"`` reads start, period and table at pass s, as the code does for any number of passes T; ``scaled`` reads
    them at ⌊64·s/T⌋, where a pass is full if a refresh has fallen due since the one before it. ``auto`` is ``published`` where T
    is 64 or 32, the numbers that the authors ran.
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
        "start": "5 at 64 passes, as here; at 32 the paper says 4, where the published code has 5",
        "period": "9 at 64 passes, as here; at 32 the paper says 5, where the published code has 9",
        "table": "of the published code; the paper skips about 270 of 320 tokens in every partial pass at 64 passes, about 250 at 32",
        "scale": "ours: what a budget becomes",
        "count": "ours: the default follows the published code, where the paper computes about 50 tokens at 64 passes, about 70 at 32",
        "extra": "of the published code",
        "layer": "of the published code, which counts from 0; the paper says the third block, which would be 2",
    }
    most_scale = 20  # turns even the least share of the published table into all tokens

    # -- what a plan asks ---------------------------------------------------------------------------------------------
    def fit(self, budget: Fraction, layout: Layout) -> dict[str, Any]:
        """The largest ``scale``, in hundredths, that keeps a whole image within this share of its FLOPs."""
        shape = cast(MaskedLayout, layout)
        return {"scale": fitted(self.name, lambda i: replace(self, scale=i / 100), 100 * self.most_scale, budget, shape) / 100}

    def check(self) -> None:
        for parameter, least in (("start", 1), ("period", 1), ("scale", 0), ("count", 0), ("extra", 0)):
            if (value := getattr(self, parameter)) < least:
                raise BadParameter(f"{self.name}: {parameter} = {value} is too small.", remedy=f"Give at least {least}.")
        table = self.table
        if table is not None and (isinstance(table, str) or not table or not all(_is_share(entry) for entry in table)):
            raise BadParameter(f"{self.name}: table = {table!r} is not a list of shares.",
                               remedy="Give one number in [0, 1] for each pass.")
        self.check_choice("schedule", "auto", "published", "scaled")
        if self.schedule == "auto":
            self.schedule = "published" if len(self.steps) in AUTHORS else "scaled"
        if not 0 <= self.layer < self.shape.layers:
            raise BadParameter(f"{self.name}: layer = {self.layer} of {self.shape.layers} decoder blocks.",
                               remedy=f"Give 0 … {self.shape.layers - 1}.")

    # -- which passes, and how many tokens ----------------------------------------------------------------------------
    def _read_at(self, index: int) -> int:
        """Position at which start, period and table are read in pass ``index``."""
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
                                remedy="Give more, or 0 for the table.")
            return self.count
        table, at = self.table or PUBLISHED, self._read_at(step.index)
        if at >= len(table):
            raise BadParameter(f"{self.name}: pass {step.index} of {step.total} reads entry {at} of a table of {len(table)}.",
                               remedy="Give schedule = 'scaled', fewer passes, or a longer table.")
        return max(forced + self.extra, int(places * min(1, table[at] * self.scale)))

    # -- which blocks and tokens --------------------------------------------------------------------------------------
    @property
    def selects(self) -> int:
        return self.layer

    def spans(self, block: int) -> tuple[bool, bool]:
        return block <= self.layer, block < self.layer

    @property
    def forced_score(self) -> float:
        """The score that a forced token is given."""
        return float("-inf")

    @abstractmethod
    def scores(self, step: MaskedStep, v: Tensor) -> Tensor:
        """(rows, places): the smaller, the sooner a token goes on. ``v``: values of block ``layer``, of all tokens."""

    def choose(self, step: MaskedStep, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The smallest scores first; ties by place."""
        forced = self.image(torch.cat((step.generating, step.previous), 1), len(v))
        scores = self.scores(step, v).scatter(1, forced, self.forced_score)
        return scores.argsort(dim=1, stable=True)


def _is_share(entry: object) -> bool:
    return isinstance(entry, int | float) and 0 <= entry <= 1
