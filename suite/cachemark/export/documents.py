"""Tables as LaTeX (booktabs), GitHub Markdown, and HTML for notebooks, with all text escaped."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..core.result import Outcome
from ..core.wording import on_one_line
from .escape import for_latex, for_markdown, slug
from .tables import NAME, Table

REASON, NOTE = 300, 1000  # most characters of a sentence


def latex(tables: Iterable[Table]) -> str:
    """Return each table as a float with reasons and notes below it."""
    template = _templates(for_latex, "<%", "%>", "<<", ">>").get_template("table.tex")
    return "\n\n".join(["% Needs \\usepackage{booktabs}.", *(template.render(table=table) for table in tables)]) + "\n"


def markdown(tables: Iterable[Table]) -> str:
    """Return each table under a heading, with numbered reasons and notes below it."""
    template = _templates(for_markdown).get_template("table.md")
    return "\n\n".join(template.render(table=table).rstrip("\n") for table in tables) + "\n"


def html(tables: Iterable[Table]) -> str:
    """Return each table under its title, with numbered reasons below it."""
    template = _templates(None).get_template("table.html")
    return "".join(template.render(table=table) for table in tables)


def case_html(outcome: Outcome, images: bytes | None) -> str:
    """Return a case's name, status, and ``images`` (PNG) or the reason why there are none."""
    png = base64.b64encode(images).decode() if images is not None else ""
    return _templates(None).get_template("case.html").render(outcome=outcome, png=png)


@cache
def _templates(
    escape: Callable[[str], str] | None, block_start: str = "{%", block_end: str = "%}", start: str = "{{", end: str = "}}",
) -> Environment:
    def escaped(value: Any) -> Any:
        return escape(value) if escape and isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("cachemark", "export/templates"), autoescape=escape is None, undefined=StrictUndefined, finalize=escaped,
        trim_blocks=True, lstrip_blocks=True, block_start_string=block_start, block_end_string=block_end,
        variable_start_string=start, variable_end_string=end)
    environment.globals.update(REASON=REASON, NOTE=NOTE)
    environment.filters.update(cut=lambda text, limit=NAME: on_one_line(text, limit), slug=slug)
    return environment
