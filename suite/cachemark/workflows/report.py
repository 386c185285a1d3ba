"""Report of a run, and site of all runs of a store."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import dropwhile
from pathlib import Path
from typing import Any

from ..analysis import report_view
from ..analysis.public import public_outcomes, public_run, public_verdicts, scrubbed
from ..analysis.report_view import ReportView
from ..analysis.run_history import MOST, HistoryNight
from ..core.calls import strict
from ..core.errors import BadBaseline, NothingMeasured
from ..core.files import NAME, writing
from ..core.result import Outcome
from ..core.units import is_metric, metric
from ..gate import anchors, baselines, nights as ledger
from ..gate.judgement import RunJudgement
from ..report.page import render, site as pages
from ..store.db import Store
from ..store.exchange import Exchange
from ..store.rows import COMPARISON, RunRecord
from .check import chosen, judge
from .session import DEFAULT_STORE, reading

LIVE = 10  # newest runs, whose pages are always rewritten
_SIDES = ("after", "before")


@dataclass(frozen=True)
class Report:
    """Written report: file and run number."""

    path: Path
    run: int


@dataclass(frozen=True)
class WrittenSite:
    """Written site: index, runs with new pages, and number of removed pages."""

    index: Path
    made: tuple[int, ...]
    removed: int


@strict("report")
def report(
    store: Store | str | Path = DEFAULT_STORE, path: str | Path = "report.html", *, run: int | None = None,
    baseline: str | Path | None = None, public: bool = False, register: str | Path | None = None,
) -> Report:
    """Write the report of a run (default: the newest) to ``path``.

    The run is compared with ``baseline`` (default: the accepted one, for shared cases). Earlier runs of its plan are its history;
    ``register`` holds decisions on regressions. ``public`` omits hosts, users and paths. Raises Infrastructure if the file cannot be
    written, and NothingMeasured if no case is shared with a given baseline.
    """
    with reading(store) as source, _without_collector():
        record, incidents = chosen(source, run), None if register is None else Path(register)
        view = _view(source, record, baseline_of(record, baseline), public, incidents, required=bool(baseline))
        with writing(path, "Name another file: cachemark report PATH"):
            return Report(render.write(view, path), record.id)


def site(
    store: Store | str | Path, folder: str | Path, *, baseline: str | Path | None = None, days: int = 90,
    public: bool = False, register: str | Path | None = None,
) -> WrittenSite:
    """Write or update a site: an index, and a page for each run of the last ``days``.

    The pages of the newest ``LIVE`` runs and missing pages are rewritten; verdicts and incidents of older runs no longer change.
    """
    folder, now, made, incidents = Path(folder), datetime.now(UTC), [], None if register is None else Path(register)
    lines: dict[str, dict[str, Any]] = {}
    with writing(folder, "Name another folder."), reading(store) as source:
        present = pages.stored_lines(folder)
        recent = [record for record in source.runs() if not pages.too_old(record.started, now, days)]
        for number, record in enumerate(recent):
            if number >= LIVE and str(record.id) in present and pages.page_of(folder, record.id).is_file():
                lines[str(record.id)] = present[str(record.id)]
                continue
            with _without_collector():
                view = _view(source, record, baseline_of(record, baseline), public, incidents)
            render.write(view, pages.page_of(folder, record.id))
            made.append(record.id)
            lines[str(record.id)] = pages.listed(record.id, view)
        removed = pages.prune(folder, [record.id for record in recent])
        return WrittenSite(pages.publish(folder, lines), tuple(made), removed)


def baseline_of(record: RunRecord, path: str | Path | None) -> Path | None:
    """Return the baseline at ``path``, else the accepted one of this plan and numerics, else None."""
    if path or record.is_comparison:  # a comparison has two sides, and no accepted baseline
        return Path(path) if path else None
    if not re.fullmatch(NAME, record.plan):  # a store may hold names that no baseline can have
        return None
    accepted = baselines.path_of(baselines.ROOT, record.environment.machine_class, record.plan)
    if not accepted.is_file():
        return None
    with suppress(BadBaseline):  # the page reports its problem
        return accepted if baselines.load(accepted).environment.fingerprint == record.environment.fingerprint else None
    return accepted


# -- the view of a run ------------------------------------------------------------------------------------------------
@contextmanager
def _without_collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _view(
    store: Store, record: RunRecord, path: Path | None, public: bool, register: Path | None, *, required: bool = False,
) -> ReportView:
    """Return the view of a page, without a baseline that shares no case unless it is ``required``."""
    reached, outcomes, plan = anchors.reached(store), _outcomes(store, record), record.plan.removeprefix(COMPARISON)
    judgement: RunJudgement | None = None
    baseline: Exchange | None = None
    if path is not None:
        try:
            judgement, baseline = judge(store, record, path, expired=True, register=register), baselines.load(path)
        except NothingMeasured:
            if required:
                raise
    if record.is_comparison and judgement is None:
        with suppress(NothingMeasured):  # it broke off
            judgement = judge(store, record, register=register)
    nights = [*(HistoryNight(other, _measured_anew(store, other.id, _outcomes(store, other)))
                for other in reversed(_earlier(store.runs(), record)[: MOST - 1])),
              HistoryNight(record, _measured_anew(store, record.id, outcomes))]
    trials = store.trials(record.id)
    if public:
        record, outcomes, trials = public_run(record), public_outcomes(outcomes), {}
        nights = [HistoryNight(public_run(night.run), public_outcomes(night.outcomes)) for night in nights]
        judgement = judgement and _public_judgement(judgement)
        baseline = baseline and replace(baseline, environment=replace(baseline.environment, facts=scrubbed(baseline.environment.facts)),
                                        meta=scrubbed(baseline.meta))
    return report_view.build(record, outcomes, judgement, store.artifacts.read,
                             lambda case: anchors.not_reproduced(case.model, case.weights, reached),
                             baseline=baseline, nights=nights, trials=trials,
                             standing=ledger.standing(ledger.nights(store, plan, record.environment.machine_class)))


def _outcomes(store: Store, record: RunRecord) -> list[Outcome]:
    return by_case(store.outcomes(record.id)) if record.is_comparison else store.outcomes(record.id)


def _earlier(records: Sequence[RunRecord], record: RunRecord) -> list[RunRecord]:
    until = list(dropwhile(lambda other: other.id != record.id, records))[1:]
    return [other for other in until
            if (other.plan, other.environment.machine_class) == (record.plan, record.environment.machine_class)]


def _measured_anew(store: Store, run_id: int, outcomes: list[Outcome]) -> list[Outcome]:
    reused = store.reused(run_id)
    return [outcome for outcome in outcomes if outcome.case.key not in reused] if reused else outcomes


# -- comparisons in pairs ---------------------------------------------------------------------------------------------
def by_case(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return one result per case of a comparison, the second side's where both sides have the case.

    A process counts as one repeat (its median). A/A tests are left out.
    """
    by_side: dict[str, dict[str, list[Outcome]]] = {}
    outcomes = list(outcomes)
    equal = {id(outcome) for outcome in ledger.aa_outcomes(outcomes)}
    for outcome in (outcome for outcome in outcomes if id(outcome) not in equal):
        side = (outcome.facts.pair and outcome.facts.pair.side) or ""
        by_side.setdefault(outcome.case.key, {}).setdefault(side, []).append(outcome)
    # other sides, as in an edited store, come last
    return [_joined(sides[min(sides, key=lambda side: _SIDES.index(side) if side in _SIDES else len(_SIDES))])
            for sides in by_side.values()]


def _joined(processes: Sequence[Outcome]) -> Outcome:
    ran = [outcome for outcome in processes if outcome.ok]
    if not ran:
        return processes[-1]
    timed, last = [outcome for outcome in ran if outcome.facts.pair is None or outcome.facts.pair.what != "images"] or ran, ran[-1]
    repeats = {name: [median for outcome in timed if (median := outcome.median(name)) is not None]
               for name in timed[-1].samples if is_metric(name) and metric(name).timed}
    return replace(last, samples={**timed[-1].samples, **last.samples, **repeats},
                   facts=replace(last.facts, pair=None))


# -- public content ---------------------------------------------------------------------------------------------------
def _public_judgement(judgement: RunJudgement) -> RunJudgement:
    comparison = judgement.comparison and replace(judgement.comparison, rows=public_verdicts(judgement.comparison.rows))
    night = judgement.night and replace(judgement.night, run=public_run(judgement.night.run), rows=public_verdicts(judgement.night.rows))
    decided = {row: replace(incident, who="", link="", reason=scrubbed(incident.reason)) for row, incident in judgement.decided.items()}
    return replace(judgement, comparison=comparison, night=night, decided=decided, open_incidents=(),
                   history=tuple(map(scrubbed, judgement.history)))
