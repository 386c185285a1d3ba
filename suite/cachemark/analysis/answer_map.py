"""Recommended cache of a model by batch size and sequence length, measured or predicted.

A prediction is the roofline speedup there, times the fraction of it that was reached at the nearest measured batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..core.limits import Rates
from ..core.spec import Case
from ..stats.intervals import Interval
from .answers import Candidate, candidate, named, select
from .case_group import CaseGroup, over_batches
from .quality_claims import Claims
from .report_row import ReportRow

FULL = "full cache"
BATCHES = (1, 4, 16, 64, 256)  # predicted in addition to the measured ones
MOST = 8  # methods to predict: those with the largest measured speedups


class Predictor(Protocol):
    """Roofline arithmetic for cases that were not measured."""

    def lengths(self, full: Case) -> Sequence[int]:
        """Return the sequence lengths with known costs, the model's own among them."""

    def allowed(self, full: Case, arm: Case, rates: Rates, image: float, batch: int, tokens: int) -> float | None:
        """Return the roofline speedup there, None if unknown.

        ``image`` is the roofline time in seconds to decode one image on the model's own grid.
        """


@dataclass(frozen=True)
class MapCell:
    """Best method (or the full cache) at one batch and length, with its speedup, measured or predicted."""

    batch: int
    tokens: int
    best: str
    gain: Interval | None
    measured: bool


@dataclass(frozen=True)
class AnswerMap:
    """Recommendations for one model; quality was measured at its own length, ``tokens``."""

    model: str
    tokens: int
    cells: tuple[MapCell, ...]

    @property
    def batches(self) -> list[int]:
        return sorted({cell.batch for cell in self.cells})

    @property
    def lengths(self) -> list[int]:
        return sorted({cell.tokens for cell in self.cells})

    @property
    def sentence(self) -> str:
        own = sorted((cell for cell in self.cells if cell.tokens == self.tokens), key=lambda cell: cell.batch)
        answers = "; ".join(f"batch {cell.batch}: {cell.best}" for cell in own if cell.measured)
        text = f"Measured at {answers}."
        if all(cell.measured for cell in self.cells):
            return text
        last = max(cell.batch for cell in own if cell.measured)
        first = next((cell for k, cell in enumerate(own) if cell.batch > last and all(later.gain for later in own[k:])), None)
        text += (f" Prediction: {first.best} from batch {first.batch}." if first else
                 f" Prediction: no method is clearly faster up to batch {own[-1].batch}.")
        return f"{text} Quality was measured at {self.tokens} tokens only." if len(self.lengths) > 1 else text


def answer_maps(groups: Iterable[CaseGroup], claims: Claims, predictor: Predictor | None = None) -> tuple[AnswerMap, ...]:
    """Return a map for each model with a non-inferior method and at least two measured or predicted fields."""
    families = over_batches(group for group in groups if group.full is not None and group.full.ok and not group.searched)
    return tuple(answers for family in families if (answers := _map(family, claims, predictor)) is not None)


def _map(family: Sequence[CaseGroup], claims: Claims, predictor: Predictor | None) -> AnswerMap | None:
    qualified = {_name(row): (group, row) for group in family for row in group.candidates
                 if row.ok and candidate(row, claims).qualified and row.speedup is not None}
    if not qualified:
        return None
    full = family[0].case
    tokens = full.grid[0] * full.grid[1]
    cells = [_measured(group, set(qualified), claims, tokens) for group in {group.case.batch: group for group in family}.values()]
    here = {(cell.batch, cell.tokens) for cell in cells}
    best = sorted(qualified.values(), key=lambda pair: -candidate(pair[1], claims).least_gain)[:MOST]
    for length in predictor.lengths(full) if predictor else ():
        for batch in sorted({*BATCHES, *(cell.batch for cell in cells if cell.measured)}):
            if (batch, length) not in here and (cell := _predicted(family, best, predictor, batch, length)) is not None:
                cells.append(cell)
    return AnswerMap(family[0].model, tokens, tuple(cells)) if len(cells) > 1 else None


def _name(row: ReportRow) -> tuple[str, str]:
    return row.method, row.case.budget


def _measured(group: CaseGroup, qualified: set[tuple[str, str]], claims: Claims, tokens: int) -> MapCell:
    rows = {row.case.key: row for row in group.candidates if row.ok}
    able = [replace(candidate(row, claims), qualified=_name(row) in qualified) for row in rows.values()]
    chosen = select(able).best
    best = FULL if chosen is None else named(rows[chosen.key].case)
    return MapCell(group.case.batch, tokens, best, chosen.gain if chosen else None, True)


def _predicted(
    family: Sequence[CaseGroup], rows: Sequence[tuple[CaseGroup, ReportRow]], predictor: Predictor | None, batch: int, tokens: int,
) -> MapCell | None:
    assert predictor is not None
    able, names, full = list[Candidate](), dict[str, str](), family[0].case
    for _, row in rows:
        group, near = _nearest(family, row, batch)
        limit = group.full.limit if group.full else None
        if limit is None or near.speedup is None:
            continue
        rates, image = Rates(limit.bandwidth, limit.peak_flops), limit.by.get("decode", 0.0) / near.case.batch
        own = near.case.batch, full.grid[0] * full.grid[1]
        there, here = (predictor.allowed(full, row.case, rates, image, *place) for place in ((batch, tokens), own))
        if there is None or not here:
            continue
        value, low = (there * min(end / here, 1.0) for end in (near.speedup.value, near.speedup.low))
        gain = Interval(value, low, there, near.speedup.confidence, near.speedup.n)
        able.append(Candidate(row.case.key, gain, row.saving, qualified=True, measured=False, doubt=near.implausible))
        names[row.case.key] = named(row.case)
    if not able:
        return None
    chosen = select(able).best
    return MapCell(batch, tokens, names[chosen.key] if chosen else FULL, chosen.gain if chosen else None, False)


def _nearest(family: Sequence[CaseGroup], row: ReportRow, batch: int) -> tuple[CaseGroup, ReportRow]:
    same = [(group, other) for group in family for other in group.candidates
            if other.ok and other.speedup is not None and _name(other) == _name(row)]
    return min(same, key=lambda pair: max(pair[1].case.batch / batch, batch / pair[1].case.batch))
