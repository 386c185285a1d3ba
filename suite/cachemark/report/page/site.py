"""A site over many runs: one page lists them, newest first, and leads to the report of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from markupsafe import Markup

from ...analysis.report_view import ReportView
from ...core.version import __version__
from .render import engine, policy, static

STAMPS = "site.json"  # beside the list: which page was made from what
FOLDER = "runs"  # of the pages, below that of the site; nothing else in it is touched


@dataclass(frozen=True)
class ListedRun:
    """One line of the list.

    ``tone`` and ``verdict`` are those of the comparison with a baseline, empty where there was none.
    """

    run: str
    plan: str
    when: str
    machine: str
    commit: str
    dirty: bool
    state: str
    counts: Sequence[Sequence[str | int]]
    tone: str
    verdict: str
    href: str


def page_of(folder: Path, run_id: int) -> Path:
    """The file of a run's report in the site."""
    return folder / FOLDER / f"run-{run_id}.html"


def listed(run_id: int, view: ReportView) -> ListedRun:
    """Return the line of a run."""
    conclusion = view.conclusion
    return ListedRun(
        view.run, view.plan, view.when, view.machine, view.commit, view.dirty, view.state, view.counts,
        conclusion.tone if conclusion else "",
        conclusion.lines[0] if conclusion and conclusion.lines else "", f"{FOLDER}/run-{run_id}.html")


def index(lines: Sequence[ListedRun]) -> str:
    """The page that lists runs, in the order given."""
    style = Markup(static("report.css"))
    return engine().get_template("site.html").render(lines=lines, style=style, policy=policy(""), version=__version__)


def publish(folder: Path, runs: Mapping[str, tuple[str, ListedRun]]) -> Path:
    """Write the list to ``index.html``, and beside it each line with the stamp of its page."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    file.write_bytes(index([line for _, line in runs.values()]).encode("utf-8", errors="replace"))
    stamps = {number: {"stamp": stamp, "line": asdict(line)} for number, (stamp, line) in runs.items()}
    (folder / STAMPS).write_text(json.dumps(stamps, indent=1), encoding="utf-8")
    return file


def stored_pages(folder: Path) -> dict[str, tuple[str, ListedRun]]:
    """The stamp and line of each page by run number; empty without a site of this version."""
    try:
        stamps = json.loads((folder / STAMPS).read_text(encoding="utf-8"))
        return {number: (item["stamp"], ListedRun(**item["line"])) for number, item in stamps.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def too_old(started: str, now: datetime, days: int) -> bool:
    """True where a run began more than ``days`` ago; one whose date cannot be read is kept."""
    try:
        return datetime.fromisoformat(started) < now - timedelta(days=days)
    except (ValueError, TypeError):
        return False


def prune(folder: Path, run_ids: Sequence[int]) -> int:
    """Remove the reports of runs that are not ``kept``; how many there were."""
    names = {page_of(folder, run_id).name for run_id in run_ids}
    old = [file for file in (folder / FOLDER).glob("run-*.html") if file.name not in names]
    for file in old:
        file.unlink()
    return len(old)
