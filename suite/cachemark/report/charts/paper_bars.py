"""Bars of the speed-ups that a paper prints, beside what its GPU allows and what was measured here."""

from __future__ import annotations

from .. import formatting as fmt
from ..view.papers import PaperTable
from .axes import linear
from .chart import Chart
from .legend import COLOURS, INK
from .svg import RowPlot, Span

THEIRS, OURS = COLOURS[0], COLOURS[1]


def paper_bars(table: PaperTable) -> Chart:
    """A row for each line with a published speed-up: its bar, below it ours, and a tick where the GPU's floors set the limit."""
    title, columns = "Speed-up over the table's own baseline", ("Row", "Published", "Allowed there", "Here")
    rows = [line for line in table.lines if line.claimed and line.claimed != 1]
    if not rows:
        return Chart("papers", title, "", None, columns, (), empty="The paper prints no times.")
    spans = []
    for k, line in enumerate(rows):
        bars = [("published", line.claimed, THEIRS), *([("here", line.reached, OURS)] if table.here else [])]
        for place, (name, value, colour) in enumerate(bars):
            if value:
                level, thick = (place + 0.5) / len(bars), 0.64 / len(bars)
                spans.append(Span(k, 0.0, value, colour, f"{line.name} · {name}: {fmt.times(value)}", level=level, thick=thick))
        if line.possible:
            tip = f"{line.name} · allowed by the GPU: {fmt.times(line.possible)}"
            spans.append(Span(k, line.possible, line.possible, INK, tip, thick=0.9))
    x = linear("Speed-up (×)", 0.0, 1.04 * max(span.high for span in spans))
    which = "Upper bar: published seconds. Lower bar: measured here" if table.here else "Bar: published seconds"
    said = f"{which}. Tick: the limit by the floors of the paper's GPU. Dashed: no speed-up."
    lines = tuple((line.name, *(fmt.times(value) if value else fmt.DASH for value in (line.claimed, line.possible, line.reached)))
                  for line in rows)
    return Chart("papers", title, said, RowPlot(tuple(line.name for line in rows), x, tuple(spans), 24.0, (1.0,)), columns, lines)
