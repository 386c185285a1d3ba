"""Charts with bars: of each case the halves of an image, where time and bytes go, and how seeds spread; of a paper its speed-ups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ...core.units import metric
from .. import formatting as fmt
from ..view.case_group import CaseGroup
from ..view.papers import PaperTable
from ..view.report_row import MASKED, ReportRow
from .chart import COLOURS, INK, Chart, Signs
from .svg import Axis, RowPlot, Span, linear, ranged

_HALVES = ("tokens_per_s_first", "tokens_per_s_last")
MOST = 80  # rows of a drawing; nobody reads a longer one, and its table holds all of them
THEIRS, OURS = COLOURS[:2]  # of bars beside a paper's
_BOX = (5, 25, 50, 75, 95)  # percentiles of a distribution's row: thin line, box, tick


def _tip(row: ReportRow, name: str, text: str) -> str:
    return f"{fmt.plain(row.case.label, 60)} · {name}: {text}"


def _labels(rows: Sequence[ReportRow]) -> tuple[str, ...]:
    return tuple(row.case.label for row in rows)


def keys(rows: Sequence[ReportRow]) -> tuple[str, ...]:
    """The cases of a table's rows."""
    return tuple(row.case.key for row in rows)


def _rows(rows: Sequence[ReportRow], x: Axis, spans: Sequence[Span], pitch: float = 22.0, lines: tuple[float, ...] = ()) -> RowPlot:
    """The drawing of the first rows."""
    return RowPlot(_labels(rows[:MOST]), x, tuple(spans), pitch, lines)


def first(rows: Sequence[object]) -> str:
    """The end of a caption where some rows are not drawn."""
    return "" if len(rows) <= MOST else f" The first {MOST} of {len(rows)} cases are drawn; the table holds all."


def halves(group: CaseGroup, signs: Signs) -> Chart:
    """Tokens per second over the first and the last half of an image."""
    title, columns = "Tokens per second, first and last half", ("Case", "First half", "Last half")
    rows = [row for row in group.rows if row.ok and all(row.median(name) is not None for name in _HALVES)]
    if not rows:
        return Chart("speed", title, "", None, columns, (), empty="The speed of the two halves was not measured.")
    spans = tuple(
        Span(k, 0.0, value, signs.colour(row), _tip(row, metric(name).title, fmt.with_unit(value, name)), signs.series(row),
             0.45 if half == 0 else 1.0, 0.29 + 0.42 * half, 0.36)
        for k, row in enumerate(rows[:MOST]) for half, name in enumerate(_HALVES) for value in [row.median(name) or 0.0])
    table = tuple((row.case.label, *(fmt.figure(row.median(name) or 0.0, name) for name in _HALVES)) for row in rows)
    x = linear("Tokens per second", 0.0, 1.04 * max(span.high for span in spans))
    said = f"Pale: first half. Full: last half. Medians; longer is better.{first(rows)}"
    return Chart("speed", title, said, _rows(rows, x, spans, 24.0), columns, table, keys(rows))


def phases(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    """The time of a batch by part: making tokens, and decoding them to images."""
    rows = [row for row in group.rows if row.ok and row.median("latency") and row.median("latency_tokens") is not None]
    if not rows:
        return
    held = [(row, row.median("latency_tokens") or 0.0, row.median("latency") or 0.0) for row in rows]
    spans = tuple(
        span for k, (row, tokens, whole) in enumerate(held[:MOST]) for span in (
            Span(k, 0.0, min(tokens, whole), signs.colour(row), _tip(row, "Tokens", fmt.seconds(tokens)), signs.series(row)),
            Span(k, min(tokens, whole), whole, signs.colour(row), _tip(row, "Image decoding and the rest", fmt.seconds(whole - tokens)),
                 signs.series(row), 0.4)))
    table = tuple((row.case.label, fmt.seconds(tokens), fmt.seconds(max(whole - tokens, 0.0)), fmt.percent(1 - tokens / whole))
                  for row, tokens, whole in held)
    x = linear("Seconds of a batch", 0.0, 1.04 * max(span.high for span in spans))
    said = "Full: token generation. Pale: image decoding and the rest. Medians." + first(rows)
    columns = ("Case", "Tokens", "Images and the rest", "Share of the rest")
    yield Chart("speed", "Time per batch, by part", said, _rows(rows, x, spans), columns, table, keys(rows))


def memory(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    """The bytes of each case by part: what each layer keeps, the stage that layers share, the method's own state."""
    rows = [row for row in group.rows if row.ok and row.median("kv_allocated") is not None]
    if not rows:
        return
    parts = [(row, *_parts(row)) for row in rows]
    unit, name = fmt.binary(max(sum(held[1:]) for held in parts))
    titles = ("Keys and values", "Stage", "State")
    spans = []
    for k, (row, *held) in enumerate(parts[:MOST]):
        at = 0.0
        for title, size, opacity in zip(titles, held, (1.0, 0.6, 0.3), strict=True):
            if size:
                spans.append(Span(k, at / unit, (at + size) / unit, signs.colour(row), _tip(row, title, fmt.size(size)),
                                  signs.series(row), opacity))
            at += size
    table = tuple((row.case.label, *map(fmt.size, held), fmt.size(sum(held)), fmt.size(row.median("peak_memory") or 0.0))
                  for row, *held in parts)
    x = linear(f"Bytes held during a generation ({name})", 0.0, 1.04 * max((span.high for span in spans), default=1.0))
    what = "Full: keys and values. Paler: the stage shared by layers. Palest: method state." + first(rows)
    empty = "" if spans else "Nothing is kept between passes."
    yield Chart("memory", "Memory held, by part", what, _rows(rows, x, spans) if spans else None,
                ("Case", *titles, "Together", "Peak memory"), table, keys(rows), empty)


def _parts(row: ReportRow) -> tuple[float, float, float]:
    stage = row.median("kv_stage") or 0.0
    return max((row.median("kv_allocated") or 0.0) - stage, 0.0), stage, row.median("kv_state") or 0.0


def spreads(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    """The spread of fidelity over seeds, and of the difference in quality to the full cache at the same seeds."""
    if group.random:
        return
    distance = "forced_distance" if group.paradigm == MASKED else "kl"
    for name in (distance, "psnr"):
        rows = [row for row in (*group.arms, *group.references) if row.ok and len(row.outcome.samples.get(name, ())) > 1]
        if any(row.case.role == "arm" for row in rows):
            values = [list(row.outcome.samples[name]) for row in rows]
            yield _spread(f"{metric(name).title} over seeds", name, rows, values, signs, "")
    yield from _paired(group, signs)


def _paired(group: CaseGroup, signs: Signs) -> Iterable[Chart]:
    full = group.full.outcome.samples.get("legend", ()) if group.full else ()
    rows = [row for row in group.arms if row.ok and len(row.outcome.samples.get("legend", ())) == len(full) > 1]
    if rows:
        values = [[mine - its for mine, its in zip(row.outcome.samples["legend"], full, strict=True)] for row in rows]
        title = "Legend score minus the full cache's, by seed"
        yield _spread(title, "legend", rows, values, signs, "Dashed: equal to the full cache. ")


def _spread(title: str, name: str, rows: Sequence[ReportRow], values: Sequence[Sequence[float]], signs: Signs, lead: str) -> Chart:
    found = _boxes(values)
    share = metric(name).unit == "share"
    scale = 100.0 if share else 1.0
    spans: list[Span] = []
    for k, (row, (least, low, middle, high, most)) in enumerate(zip(rows[:MOST], found, strict=False)):
        tip = _tip(row, "median", f"{fmt.with_unit(middle, name)} · half of the seeds: {fmt.figure(low, name)} to "
                   f"{fmt.figure(high, name)} · nine of ten: {fmt.figure(least, name)} to {fmt.figure(most, name)}")
        colour, series = signs.colour(row), signs.series(row)
        spans += [Span(k, scale * least, scale * most, colour, tip, series, 0.5, thick=0.1),
                  Span(k, scale * low, scale * high, colour, tip, series, 0.55, thick=0.6),
                  Span(k, scale * middle, scale * middle, INK, tip, series, thick=0.75)]
    low, high = ranged([scale * end for ends in found for end in (ends[0], ends[-1])], 0.04)
    unit = "%" if share else metric(name).unit
    x = linear(f"{metric(name).title} ({unit})" if unit else metric(name).title, low, high)
    table = tuple((row.case.label, *(fmt.figure(end, name) for end in ends), str(len(held)))
                  for row, ends, held in zip(rows, found, values, strict=True))
    caption = f"{lead}Tick: median. Box: half of the seeds. Line: nine of ten.{first(rows)}"
    columns = ("Case", "5 %", "25 %", "Median", "75 %", "95 %", "Seeds")
    plot = _rows(rows, x, spans, lines=(0.0,) if lead else ())
    return Chart("quality", title, caption, plot, columns, table, keys(rows))


def _boxes(values: Sequence[Sequence[float]]) -> list[list[float]]:
    """The percentiles of each distribution, those over equally many seeds at once."""
    found: dict[int, list[float]] = {}
    for n in {len(held) for held in values}:
        places = [k for k, held in enumerate(values) if len(held) == n]
        found.update(zip(places, np.percentile(np.array([values[k] for k in places]), _BOX, axis=1).T.tolist(), strict=True))
    return [found[k] for k in range(len(values))]


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
