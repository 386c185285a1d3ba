"""Rows of the newest run of a plan: values, fractions of the full cache's, and differences from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from cachemark.analysis.case_group import CaseGroup
from cachemark.analysis.device_limits import OF_SPEED
from cachemark.analysis.quality_claims import Claims, margin_sentence, standing
from cachemark.analysis.report_row import ReportRow, method_of
from cachemark.core.spec import FLOPS, Case, shown_share
from cachemark.core.units import METRICS
from cachemark.core.wording import printed
from cachemark.methods.base import calibrations
from cachemark.methods.registry import METHODS
from cachemark.plans.expand import expand
from cachemark.plans.schema import load
from cachemark.stats.intervals import Interval
from cachemark.store.rows import RunRecord
from cachemark.workflows.results import Run
from cachemark.workflows.session import reading

from .writing import rounded

Row = dict[str, Any]
SHARES = {  # by name of the fraction of the full cache: a metric, or the difference of two
    "kv_allocated": ("kv_allocated",), "kv_own": ("kv_allocated", "kv_workspace"), "kv_logical": ("kv_logical",), "flops": ("flops",),
}  # fmt: skip
IMAGES = ("token_agreement", "kl", "token_distance", "forced_distance", "psnr", "ssim", "color_consistency", "class_accuracy",
          *(name for name in METRICS if name.startswith("prompt_")))
SETS = ("fid", "precision", "recall")
ABOUT = {  # warnings about a value, printed if the table has the value
    "latency": (*OF_SPEED, "no speedup", "busy machine"), "kv_allocated": ("not freed", "overhead exceeds saving"),
}  # fmt: skip


def of_run(store: Path, plan: str, names: Collection[str]) -> Row:
    """Return the newest run of a plan with the values ``names``. Raises SystemExit."""
    run = _newest(store, plan)
    groups, claims = standing(run.outcomes)
    measured = {row.case.key: (row, group) for group in groups for row in group.rows}
    planned = _planned(plan, run.outcomes[0].case.device_class)
    if strange := [printed(row.case.title) for key, (row, _) in measured.items() if key not in planned]:
        raise SystemExit(f"The plan {plan} has no such cases: {', '.join(strange)}.")
    with reading(store) as source:
        reused = len(source.reused(run.id))
    return {
        **_origin(run.record), "plan": plan, "state": run.record.state, "reused": reused,
        "asked": {case.model: _asked(case) for case, _ in planned.values()},
        "rule": {group.model: sentence for group in groups if (sentence := margin_sentence(group, claims))},
        "rows": [{**_named(case, block), **(_figures(*measured[key], claims, names) if key in measured else {"missing": "not reached"})}
                 for key, (case, block) in planned.items()],
        "calibrations": list(_calibrations(case for case, _ in planned.values())),
    }


def _newest(store: Path, plan: str) -> Run:
    with reading(store) as source:
        runs = source.runs()
    number = next((run.id for run in runs if run.plan == plan), None)
    if number is None:
        known_names = ", ".join(dict.fromkeys(printed(run.plan) for run in runs)) or "none at all"
        raise SystemExit(f"{store} holds no run of the plan {plan}; of others: {known_names}.")
    run = Run(store, number)
    if not run.outcomes:
        raise SystemExit(f"Run {number} of the plan {plan} in {store} has no outcome yet.")
    return run


def _planned(name: str, device: str) -> dict[str, tuple[Case, int]]:
    plan, cases = load(name), dict[str, tuple[Case, int]]()
    for number, cells in enumerate(plan.cells):
        for planned in expand(plan.model_copy(update={"cells": [cells]}), device):
            cases.setdefault(planned.case.key, (planned.case, number))
    return cases


def _origin(record: RunRecord) -> Row:
    facts, changed = record.environment.facts, " (dirty)" if record.code.get("dirty") else ""
    return {"commit": f"{record.code.get('commit', '')[:10]}{changed}", "machine": record.environment.device,
            "threads": int(facts["threads"]), "torch": facts["torch"]}


def _asked(case: Case) -> Row:
    quality = case.evaluation.get("quality", {})
    return {"seeds": case.seeds, "samples": case.samples, "images": quality.get("samples", 0), "of": quality.get("seeds", ""),
            "batch": case.batch, "repeats": case.repeats, "dtype": case.dtype}


# -- a row --------------------------------------------------------------------------------------------------------------
def _named(case: Case, block: int) -> Row:
    extra = {"parameters": _chosen(case), "block": block, "codec": "" if case.codec == "native" else case.codec}
    return {"model": case.model, "method": method_of(case), "budget": shown_share(case.stated_budget), "role": case.role,
            **{name: value for name, value in extra.items() if value}}


def _chosen(case: Case) -> dict[str, Any]:
    own = {parameter.name: parameter.default for parameter in fields(METHODS.get(case.method))}
    return {name: value for name, value in case.parameters.items() if own.get(name) != value and value != ()}


def _figures(row: ReportRow, group: CaseGroup, claims: Claims, names: Collection[str]) -> Row:
    if not row.ok:
        return {"missing": f"{row.outcome.status}: {row.outcome.reason}"}
    verdict = "" if row.case.key not in claims else "inconclusive" if row.unranked else "non-inferior"
    silent = {text for name, texts in ABOUT.items() if name not in names for text in texts}
    notes = [mark.reason for mark in row.marks
             if mark.tone == "warn" and mark.text not in silent and not (row.unproven and mark.reason == row.unranked)]
    figures = {**_shares(row, group.full), **_times(row), **{name: rounded(values) for name, values in _images(row).items()}}
    less = {name: rounded(values) for name, values in _apart(row).items()}
    extra = {"less": _short(less, names), "claim": verdict, "notes": notes}
    return {"figures": _short(figures, names), **{name: value for name, value in extra.items() if value}}


def _short(figures: Mapping[str, list[float]], names: Collection[str]) -> dict[str, list[float]]:
    return {name: values if len(set(values[1:])) == 2 else values[:1] for name, values in figures.items() if name in names}


def _shares(row: ReportRow, full: ReportRow | None) -> dict[str, list[float]]:
    pairs = {name: (_counted(row, *of), _counted(full, *of)) for name, of in SHARES.items()}
    pairs["kv_peak"] = _counted(row, "kv_peak"), _counted(full, "kv_logical")
    shares = {name: [round(mine / its, 5)] for name, (mine, its) in pairs.items() if mine is not None and its}
    if row.case.budget_kind == FLOPS and (true := row.outcome.facts.true_ratio):
        shares["flops"] = [round(true, 5)]  # the mean of images that decide
    return shares


def _counted(row: ReportRow | None, name: str, without: str = "") -> float | None:
    values, other = (row.median(each) if row and each else None for each in (name, without))
    return values if values is None or not without else None if other is None else values - other


def _times(row: ReportRow) -> dict[str, list[float]]:
    latency = row.median("latency")
    seconds = {} if latency is None else {"latency": [round(latency, 5)]}
    return seconds if row.speedup is None or row.case.role != "candidate" else {**seconds, "speedup": rounded(row.speedup)}


def _images(row: ReportRow) -> dict[str, Interval]:
    values = {**(row.fidelity if row.case.role != "baseline" else {}), **row.quality}
    sets = {base: result[1] for base in SETS if (result := row.of_set(base))}
    return {**{name: values[name] for name in IMAGES if name in values}, **sets}


def _apart(row: ReportRow) -> dict[str, Interval]:
    sets = {base: row.to_full[result[0]] for base in SETS if (result := row.of_set(base)) and result[0] in row.to_full}
    return {**{name: row.to_full[name] for name in IMAGES if name in row.to_full}, **sets}


# -- calibrations -------------------------------------------------------------------------------------------------------
def _calibrations(cases: Iterator[Case]) -> Iterator[Row]:
    for method, weights, name in dict.fromkeys((case.method, case.weights, case.parameters.get("calibration", "")) for case in cases):
        facts: Mapping[str, Any] = {}
        if name:
            facts = calibrations.named(method, name)[1]
        elif hasattr(METHODS.get(method), "profiler"):
            facts = calibrations.measured(method, weights)
        if facts:
            yield {"method": method, "digest": calibrations.fingerprint(facts), "samples": facts["samples"],
                   **{name: facts[name] for name in ("seeds", *calibrations.COST) if name in facts}}
