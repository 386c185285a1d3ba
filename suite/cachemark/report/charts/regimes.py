"""Where a method pays: its speed-up over the full cache by batch and budget, for models that a run has at several batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...core.spec import OWN, digest
from .. import formatting as words
from ..view.row import Row, share_of_full
from ..view.section import Section
from .chart import Chart
from .drawing import Heatmap, HeatmapCell

SLOWER, FASTER = (213, 94, 0), (0, 114, 178)  # Okabe and Ito's vermilion and blue: told apart by every kind of eye
_FULL_TINT = 1.0  # twofold, either way, has the whole colour
_DARK = 1.6  # from which the colour needs light letters


@dataclass(frozen=True)
class Regime:
    """A method on a model: its chart, and in words at which batches and budgets it does not pay."""

    model: str
    method: str
    chart: Chart
    sentence: str


@dataclass(frozen=True)
class _Spot:
    """One cell of a chart."""

    batch: int
    budget: str
    row: Row

    @property
    def gain(self) -> float | None:
        return self.row.speed_up.value if self.row.speed_up else None

    @property
    def pays(self) -> bool:
        """Whether the method is surely faster."""
        return self.row.speed_up is not None and self.row.speed_up.low > 1


def regimes(parts: Iterable[Section]) -> tuple[Regime, ...]:
    """One for each method of every model that was measured at two batches or more, all else being equal."""
    families: dict[str, list[Section]] = {}
    for part in (part for part in parts if not part.searched):
        families.setdefault(_but_the_batch(part), []).append(part)
    found = []
    for held in families.values():
        batches = {part.case.batch for part in held}
        if len(batches) > 1:
            found += [_regime(held, name) for name in dict.fromkeys(name for part in held for name in part.methods)]
    return tuple(regime for regime in found if regime is not None)


def _but_the_batch(part: Section) -> str:
    data = part.case.to_json()
    return digest({name: value for name, value in data.items() if name not in (*OWN, "batch", "samples", "evaluation")})


def _regime(held: Sequence[Section], name: str) -> Regime | None:
    spots = [_Spot(part.case.batch, row.case.budget, row) for part in held for row in part.arms if row.method == name and row.ok]
    measured = [spot for spot in spots if spot.gain is not None]
    if not measured:
        return None
    return Regime(held[0].model, name, _chart(name, spots), _sentence(name, measured))


def _sentence(name: str, spots: Sequence[_Spot]) -> str:
    """By batch: at which budgets the full cache is the better choice."""
    lost: dict[int, list[str]] = {}
    for spot in sorted(spots, key=lambda s: (s.batch, -share_of_full(s.budget))):
        if not spot.pays:
            lost.setdefault(spot.batch, []).append(spot.budget)
    if not lost:
        return f"{words.name(name)} is faster than the full cache at every batch and budget measured here."
    every = {batch: len({s.budget for s in spots if s.batch == batch}) for batch in lost}
    where = [f"at batch {batch}" + ("" if len(budgets) == every[batch] else f" with {_list(budgets)} of it")
             for batch, budgets in lost.items()]
    return f"Use the full cache {_list(where)}: there {words.name(name)} is not surely faster."


def _list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _chart(name: str, spots: Sequence[_Spot]) -> Chart:
    title = f"Speed-up over the full cache: {words.plain(name, 40)}"
    batches = sorted({spot.batch for spot in spots})
    budgets = sorted({spot.budget for spot in spots}, key=share_of_full, reverse=True)
    held = {(spot.batch, spot.budget): spot for spot in spots}
    table = tuple((budget, *(_text(held.get((batch, budget))) for batch in batches)) for budget in budgets)
    cells = tuple(_cell(spot, budgets.index(spot.budget), batches.index(spot.batch)) for spot in held.values())
    grid = Heatmap("Batch", "Budget", tuple(map(str, batches)), tuple(words.plain(budget, 16) for budget in budgets), cells)
    caption = "Blue: faster than the full cache, orange: slower; full colour at twice or half its speed. No border: not surely either."
    return Chart("speed", title, caption, grid, ("Budget", *(f"batch {batch}" for batch in batches)), table)


def _text(spot: _Spot | None) -> str:
    if spot is None or spot.row.speed_up is None:
        return words.DASH
    ends = spot.row.speed_up
    return f"{words.times(ends.value)} ({ends.low:.2f}–{ends.high:.2f})"


def _cell(spot: _Spot, row: int, column: int) -> HeatmapCell:
    gain, sure = spot.gain, spot.row.speed_up is not None and not spot.row.speed_up.low <= 1 <= spot.row.speed_up.high
    tip = f"{words.plain(spot.row.case.label, 60)}, batch {spot.batch}: {_text(spot)}"
    ink = "#ffffff" if gain and max(gain, 1 / gain) > _DARK else "#1b1f24"
    return HeatmapCell(row, column, tint(gain), ink, words.times(gain) if gain else words.DASH, tip, sure)


def tint(gain: float | None) -> str:
    """A colour for a speed-up: white at 1, the whole of blue or orange at 2 and at 1/2; grey where there is none."""
    if gain is None or gain <= 0:
        return "rgb(210,210,210)"
    far = gain - 1 if gain >= 1 else 1 / gain - 1
    share, ink = min(1.0, far / _FULL_TINT), FASTER if gain >= 1 else SLOWER
    return f"rgb({','.join(str(round(255 + (channel - 255) * share)) for channel in ink)})"
