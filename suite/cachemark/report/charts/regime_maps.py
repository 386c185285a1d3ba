"""Heat maps: speedups by batch and budget, and answers by batch and length of the sequence."""

from __future__ import annotations

from ...analysis import formatting as fmt
from ...analysis.answer_map import FULL, AnswerMap, MapCell
from ...analysis.regimes import Regime
from ...analysis.report_row import ReportRow, share_of_full
from ...core.spec import shown_share
from .chart import Chart, tip
from .svg import Heatmap, HeatmapCell

SLOWER, FASTER = (213, 94, 0), (0, 114, 178)  # Okabe and Ito's vermilion and blue: told apart by every kind of eye
CAPTION = "Blue: faster than the full cache, orange: slower; full color at twice or half its speed. No border: not significant."
_DARK = 1.6  # from which the color needs light letters


def regime_map(regime: Regime) -> Chart:
    """A field for each batch and budget of a method."""
    title = f"Speedup over the full cache: {fmt.plain(regime.method, 40)}"
    batches = sorted({row.case.batch for row in regime.rows})
    if regime.by_label:
        return _by_label(title, regime, batches)
    budgets = sorted({row.case.budget for row in regime.rows}, key=share_of_full, reverse=True)
    rows = {(row.case.batch, row.case.budget): row for row in regime.rows}
    table = tuple((shown_share(budget), *(_cell_text(rows.get((batch, budget))) for batch in batches)) for budget in budgets)
    cells = tuple(_cell(row, budgets.index(budget), batches.index(batch)) for (batch, budget), row in rows.items())
    grid = Heatmap("Batch", "Budget", tuple(map(str, batches)), tuple(fmt.plain(shown_share(budget), 16) for budget in budgets), cells)
    return Chart("speed", title, CAPTION, grid, ("Budget", *(f"batch {batch}" for batch in batches)), table)


def _by_label(title: str, regime: Regime, batches: list[int]) -> Chart:
    """A field for each batch and case of a regime."""
    labels = list(dict.fromkeys(row.case.label for row in regime.rows))
    rows = {(row.case.batch, row.case.label): row for row in regime.rows}
    table = tuple((label, *(_cell_text(rows.get((batch, label))) for batch in batches)) for label in labels)
    cells = tuple(_cell(row, labels.index(label), batches.index(batch)) for (batch, label), row in rows.items())
    grid = Heatmap("Batch", "Case", tuple(map(str, batches)), tuple(fmt.plain(label, 28) for label in labels), cells)
    return Chart("speed", title, CAPTION, grid, ("Case", *(f"batch {batch}" for batch in batches)), table)


def _cell_text(row: ReportRow | None) -> str:
    ends = row.speedup if row else None
    if ends is None:
        return fmt.DASH
    return f"{fmt.times(ends.value)} ({ends.low:.2f}–{ends.high:.2f})" if ends.stated else fmt.times(ends.value)


def _cell(row: ReportRow, line: int, column: int) -> HeatmapCell:
    gain = row.speedup.value if row.speedup else None
    sure = row.speedup is not None and row.speedup.stated and not row.speedup.low <= 1 <= row.speedup.high
    label = f"{tip(row)}, batch {row.case.batch}: {_cell_text(row)}"
    return HeatmapCell(line, column, tint(gain), _ink(gain), fmt.times(gain) if gain else fmt.DASH, label, sure)


def answer_chart(answers: AnswerMap) -> Chart:
    """A field for each batch and length: the best method that is shown to be as good."""
    batches, lengths = answers.batches, answers.lengths[::-1]
    cells = {(cell.tokens, cell.batch): cell for cell in answers.cells}
    table = tuple((str(length), *(_answered(cells.get((length, batch))) for batch in batches)) for length in lengths)
    fields = tuple(HeatmapCell(lengths.index(cell.tokens), batches.index(cell.batch), tint(cell.gain.value if cell.gain else 1.0),
                               _ink(cell.gain.value if cell.gain else 1.0), fmt.plain(cell.best, 18),
                               f"{cell.tokens} tokens, batch {cell.batch}: {_answered(cell)}", cell.measured, not cell.measured)
                   for cell in answers.cells)
    grid = Heatmap("Batch", "Tokens", tuple(map(str, batches)), tuple(map(str, lengths)), fields, wide=116.0)
    caption = "White: the full cache. Blue: the named method is faster, at full color twice as fast. Border: measured; hatched: predicted."
    return Chart("speed", f"Which cache by batch and length: {fmt.plain(answers.model, 40)}", caption, grid,
                 ("Tokens", *(f"batch {batch}" for batch in batches)), table)


def _answered(cell: MapCell | None) -> str:
    """An answer with its gain and its basis."""
    if cell is None:
        return fmt.DASH
    basis = "measured" if cell.measured else "predicted"
    return f"{cell.best}, {basis}" if cell.gain is None or cell.best == FULL else f"{cell.best} {fmt.times(cell.gain.value)}, {basis}"


def tint(gain: float | None) -> str:
    """A color for a speedup: white at 1, full blue at 2, full orange at 1/2; gray without one."""
    if gain is None or gain <= 0:
        return "rgb(210,210,210)"
    far = gain - 1 if gain >= 1 else 1 / gain - 1
    share, ink = min(1.0, far), FASTER if gain >= 1 else SLOWER
    return f"rgb({','.join(str(round(255 + (channel - 255) * share)) for channel in ink)})"


def _ink(gain: float | None) -> str:
    """Letters that can be read on the color of a speedup."""
    return "#ffffff" if gain and max(gain, 1 / gain) > _DARK else "#1b1f24"
