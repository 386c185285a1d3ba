"""A site over many runs: one page lists them, newest first, and leads to the report of each."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from markupsafe import Markup

from ...analysis import formatting as fmt
from ...analysis.case_group import case_groups
from ...analysis.report_view import ReportView
from ...analysis.run_history import HistoryNight
from ...core.version import __version__
from .render import engine, policy, static

STAMPS = "site.json"  # beside the list: which page was made from what
FOLDER = "runs"  # of the pages, below that of the site; nothing else in it is touched


@dataclass(frozen=True)
class ListedRun:
    """One line of the list.

    ``tone`` and ``verdict`` are those of the comparison with a baseline, empty where there was none; ``trend`` holds one small drawing for
    each model, of its methods' latencies over the full cache's up to this run.
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
    trend: Sequence[Sequence[str]]
    href: str


def page_of(folder: Path, run_id: int) -> Path:
    """The file of a run's report in the site."""
    return folder / FOLDER / f"run-{run_id}.html"


def listed(run_id: int, view: ReportView, nights: Sequence[HistoryNight]) -> ListedRun:
    """The line of a run; ``nights`` are those of its plan and machine class, oldest first and itself last."""
    conclusion = view.conclusion
    return ListedRun(
        view.run, view.plan, view.when, view.machine, view.commit, view.dirty, view.state, view.counts,
        conclusion.tone if conclusion else "",
        conclusion.lines[0] if conclusion and conclusion.lines else "", trends(nights), f"{FOLDER}/run-{run_id}.html")


def trends(nights: Sequence[HistoryNight]) -> tuple[tuple[str, str], ...]:
    """A drawing for each model of the last run that was measured in two runs or more."""
    costs_by_model: dict[str, list[float | None]] = {}
    models = {part.model for part in case_groups(nights[-1].outcomes)} if nights else set()
    for night in nights:
        parts = case_groups(night.outcomes)
        for model in models:
            costs = [1 / row.speedup.value for part in parts if part.model == model for row in part.candidates if row.speedup]
            costs_by_model.setdefault(model, []).append(statistics.median(costs) if costs else None)
    return tuple((model, sparkline(values)) for model, values in sorted(costs_by_model.items()) if sum(v is not None for v in values) > 1)


def sparkline(values: Sequence[float | None], width: float = 90.0, height: float = 22.0) -> str:
    """A line without axes; a gap where a value is missing, a dot at the last one."""
    points = [(k, value) for k, value in enumerate(values) if value is not None]
    low, high = min(v for _, v in points), max(v for _, v in points)
    span, last = (high - low) or 1.0, max(len(values) - 1, 1)
    places = {k: (3 + k / last * (width - 6), height - 3 - (value - low) / span * (height - 6)) for k, value in points}
    path = "".join(f"{'L' if k - 1 in places else 'M'}{x:.1f} {y:.1f}" for k, (x, y) in places.items())
    x, y = places[points[-1][0]]
    label = f"from {fmt.times(points[0][1])} to {fmt.times(points[-1][1])} of the full cache's latency over {len(points)} runs"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
            f'aria-label="{label}" fill="none"><path d="{path}" stroke="currentColor" stroke-width="1.4"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="currentColor"/></svg>')


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
