"""Heat maps of speed-ups by batch and budget."""

from __future__ import annotations

from ...core.spec import shown_share
from .. import formatting as fmt
from ..view.recommendation import Regime
from ..view.report_row import ReportRow, share_of_full
from .chart import Chart, tip
from .svg import Heatmap, HeatmapCell

SLOWER, FASTER = (213, 94, 0), (0, 114, 178)  # Okabe and Ito's vermilion and blue: told apart by every kind of eye
_DARK = 1.6  # from which the colour needs light letters


def regime_map(regime: Regime) -> Chart:
    """A field for each batch and budget of a method."""
    title = f"Speed-up over the full cache: {fmt.plain(regime.method, 40)}"
    batches = sorted({row.case.batch for row in regime.rows})
    budgets = sorted({row.case.budget for row in regime.rows}, key=share_of_full, reverse=True)
    found = {(row.case.batch, row.case.budget): row for row in regime.rows}
    table = tuple((shown_share(budget), *(_text(found.get((batch, budget))) for batch in batches)) for budget in budgets)
    cells = tuple(_cell(row, budgets.index(budget), batches.index(batch)) for (batch, budget), row in found.items())
    grid = Heatmap("Batch", "Budget", tuple(map(str, batches)), tuple(fmt.plain(shown_share(budget), 16) for budget in budgets), cells)
    caption = "Blue: faster than the full cache, orange: slower; full colour at twice or half its speed. No border: not significant."
    return Chart("speed", title, caption, grid, ("Budget", *(f"batch {batch}" for batch in batches)), table)


def _text(row: ReportRow | None) -> str:
    ends = row.speed_up if row else None
    if ends is None:
        return fmt.DASH
    return f"{fmt.times(ends.value)} ({ends.low:.2f}–{ends.high:.2f})" if ends.stated else fmt.times(ends.value)


def _cell(row: ReportRow, line: int, column: int) -> HeatmapCell:
    gain = row.speed_up.value if row.speed_up else None
    sure = row.speed_up is not None and row.speed_up.stated and not row.speed_up.low <= 1 <= row.speed_up.high
    ink = "#ffffff" if gain and max(gain, 1 / gain) > _DARK else "#1b1f24"
    said = f"{tip(row)}, batch {row.case.batch}: {_text(row)}"
    return HeatmapCell(line, column, tint(gain), ink, fmt.times(gain) if gain else fmt.DASH, said, sure)


def tint(gain: float | None) -> str:
    """A colour for a speed-up: white at 1, the whole of blue or orange at 2 and at 1/2; grey where there is none."""
    if gain is None or gain <= 0:
        return "rgb(210,210,210)"
    far = gain - 1 if gain >= 1 else 1 / gain - 1
    share, ink = min(1.0, far), FASTER if gain >= 1 else SLOWER
    return f"rgb({','.join(str(round(255 + (channel - 255) * share)) for channel in ink)})"
