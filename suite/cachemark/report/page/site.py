"""Site of many runs: an index, newest first, and a report per run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ...analysis.report_view import ReportView
from ...core.files import is_output, output, read_json
from ...core.version import __version__
from .render import engine, policy, static

LINES = "site.json"  # next to the index: its lines
FOLDER = "runs"  # folder of the pages, inside the folder of the site; other files of the site are not touched
LINE = ("run", "plan", "when", "machine", "commit", "dirty", "state", "counts")  # facts of a view in the index, in addition to its verdict


def page_of(folder: Path, run_id: int) -> Path:
    """Return the path of a run's report."""
    return folder / FOLDER / f"run-{run_id}.html"


def listed(run_id: int, view: ReportView) -> dict[str, Any]:
    """Return the line of a run in the index; ``tone`` and ``verdict`` are empty without a baseline."""
    conclusion = view.conclusion
    verdict = {"tone": conclusion.tone, "verdict": "".join(conclusion.lines[:1])} if conclusion else {"tone": "", "verdict": ""}
    return {**{name: getattr(view, name) for name in LINE}, **verdict, "href": f"{FOLDER}/run-{run_id}.html"}


def index(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the index page."""
    style = Markup(static("report.css"))
    return engine().get_template("site.html").render(lines=lines, style=style, policy=policy(""), version=__version__)


def publish(folder: Path, lines: Mapping[str, dict[str, Any]]) -> Path:
    """Write ``index.html``, and its lines by run number for later updates."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    with output(file, "report") as part:
        part.write_bytes(index([*lines.values()]).encode("utf-8", errors="replace"))
    with output(folder / LINES, "list of reports") as part:
        part.write_text(json.dumps(lines, indent=1), encoding="utf-8")
    return file


def stored_lines(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of the index by run number; nothing without a site of this version."""
    try:
        lines = read_json(folder / LINES)
        return {number: line for number, line in lines.items() if {"href", "verdict", *LINE} <= line.keys()}
    except (ValueError, AttributeError, TypeError):
        return {}


def too_old(started: str, now: datetime, days: int) -> bool:
    """Return whether a run started more than ``days`` ago; False for unreadable dates."""
    try:
        return datetime.fromisoformat(started) < now - timedelta(days=days)
    except (ValueError, TypeError):
        return False


def prune(folder: Path, run_ids: Sequence[int]) -> int:
    """Remove the reports of other runs and return their number; other files are not touched."""
    names = {page_of(folder, run_id).name for run_id in run_ids}
    old = [file for file in (folder / FOLDER).glob("run-*.html")
           if file.name not in names and file.is_file() and is_output(file, "report")]
    for file in old:
        file.unlink()
    return len(old)
