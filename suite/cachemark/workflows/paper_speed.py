"""Roofline speedups for the report's answer map, at batches and sequence lengths without measurements."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from ..core.limits import Rates
from ..core.spec import FULL, Case

SIDES = (Fraction(1, 2), Fraction(1), Fraction(2))  # of the grid that a next-token model was made for


@dataclass
class PaperSpeed:
    """Roofline times with the rates of a run.

    Returns None without torch, without the plug-in of the model, and for a model without a FLOP model. torch is imported on first use.
    """

    _known: dict[tuple[str, str, int, int], float | None] = field(default_factory=dict)

    def lengths(self, full: Case) -> tuple[int, ...]:
        """Return tokens per image; for a next-token model also on grids half and twice as wide."""
        tokens = full.grid[0] * full.grid[1]
        try:
            from ..models.registry import MODELS

            raster = MODELS.get(full.model).paradigm == "next-token"
        except Exception:  # no torch, no such model: of whatever kind, a page must not fail for a prediction
            return ()
        sides = SIDES if raster and not any(side % 2 for side in full.grid) else (Fraction(1),)
        return tuple(int(tokens * side**2) for side in sides)

    def allowed(self, full: Case, candidate: Case, rates: Rates, image: float, batch: int, tokens: int) -> float | None:
        """Return the roofline speedup of a candidate over its full cache at a batch and length, or None.

        ``image``: seconds to decode one image on the model's own grid, scaled with the area of other grids.
        """
        full_time, part = (self._roofline_time(case, rates, batch, tokens)
                           for case in (replace(full, method=FULL, parameters={}), candidate))
        if not full_time or not part:
            return None
        decoding = image * batch * tokens / (full.grid[0] * full.grid[1])
        return (full_time + decoding) / (part + decoding)

    def _roofline_time(self, case: Case, rates: Rates, batch: int, tokens: int) -> float | None:
        name = case.method, case.key, batch, tokens
        if name not in self._known:
            try:
                self._known[name] = _roofline_time(case, rates, batch, tokens)
            except Exception:  # budgets that do not fit, plug-ins that fail: as above
                self._known[name] = None
        return self._known[name]


def _roofline_time(case: Case, rates: Rates, batch: int, tokens: int) -> float | None:
    """Seconds of a batch at least, without image decoding. A method on another grid has its share of that."""
    import torch

    from ..cache.codec import codec
    from ..core.spec import Budget
    from ..methods.registry import METHODS
    from ..models.registry import MODELS
    from ..plans.expand import resolve
    from ..roofline.bill import bill

    entry, area = MODELS.get(case.model), Fraction(tokens, case.grid[0] * case.grid[1])
    counts = entry.parameter_counts()
    if counts is None:
        return None
    layout = replace(entry.shape(case.sampling, batch), dtype=getattr(torch, case.dtype))
    cls, parameters = METHODS.get(case.method), dict(case.parameters)
    if area != 1:
        side = next(side for side in SIDES if side**2 == area)
        layout = replace(layout, lines=int(layout.lines * side), line=int(layout.line * side))
        own = {name: value for name, value in parameters.items() if name not in ("B", *cls.sizes)}
        parameters = resolve(cls, Budget.parse(case.budget), layout, own, case.weights) if case.method != FULL else parameters
    return bill(cls.build(parameters), layout, counts, codec=codec(case.codec), images=False).roofline_time(rates)
