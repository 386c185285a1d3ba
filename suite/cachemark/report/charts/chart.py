"""A chart: a drawing with its own table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .svg import PAGE, Style


class Plot(Protocol):
    """A drawing that can be dressed for the page or for paper."""

    def svg(self, title: str, style: Style = PAGE) -> str: ...


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
