"""What a chart is: a drawing, its own table, and the signs that all charts of a section share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .drawing import PAGE, SHAPES, Look
from .row import Row, share_of_full
from .section import Section

# Okabe and Ito's colours without black and yellow (each vanishes in one theme), then Tol's muted ones.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999933", "#AA4499", "#44AA99", "#CC6677", "#8C8CD9")
GLYPHS = dict(zip(SHAPES, ("●", "■", "▲", "◆", "▼", "✚"), strict=True))
INK = "currentColor"


class Plot(Protocol):
    """A drawing that can be dressed for the page or for paper."""

    def svg(self, title: str, look: Look = PAGE) -> str: ...


@dataclass(frozen=True)
class Key:
    """One entry of the legend: ``sign`` is a colour for a method, a glyph for a budget."""

    name: str
    sign: str
    index: int


@dataclass(frozen=True)
class Chart:
    """A drawing with its own table, for the tab named ``tab``. ``plot`` is None where there is nothing to draw; ``empty`` then says why.
    ``keys`` names the case of each row of the table; ``notes`` are sentences about what it shows."""

    tab: str
    title: str
    caption: str
    plot: Plot | None
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: tuple[str, ...] = ()
    empty: str = ""
    notes: tuple[str, ...] = ()

    @property
    def svg(self) -> str:
        """The drawing for the page, empty where there is none."""
        return self.plot.svg(self.title) if self.plot else ""


@dataclass(frozen=True)
class Signs:
    """Colours of methods and shapes of budgets in one section."""

    methods: dict[str, Key]
    budgets: dict[str, Key]

    def colour(self, row: Row) -> str:
        """A method's colour; what is no method of the section, the full cache above all, is drawn in the ink."""
        held = self.methods.get(row.method)
        return held.sign if held else INK

    def series(self, row: Row) -> int:
        held = self.methods.get(row.method)
        return held.index if held else -1

    def shape(self, row: Row) -> str:
        held = self.budgets.get(row.case.budget)
        return tuple(SHAPES)[held.index % len(SHAPES)] if held and row.method in self.methods else "circle"


def signs(section: Section) -> Signs:
    """One colour for each method by the alphabet, one shape for each budget, larger ones first."""
    ratios = sorted(section.budgets, key=share_of_full, reverse=True)
    glyphs = tuple(GLYPHS.values())
    return Signs({name: Key(name, COLOURS[k % len(COLOURS)], k) for k, name in enumerate(section.methods)},
                 {name: Key(name, glyphs[k % len(glyphs)], k) for k, name in enumerate(ratios)})


@dataclass(frozen=True)
class Drawing:
    """All charts of one section with the legend they share."""

    methods: tuple[Key, ...]
    budgets: tuple[Key, ...]
    charts: tuple[Chart, ...]

    def of(self, tab: str) -> tuple[Chart, ...]:
        """The charts of one tab."""
        return tuple(chart for chart in self.charts if chart.tab == tab)
