"""Evaluation of a returned folder: one run of all results, its report, an accepted baseline, and a table."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cachemark.analysis.papers import published
from cachemark.core.result import Outcome, Status
from cachemark.gate import baselines
from cachemark.plans.reuse import code_identity
from cachemark.store.db import Store
from cachemark.store.rows import RunRecord
from cachemark.workflows import report as report_workflow

from .folder import BEFORE, Folder

PLAN = "gpu-campaign"


@dataclass(frozen=True)
class Target:
    """A value to reach by a model at a batch with a method.

    ``least``: by part of a GPU's name; ``figure`` computes the value from an outcome and its full cache; ``unit`` is printed after it.
    """

    model: str
    batch: int
    method: str
    budget: str
    what: str
    least: Mapping[str, float]
    figure: Callable[[Outcome, Outcome], float | None]
    unit: str = ""
    engine: str = ""


def images_per_second(outcome: Outcome, full: Outcome) -> float | None:
    """Images of a batch over the time of its tokens: image decoding is left out."""
    seconds = outcome.median("latency_tokens")
    return outcome.case.batch / seconds if seconds else None


def copy_share(outcome: Outcome, full: Outcome) -> float | None:
    """Share of the bandwidth that the bytes which had to be moved used."""
    seconds, limit = outcome.median("latency_tokens"), outcome.facts.limit
    return limit.mbu(seconds) if seconds and limit else None


def over_full(outcome: Outcome, full: Outcome) -> float | None:
    """Return the speedup of token generation over the full cache."""
    mine, its = outcome.median("latency_tokens"), full.median("latency_tokens")
    return its / mine if mine and its else None


def of_roofline(outcome: Outcome, full: Outcome) -> float | None:
    """The share of the speedup that bytes and FLOPs allow which was reached."""
    reached, mine, its = over_full(outcome, full), outcome.facts.limit, full.facts.limit
    return reached / (its.tokens / mine.tokens) if reached and mine and its else None


def memory_saved(outcome: Outcome, full: Outcome) -> float | None:
    """The share of the full cache's bytes that is not allocated."""
    mine, its = outcome.median("kv_allocated"), full.median("kv_allocated")
    return 1 - mine / its if mine is not None and its else None


XL, D30 = "llamagen-xl", "var-d30"
TARGETS = (
    Target(XL, 256, "full", "1", "images/s", {"H100": 34, "H200": 48}, images_per_second),
    Target(XL, 256, "linear", "1/6", "images/s", {"H100": 58, "H200": 83}, images_per_second),
    Target(XL, 256, "linear", "1/6", "speed over the full cache", {"H100": 1.7, "H200": 1.7}, over_full, "×"),
    Target(XL, 256, "linear", "1/6", "share of its roofline speedup", {"H100": 0.7, "H200": 0.7}, of_roofline),
    Target(XL, 1, "full", "1", "images/s", {"H200": 1.25}, images_per_second, engine="graph"),
    Target(XL, 1, "full", "1", "share of the bandwidth", {"H100": 0.6, "H200": 0.6}, copy_share, engine="graph"),
    Target(D30, 64, "full", "1", "images/s", {"H100": 95, "H200": 120}, images_per_second),
    Target(D30, 64, "ams_kv", "", "speed over the full cache", {"H100": 0.99, "H200": 0.99}, over_full, "×"),
    Target(D30, 64, "ams_kv", "", "of the full cache's bytes saved", {"H100": 0.68, "H200": 0.68}, memory_saved),
    Target("mar-l", 64, "full", "1", "images/s", {"H100": 12, "H200": 15}, images_per_second),
    Target("mar-l", 64, "lazymar", "", "images/s", {"H100": 31, "H200": 39}, images_per_second),
    Target("mar-l", 64, "marche", "", "images/s", {"H100": 14, "H200": 18}, images_per_second),
    Target("mar-h", 64, "full", "1", "images/s", {"H100": 5.5, "H200": 7}, images_per_second),
    Target("mar-h", 64, "lazymar", "", "images/s", {"H100": 15, "H200": 20}, images_per_second),
)
RECORDED = 3.0  # times that the graph engine should be faster than the eager one at batch 1
GAINED = {"full": 1.12, "linear": 1.9}  # times that each should be faster than by the build before fused passes


def bring_home(folder: Folder, report: Path, reason: str = "") -> str:
    """Write the report of all results and, with a ``reason``, an accepted baseline; return a table."""
    with tempfile.TemporaryDirectory() as work:
        store = folder.unpack(Path(work))
        with Store.open(store, create=False) as opened:
            run = gathered(opened)
            outcomes, record = opened.outcomes(run), opened.run(run)
        print(f"report: {report_workflow.report(store, report, run=run).path}")
        if reason:  # after the report, which would compare the run with it
            with Store.open(store, create=False) as opened:
                print(f"baseline: {baselines.save(opened, run, reason=reason)}")
    return table(outcomes, record, folder)


def gathered(store: Store) -> int:
    """Create a run with the newest outcome of every case of all runs, and return its number.

    Successful outcomes are linked, others copied; cases that never ran are left out. Raises RuntimeError without a run.
    """
    runs = [record for record in store.runs() if record.plan == PLAN]
    if not runs:
        raise RuntimeError(f"no run of {PLAN} in {store.where}")
    newest = runs[0]
    by_key: dict[str, Outcome] = {}
    for record in reversed([record for record in runs if record.environment.fingerprint == newest.environment.fingerprint]):
        for outcome in store.outcomes(record.id):
            if outcome.status != Status.NOT_REACHED:
                by_key[outcome.case.key] = outcome
    with store.new_run(PLAN, newest.plan_json, newest.environment, newest.code) as run:
        for outcome in by_key.values():
            if not outcome.ok or store.reuse(run, outcome.result_key) is None:
                store.save(run, outcome)
    return run


def table(outcomes: Sequence[Outcome], record: RunRecord, folder: Folder) -> str:
    """Return targets with measured, roofline and published values, and a line about the machine."""
    lines = ["| model, batch | method | what | target | measured | bound of this device | published, and the bound of its GPU |",
             "|---|---|---|---|---|---|---|"]
    lines += [_line(target, outcomes, record.environment.device) for target in TARGETS]
    lines += [_recorded(outcomes), *gained(outcomes, folder.read(BEFORE)), ""]
    return "\n".join([*lines, _where(record, folder), ""])


def _line(target: Target, outcomes: Sequence[Outcome], device: str) -> str:
    least = next((least for part, least in target.least.items() if part in device), None)
    mine, full = case_of(target, outcomes), None
    if mine is not None:
        full = next((o for o in outcomes if o.case.cell == mine.case.cell and o.case.role == "baseline"), None)
    figure = target.figure(mine, full) if mine is not None and mine.ok and full is not None and full.ok else None
    measured = said(figure) + target.unit if figure is not None else _why(mine)
    if figure is not None and least is not None:
        measured += "" if figure >= least else " (missed)"
    limit = mine.facts.limit if mine is not None else None
    bound = f"{said(target.batch / limit.tokens)} images/s" if limit else "–"
    method = f"{target.method} {target.budget}".strip()
    goal = "–" if least is None else f"≥ {said(least)}{target.unit}"
    return f"| {target.model}, {target.batch} | {method} | {target.what} | {goal} | {measured} | {bound} | {_published(mine)} |"


def case_of(target: Target, outcomes: Iterable[Outcome]) -> Outcome | None:
    """Return the outcome that a target means, with the graph engine if there is one."""
    matches = [o for o in outcomes if (o.case.model, o.case.batch, o.case.method) == (target.model, target.batch, target.method)
             and o.case.role in ("candidate", "baseline") and o.case.engine != "reference"
             and o.case.engine in (target.engine or o.case.engine)
             and target.budget in ("", "1", o.case.budget)]
    return min(matches, key=lambda o: (not o.ok, o.case.engine != "graph"), default=None)


def _why(outcome: Outcome | None) -> str:
    return "not in this campaign" if outcome is None else str(outcome.status).replace("_", " ")


def _published(outcome: Outcome | None) -> str:
    """Images/s of a paper's row, and those that its GPU allows."""
    if outcome is None:
        return "–"
    for cell in published().cells:
        if cell.model and cell.means(outcome.case) and cell.seconds:
            bound = f" of {said(1 / cell.roofline_time)}" if cell.roofline_time else ""
            return f"{said(1 / cell.seconds)}{bound} images/s, {cell.table}, {cell.hardware}"
    return "–"


def _recorded(outcomes: Sequence[Outcome]) -> str:
    """The line of the graph engine against the eager one."""
    times = {o.case.engine: o.median("latency_tokens") for o in outcomes
             if (o.case.model, o.case.batch, o.case.role) == (XL, 1, "baseline") and o.ok}
    graph, eager = times.get("graph"), times.get("eager")
    measured = "not in this campaign"
    if graph and eager:
        measured = f"{eager / graph:.3g}×" + ("" if eager / graph >= RECORDED else " (missed)")
    return f"| {XL}, 1 | full | graph engine over eager | ≥ {said(RECORDED)}× | {measured} | – | – |"


def gained(outcomes: Sequence[Outcome], older: Mapping[str, Any]) -> list[str]:
    """Return a line for each case of an older build."""
    lines = []
    for case in older.get("cases", ()):
        mine = next((o for o in outcomes if o.ok and identity(o) == case["identity"]), None)
        seconds, least = mine and mine.median("latency_tokens"), GAINED.get(case["identity"][-2])
        measured = "not in this campaign"
        if seconds and case["seconds"]:
            gain = case["seconds"] / seconds
            measured = f"{said(gain)}×" + (" (missed)" if least and gain < least else "")
        model, batch, _, *method = case["identity"]
        goal = f"≥ {said(least)}×" if least else "–"
        lines.append(f"| {model}, {batch} | {' '.join(method)} | over the build {older['build']} | {goal} | {measured} | – | – |")
    return lines


def identity(outcome: Outcome) -> list[Any]:
    """Return what tells a timed case from others in the campaign: model, batch, engine, method and budget."""
    case = outcome.case
    return [case.model, case.batch, case.engine, case.method, str(case.budget)]


def said(figure: float) -> str:
    """Three digits."""
    return f"{figure:.3g}"


def _where(record: RunRecord, folder: Folder) -> str:
    """Return device, software and commit; the commit is printed only if the code hash matches."""
    facts: Mapping[str, Any] = record.environment.facts
    here = code_identity()
    commit = str(folder.facts.get("commit") or record.code.get("commit") or "unknown")[:10]  # a copied checkout may name an old one
    if here["hash"] == record.code.get("hash") and here["commit"]:
        commit = f"{here['commit'][:10]}, whose measuring code has the same hash as this run"
    return (f"`python -m tools.campaign run`, {record.environment.device}, driver {facts.get('driver')}, torch {facts.get('torch')}, "
            f"commit {commit}. Random weights; bf16; medians; image decoding left out. Bounds by measured bandwidth and FLOP/s.")
