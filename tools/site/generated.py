"""Pages, and parts of pages, that exist on the site alone: printed from classes, plans and stored values when it is built."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ..cards.methods import with_facts
from ..cards.metrics import with_units
from ..cards.models import models_page
from ..cards.plans import plans_page
from ..cards.values import values_page
from ..pages import decoders, results
from . import figures

BASELINES = Path("baselines/accepted")
PAGES: dict[str, Callable[[], str]] = {
    "reference/models.md": lambda: models_page(BASELINES), "reference/plans.md": plans_page, "reference/values.md": values_page,
}  # fmt: skip
TABLE = re.compile(r"^<!-- table: ([\w-]+)(?: (\d+))? -->$", re.M)
FIGURE = re.compile(r"^<!-- figure: ([\w-]+) -->$", re.M)


def filled(page: str, text: str) -> str:
    """Return the text of a page of ``docs/`` with its generated parts in place of their markers."""
    if page == "reference/methods.md":
        return with_facts(text)
    if page == "reference/metrics.md":
        return with_units(text)
    with_tables = TABLE.sub(lambda marker: table(marker[1], int(marker[2] or 0)), text)
    return FIGURE.sub(lambda marker: figures.drawn(marker[1]), with_tables)


def table(name: str, number: int = 0) -> str:
    """Return the tables of a plan, those of a recorded section, or those of ``parallel-decoding``, as Markdown."""
    if name == "parallel-decoding":
        return decoders.stored_text()
    return results.short(results.stored(name)) if name in results.SECTIONS else results.tables(name, number)
