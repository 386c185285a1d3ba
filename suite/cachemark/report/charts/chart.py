"""A chart with its table, in the colors and shapes of its group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...analysis.case_group import CaseGroup
from ...analysis.report_row import ReportRow, share_of_full
from ...core import formatting as fmt
from ...core.spec import shown_share
from .svg import SHAPES, RowPlot, XYPlot

# Okabe and Ito's colors without black and yellow (each vanishes in one theme), then Tol's muted ones.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999933", "#AA4499", "#44AA99", "#CC6677", "#8C8CD9")
GLYPHS = dict(zip(SHAPES, ("●", "■", "▲", "◆", "▼", "✚"), strict=True))
INK = "currentColor"
MOST = 80  # most cases of a readable chart; its table lists all of them
Plot = XYPlot | RowPlot


@dataclass(frozen=True)
class Chart:
    """Drawing with its table, for the tab ``tab``; without a ``plot``, ``empty`` explains why.

    ``keys`` are the cases of the table's rows; ``notes`` are sentences about the chart.
    """

    tab: str
    title: str
    caption: str = ""
    plot: Plot | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    keys: tuple[str, ...] = ()
    empty: str = ""
    notes: tuple[str, ...] = ()

    @property
    def svg(self) -> str:
        return self.plot.svg(self.title) if self.plot else ""

    @classmethod
    def of_cases(
        cls, tab: str, title: str, caption: str, plot: Plot, columns: Sequence[str], cases: Sequence[ReportRow],
        figures: Iterable[Sequence[str]], notes: tuple[str, ...] = (),
    ) -> Chart:
        """Return a chart whose table has a row per case: its label and its ``figures``."""
        rows = tuple((row.label, *texts) for row, texts in zip(cases, figures, strict=True))
        return cls(tab, title, caption, plot, ("Case", *columns), rows, tuple(row.case.key for row in cases), notes=notes)


def first(cases: Sequence[object]) -> str:
    """Return the end of a caption if some cases are not drawn."""
    return "" if len(cases) <= MOST else f" The first {MOST} of {len(cases)} cases are drawn; the table holds all."


def tip(row: ReportRow, *parts: str) -> str:
    """Return the tooltip of a mark."""
    return " · ".join((fmt.plain(row.label, 60), *parts))


def over(value: float | None, unit: float | None) -> float | None:
    """Return a ratio, None where either value is missing."""
    return None if value is None or not unit else value / unit


@dataclass(frozen=True)
class Key:
    """Legend entry: ``sign`` is a method's color or a budget's glyph."""

    name: str
    sign: str
    index: int


@dataclass(frozen=True)
class Signs:
    """Colors of methods and shapes of budgets in a group."""

    methods: dict[str, Key]
    budgets: dict[str, Key]

    def color(self, row: ReportRow) -> str:
        """Return a method's color, or the text color for the full cache."""
        key = self.methods.get(row.method)
        return key.sign if key else INK

    def series(self, row: ReportRow) -> int:
        key = self.methods.get(row.method)
        return key.index if key else -1

    def shape(self, row: ReportRow) -> str:
        key = self.budgets.get(row.case.stated_budget)
        return tuple(SHAPES)[key.index % len(SHAPES)] if key and row.method in self.methods else "circle"


@dataclass(frozen=True)
class ChartSet:
    """Charts of one group with a shared legend."""

    methods: tuple[Key, ...]
    budgets: tuple[Key, ...]
    charts: tuple[Chart, ...]

    def on_tab(self, tab: str) -> tuple[Chart, ...]:
        return tuple(chart for chart in self.charts if chart.tab == tab)


def signs_of(group: CaseGroup, parts: Sequence[CaseGroup] = ()) -> Signs:
    """Return a color per method in all ``parts`` of a report, and a shape per budget."""
    names = sorted({name for part in (group, *parts) for name in part.methods})
    colors = {name: COLORS[k % len(COLORS)] for k, name in enumerate(names)}
    ratios, glyphs = sorted(group.budgets, key=share_of_full, reverse=True), tuple(GLYPHS.values())
    titles = {row.method: row.name for row in group.candidates}
    return Signs({name: Key(titles[name], colors[name], k) for k, name in enumerate(group.methods)},
                 {name: Key(shown_share(name), glyphs[k % len(glyphs)], k) for k, name in enumerate(ratios)})
