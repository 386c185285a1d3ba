"""Heat maps of speed-ups by batch and budget."""

from __future__ import annotations

from ...core.spec import shown_share
from .. import formatting as fmt
from ..view.regimes import Regime, RegimeSpot
from ..view.report_row import share_of_full
from .chart import Chart
from .svg import Heatmap, HeatmapCell

SLOWER, FASTER = (213, 94, 0), (0, 114, 178)  # Okabe and Ito's vermilion and blue: told apart by every kind of eye
_FULL_TINT = 1.0  # twofold, either way, has the whole colour
_DARK = 1.6  # from which the colour needs light letters


def regime_map(regime: Regime) -> Chart:
    """A field for each batch and budget of a method."""
    title, spots = f"Speed-up over the full cache: {fmt.plain(regime.method, 40)}", regime.spots
    batches = sorted({spot.batch for spot in spots})
    budgets = sorted({spot.budget for spot in spots}, key=share_of_full, reverse=True)
    found = {(spot.batch, spot.budget): spot for spot in spots}
    table = tuple((shown_share(budget), *(_text(found.get((batch, budget))) for batch in batches)) for budget in budgets)
    cells = tuple(_cell(spot, budgets.index(spot.budget), batches.index(spot.batch)) for spot in found.values())
    grid = Heatmap("Batch", "Budget", tuple(map(str, batches)), tuple(fmt.plain(shown_share(budget), 16) for budget in budgets), cells)
    caption = "Blue: faster than the full cache, orange: slower; full colour at twice or half its speed. No border: not significant."
    return Chart("speed", title, caption, grid, ("Budget", *(f"batch {batch}" for batch in batches)), table)


def _text(spot: RegimeSpot | None) -> str:
    if spot is None or spot.row.speed_up is None:
        return fmt.DASH
    ends = spot.row.speed_up
    return f"{fmt.times(ends.value)} ({ends.low:.2f}–{ends.high:.2f})"


def _cell(spot: RegimeSpot, row: int, column: int) -> HeatmapCell:
    gain, sure = spot.gain, spot.row.speed_up is not None and not spot.row.speed_up.low <= 1 <= spot.row.speed_up.high
    tip = f"{fmt.plain(spot.row.case.label, 60)}, batch {spot.batch}: {_text(spot)}"
    ink = "#ffffff" if gain and max(gain, 1 / gain) > _DARK else "#1b1f24"
    return HeatmapCell(row, column, tint(gain), ink, fmt.times(gain) if gain else fmt.DASH, tip, sure)


def tint(gain: float | None) -> str:
    """A colour for a speed-up: white at 1, the whole of blue or orange at 2 and at 1/2; grey where there is none."""
    if gain is None or gain <= 0:
        return "rgb(210,210,210)"
    far = gain - 1 if gain >= 1 else 1 / gain - 1
    share, ink = min(1.0, far / _FULL_TINT), FASTER if gain >= 1 else SLOWER
    return f"rgb({','.join(str(round(255 + (channel - 255) * share)) for channel in ink)})"
