"""The report of a run, and the site of all runs of a store."""

from __future__ import annotations

import gc
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ..analysis import report_view
from ..analysis.public import public_outcomes, public_run, public_verdicts, scrubbed
from ..analysis.report_view import ReportView
from ..analysis.run_history import MOST, HistoryNight
from ..core.errors import Infrastructure, NothingMeasured
from ..core.files import NAME
from ..core.result import Outcome
from ..core.spec import digest
from ..gate import anchors, baselines
from ..gate import nights as ledger
from ..report.page import render
from ..report.page import site as pages
from ..stats import changepoints as history
from ..stats.changepoints import ChangePoint
from ..store.db import Store
from ..store.exchange import Exchange
from ..store.rows import RunRecord
from . import paired_page
from .check import RunJudgement, chosen, judge, judge_against, with_decisions
from .paired_page import PairedVerdicts
from .paper_speed import PaperSpeed
from .stores import DEFAULT_STORE, reading

ROOMS = ("core", "stats", "gate", "report")  # whose code decides what a page says


@dataclass(frozen=True)
class Report:
    """A written report: the file, the number of the run, and what of it the store no longer tells."""

    path: Path
    run: int


@dataclass(frozen=True)
class WrittenSite:
    """A written site: the page that lists the runs, the numbers of those whose pages were made now, and how many were removed."""

    index: Path
    made: tuple[int, ...]
    removed: int


def report(
    store: Store | str | Path = DEFAULT_STORE, path: str | Path = "report.html", *, run: int | None = None,
    baseline: str | Path | None = None, against: int | None = None, public: bool = False, register: str | Path | None = None,
) -> Report:
    """Write the report of a run (None: the newest), compared with the run ``against``, else with a baseline where there is one, by default
    the accepted one as far as the two share cases, with earlier runs of its plan as its history and what the incidents of ``register`` say
    of its regressions; ``public`` as far as anybody may see it. Raises Infrastructure where it cannot be written, NothingMeasured where it
    shares no case with the given ``baseline`` or run, and Unsupported for a run against itself or a comparison."""
    with reading(store) as source, _uncollected():
        record, known = chosen(source, run), None if register is None else Path(register)
        if against is not None:
            view, _ = _viewed(source, record, None, public, known, source.run(against))
        else:
            view, _ = (_viewed if baseline else _viewed_or_bare)(source, record, baseline_of(record, baseline), public, known)
        try:
            return Report(render.write(view, path), record.id)
        except OSError as error:
            raise Infrastructure(f"{path} cannot be written: {error.strerror}.",
                                 remedy="Name another file: cachemark report PATH") from error


def site(
    store: Store | str | Path, folder: str | Path, *, baseline: str | Path | None = None, days: int = 90, fresh: bool = False,
    public: bool = False, register: str | Path | None = None,
) -> WrittenSite:
    """Make or bring up to date the site of a store: a page for each run of the last ``days``, and one that lists them. A page that stands
    is left alone as long as its run, the comparisons of its plan, its baseline, the incidents of ``register``, the anchors reached and the
    code of the report are what they were; ``fresh`` makes all of them."""
    folder, now, made, known = Path(folder), datetime.now(UTC), [], None if register is None else Path(register)
    try:
        kept = {} if fresh else pages.kept(folder)
        listed: dict[str, tuple[str, pages.ListedRun]] = {}
        with reading(store) as source:
            records, reached = source.runs(), [[each.anchor.model, each.weights] for each in anchors.load()]
            young = [record for record in records if not pages.too_old(record.started, now, days)]
            for record in young:
                path, number = baseline_of(record, baseline), str(record.id)
                stamp = _stamp(record, records, [file for file in (path, known) if file], reached, public)
                if record.state != "running" and kept.get(number, ("",))[0] == stamp and pages.page_of(folder, record.id).is_file():
                    listed[number] = kept[number]
                    continue
                with _uncollected():
                    view, nights = _viewed_or_bare(source, record, path, public, known)
                render.write(view, pages.page_of(folder, record.id))
                made.append(record.id)
                listed[number] = stamp, pages.listed(record.id, view, nights)
        removed = pages.prune(folder, [record.id for record in young])
        return WrittenSite(pages.publish(folder, listed), tuple(made), removed)
    except OSError as error:
        raise Infrastructure(f"{folder} cannot be written: {error.strerror}.", remedy="Name another folder.") from error


def table_view(record: RunRecord, outcomes: Sequence[Outcome]) -> ReportView:
    """The view of a run without pictures, baseline and history: what its tables show."""
    reached = anchors.load()
    return report_view.build(record, outcomes, unanchored=lambda case: anchors.unanchored(case.model, case.weights, reached))


def baseline_of(record: RunRecord, given: str | Path | None) -> Path | None:
    """The given baseline, or the accepted one of this plan and machine class, if that exists."""
    if given or record.is_comparison:  # a comparison has two arms of its own and no accepted baseline
        return Path(given) if given else None
    if not re.fullmatch(NAME, record.plan):  # plans once had names that no baseline can have
        return None
    accepted = baselines.path_of(baselines.ROOT, record.environment.machine_class, record.plan)
    return accepted if accepted.is_file() else None


def changes_over_nights(
    costs: Sequence[float], environments: Sequence[str], device_class: str, days: Sequence[int],
) -> tuple[list[ChangePoint], str]:
    """Changes in log costs, one per run, by at least what a device of this class is taken to see, and what the newest runs cannot show."""
    least = ledger.FLOOR.get(device_class, max(ledger.FLOOR.values()))
    epochs = history.changes(costs, environments, least, days)
    return [change for epoch in epochs for change in epoch.changes], epochs[-1].blind if epochs[-1].shows > least else ""


def _viewed_or_bare(
    store: Store, record: RunRecord, path: Path | None, public: bool, register: Path | None,
) -> tuple[ReportView, list[HistoryNight]]:
    """The view of a run and its history, without a comparison where the baseline is of another plan or shares no case with it."""
    try:
        return _viewed(store, record, path, public, register)
    except NothingMeasured:
        return _viewed(store, record, None, public, register)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cyclic collector: a page is made of millions of small objects, none of them a cycle, and walking them again and again
    takes a fifth of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _viewed(
    store: Store, record: RunRecord, path: Path | None, public: bool, register: Path | None, against: RunRecord | None = None,
) -> tuple[ReportView, list[HistoryNight]]:
    """The view of a run beside the run ``against`` or the baseline at ``path``, and the runs of its history, oldest first and itself last.
    A public view names no process and no host."""
    reached, outcomes, plan = anchors.load(), _outcomes(store, record), record.plan.removeprefix(ledger.COMPARISON)
    comparison, baseline = _compared(store, record, path, register, against)
    pairs = _pairs(store, record, register)
    nights = [*(HistoryNight(other, _measured(store, other.id, _outcomes(store, other)))
                for other in reversed(_earlier(store.runs(), record)[: MOST - 1])),
              HistoryNight(record, _measured(store, record.id, outcomes))]
    shown, told = record, outcomes
    if public:
        shown, told = public_run(record), public_outcomes(outcomes)
        nights = [HistoryNight(public_run(night.run), public_outcomes(night.outcomes)) for night in nights]
        baseline, comparison, pairs = _public_baseline(baseline), _public_judgement(comparison), _public_pairs(pairs)
    view = report_view.build(shown, told, comparison or pairs, store.artifacts.read,
                             lambda case: anchors.unanchored(case.model, case.weights, reached),
                             baseline=baseline, nights=nights, trials=None if public else store.trials(record.id),
                             standing=ledger.standing(ledger.nights(store, plan, record.environment.machine_class)),
                             trend=changes_over_nights, predictor=PaperSpeed())
    return view, nights


def _compared(
    store: Store, record: RunRecord, path: Path | None, register: Path | None, against: RunRecord | None,
) -> tuple[RunJudgement | None, Exchange | None]:
    """The judgement of a run by another one or by a baseline, and that other side; nothing where there is none."""
    if against is not None:
        return judge_against(store, record, against)
    if path is None:
        return None, None
    return with_decisions(judge(store, record, path, expired=True), store, record, register), baselines.load(path)


def _outcomes(store: Store, record: RunRecord) -> list[Outcome]:
    """Every outcome of a run, of a comparison one for each case: the rows of its page."""
    return paired_page.by_case(store.outcomes(record.id)) if record.is_comparison else store.outcomes(record.id)


def _pairs(store: Store, record: RunRecord, register: Path | None) -> PairedVerdicts | None:
    """The verdicts of a comparison; None of any other run, and of one that broke off."""
    with suppress(NothingMeasured):
        return paired_page.paired_verdicts(store, record, register) if record.is_comparison else None
    return None


def _public_pairs(found: PairedVerdicts | None) -> PairedVerdicts | None:
    """Verdicts of pairs as anybody may see them."""
    if found is None:
        return None
    arms, lines = tuple(map(scrubbed, found.arms)), tuple(map(scrubbed, found.lines))
    return replace(found, arms=arms, rows=public_verdicts(found.rows), lines=lines, command=scrubbed(found.command))


def _public_baseline(baseline: Exchange | None) -> Exchange | None:
    """A baseline as anybody may see it."""
    if baseline is None:
        return None
    there = replace(baseline.environment, facts=scrubbed(baseline.environment.facts))
    return replace(baseline, environment=there, meta=scrubbed(baseline.meta))


def _public_judgement(found: RunJudgement | None) -> RunJudgement | None:
    """A judgement as anybody may see it."""
    if found is None:
        return None
    comparison = found.comparison and replace(found.comparison, rows=public_verdicts(found.comparison.rows))
    decided = {row: replace(incident, who="", link="", reason=scrubbed(incident.reason)) for row, incident in found.decided.items()}
    return replace(found, comparison=comparison, decided=decided, history=tuple(map(scrubbed, found.history)))


def _earlier(records: Sequence[RunRecord], record: RunRecord) -> list[RunRecord]:
    """Earlier runs of a plan on this class of machine, newest first."""
    return [other for other in records if other.id < record.id and other.plan == record.plan
            and other.environment.machine_class == record.environment.machine_class]


def _measured(store: Store, run_id: int, outcomes: list[Outcome]) -> list[Outcome]:
    """The outcomes of a run without what it carried over from an earlier one: a figure belongs to the day on which it was measured."""
    carried = store.carried(run_id)
    return [outcome for outcome in outcomes if outcome.case.key not in carried] if carried else outcomes


def _stamp(record: RunRecord, records: Sequence[RunRecord], files: Sequence[Path], reached: Sequence[Any], public: bool) -> str:
    """A hash of what the page of a run depends on: the run and those before it, the comparisons of its plan on this class of machine, its
    baseline and the incidents, which are ``files``, the anchors reached, and the code that writes pages."""
    compared = [r for r in records if r.plan == ledger.COMPARISON + record.plan
                and r.environment.machine_class == record.environment.machine_class]
    told: dict[str, Any] = {
        "run": [[r.id, r.started, r.finished, r.state] for r in (record, *_earlier(records, record)[: MOST - 1], *compared)],
        "reached": reached, "public": public, "code": _code(),
        "files": [hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "" for file in files],
    }
    return digest(told, 64)


@cache
def _code() -> str:
    """A hash of the rooms that a page is made in, templates and styles included."""
    found, root = hashlib.sha256(), Path(str(resources.files("cachemark")))
    for file in sorted(file for room in ROOMS for file in (root / room).rglob("*") if file.is_file() and "__pycache__" not in file.parts):
        found.update(json.dumps(str(file.relative_to(root))).encode() + file.read_bytes())
    return found.hexdigest()
