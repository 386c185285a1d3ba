"""Heat maps of the recommended cache by batch size and sequence length."""

from __future__ import annotations

from ...analysis import formatting as fmt
from ...analysis.answer_map import FULL, AnswerMap, MapCell
from .chart import Chart
from .svg import Heatmap, HeatmapCell

SLOWER, FASTER = (213, 94, 0), (0, 114, 178)  # Okabe and Ito's vermilion and blue: told apart by every kind of eye
_DARK = 1.6  # from which the color needs light letters


def answer_chart(answers: AnswerMap) -> Chart:
    """Return the heat map of a model's recommendations."""
    batches, lengths = answers.batches, answers.lengths[::-1]
    cells = {(cell.tokens, cell.batch): cell for cell in answers.cells}
    table = tuple((str(length), *(_answered(cells.get((length, batch))) for batch in batches)) for length in lengths)
    fields = tuple(HeatmapCell(lengths.index(cell.tokens), batches.index(cell.batch), tint(cell.gain.value if cell.gain else 1.0),
                               _ink(cell.gain.value if cell.gain else 1.0), fmt.plain(cell.best, 18),
                               f"{cell.tokens} tokens, batch {cell.batch}: {_answered(cell)}", cell.measured, not cell.measured)
                   for cell in answers.cells)
    grid = Heatmap("Batch", "Tokens", tuple(map(str, batches)), tuple(map(str, lengths)), fields, wide=116.0)
    caption = "White: full cache. Blue: speedup, saturated at 2×. Border: measured; hatched: predicted."
    return Chart("speed", f"Recommended cache: {fmt.plain(answers.model, 40)}", caption, grid,
                 ("Tokens", *(f"batch {batch}" for batch in batches)), table)


def _answered(cell: MapCell | None) -> str:
    if cell is None:
        return fmt.DASH
    basis = "measured" if cell.measured else "predicted"
    return f"{cell.best}, {basis}" if cell.gain is None or cell.best == FULL else f"{cell.best} {fmt.times(cell.gain.value)}, {basis}"


def tint(gain: float | None) -> str:
    """Return the color of a speedup: white at 1, full blue at 2, full orange at 1/2, gray without one."""
    if gain is None or gain <= 0:
        return "rgb(210,210,210)"
    far = gain - 1 if gain >= 1 else 1 / gain - 1
    share, ink = min(1.0, far), FASTER if gain >= 1 else SLOWER
    return f"rgb({','.join(str(round(255 + (channel - 255) * share)) for channel in ink)})"


def _ink(gain: float | None) -> str:
    return "#ffffff" if gain and max(gain, 1 / gain) > _DARK else "#1b1f24"
