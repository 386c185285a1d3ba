"""Results as pandas frames: one row per case, per case and metric, or per raw value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from ..analysis.columns import Column, derived_columns
from ..analysis.quality_claims import standing
from ..analysis.report_row import ReportRow, is_random
from ..core.errors import Unsupported
from ..core.result import JUDGING, Outcome
from ..core.spec import LATER, Case, Sampling, canonical
from ..core.units import in_order, metric
from ..stats.intervals import Interval, median_over_repeats
from ..store.db import Store
from .escape import for_sheet

_PARTS = {"sampling": tuple(field.name for field in fields(Sampling))}
_SETTINGS = tuple(name for field in fields(Case) for name in _PARTS.get(field.name, (field.name,)))
_WHOSE = ("run", "commit", "machine_class", "case", "cell", "label", *_SETTINGS)
_ENDED = ("status", "reason", "not_ranked")
COLUMNS = (*_WHOSE, *_ENDED, "metric", "unit", "better", "kind", "version", "value", "mean", "median", "low", "high", "confidence", "n")
SAMPLE_COLUMNS = (*_WHOSE, "judgement", "metric", "unit", "better", "kind", "version", "index", "value")

Source = Store | str | Path | Iterable[Outcome]


def frame(source: Source, run: int | None = None) -> pd.DataFrame:
    """Return a frame with the columns ``COLUMNS``, one row per case and metric.

    ``source`` is a store, its path or URL, or results; ``run`` a run number, by default the newest. ``value`` is the value in the report:
    the median of times and counts, the mean over seeds otherwise. ``low``, ``high`` and ``confidence`` are NaN without an interval. ``n``
    counts raw values, or images of image-set metrics. Speedup and savings have the kind ``derived``. A case without values has one row with
    the ``reason``; fidelity and quality of random weights are left out. Raises BadStore, and NothingMeasured for a store without runs.
    """
    outcomes, shared = _given(source, run)
    rows: dict[int, tuple[ReportRow, tuple[Column, ...]]] = {}
    for group in standing(outcomes)[0]:
        columns = derived_columns(group)
        for row in group.rows:
            rows.setdefault(id(row.outcome), (row, columns))  # several groups may contain the same reference row
    records = [_whole(record) for outcome in outcomes for record in _records(*rows[id(outcome)], shared)]
    return pd.DataFrame(records, columns=list(COLUMNS)).astype({"n": "Int64", "version": "Int64", "run": "Int64"})


def case_frame(source: Source, run: int | None = None) -> pd.DataFrame:
    """Return a frame with one row per case and one column per metric, NaN where missing.

    ``attrs["units"]`` and ``attrs["better"]`` map metrics to units and directions. Arguments and errors as for :func:`frame`.
    """
    long = frame(source, run)
    about = [*_WHOSE, *_ENDED]
    cases = long.drop_duplicates("case")[about].set_index("case", drop=False)
    measured = long[long["metric"].notna()]
    table = cases.join(measured.pivot(index="case", columns="metric", values="value")[list(dict.fromkeys(measured["metric"]))])
    measured = measured.drop_duplicates("metric")
    table = table.reset_index(drop=True)
    table.attrs = {name: measured.set_index("metric")[column].to_dict() for name, column in (("units", "unit"), ("better", "better"))}
    return table


def samples_frame(source: Source, run: int | None = None) -> pd.DataFrame:
    """Return a frame with the columns ``SAMPLE_COLUMNS``, one row per raw value, in order.

    Nothing is omitted: ``judgement`` states why fidelity and quality of a case must not be used. Arguments and errors as for :func:`frame`.
    """
    outcomes, shared = _given(source, run)
    records = [
        {**whose, **_about(name), "index": index, "value": value}
        for outcome in outcomes for whose in [_whole({**shared, **_whose(outcome.case), "judgement": outcome.unjudged})]
        for name in in_order(outcome.samples) for index, value in enumerate(outcome.samples[name])
    ]
    return pd.DataFrame(records, columns=list(SAMPLE_COLUMNS)).astype({"index": "Int64", "version": "Int64", "run": "Int64"})


def csv(table: pd.DataFrame) -> str:
    """Return the frame as CSV; texts that look like formulas get a leading apostrophe."""
    safe = table.copy()
    for name in safe.select_dtypes(exclude="number"):
        safe[name] = [for_sheet(value) if isinstance(value, str) else value for value in safe[name]]
    return str(safe.to_csv(index=False, lineterminator="\n"))


def _whose(case: Case) -> dict[str, Any]:
    return {"case": case.key, "cell": case.cell, "label": case.label, **settings(case)}


def settings(case: Case) -> dict[str, Any]:
    """Return every field of a case as a plain value, mappings and lists as JSON."""
    data = case.to_json()
    flat = {"decoder": {}, **LATER, **data, **data.pop("sampling"), "grid": "x".join(map(str, data["grid"]))}
    return {name: canonical(flat[name]) if isinstance(flat[name], Mapping | list) else flat[name] for name in _SETTINGS}


def _whole(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.encode("utf-8", "replace").decode() if isinstance(value, str) and not value.isascii() else value
            for name, value in record.items()}


def _given(source: Source, run: int | None) -> tuple[list[Outcome], dict[str, Any]]:
    if isinstance(source, str | Path):
        with Store.open(source, create=False, read_only=True) as store:
            return _given(store, run)
    if isinstance(source, Store):
        record = source.run(run)
        shared = {"run": record.id, "commit": record.code.get("commit"), "machine_class": record.environment.machine_class}
        return source.outcomes(record.id), shared
    if run is not None:
        raise Unsupported(f"A run number ({run}) requires a store.", remedy="Pass a store, or omit the run.")
    return list(source), {"run": None, "commit": None, "machine_class": None}


def _records(row: ReportRow, columns: Iterable[Column], shared: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    outcome = row.outcome
    whose = {**shared, **_whose(row.case), "status": str(outcome.status), "not_ranked": row.unranked}
    if not row.ok:
        yield {**whose, "reason": row.outcome.reason}
        return
    whose["reason"] = row.unjudged
    names = [name for name in in_order([*outcome.samples, *row.quality]) if not (metric(name).kind in JUDGING and is_random(outcome.case))]
    if not names:
        yield whose
    for name in names:
        interval = row.fidelity.get(name) or row.quality.get(name) or median_over_repeats(outcome.raw(name))
        yield {**whose, **_about(name), "mean": outcome.mean(name), "median": outcome.median(name), **_ends(interval)}
    for column in columns if row.case.role == "candidate" else ():
        if (value := column.value(row)) is not None:
            yield {**whose, "metric": column.key, "unit": column.unit, "better": column.better, "kind": "derived", **_ends(value)}


def _about(name: str) -> dict[str, Any]:
    about = metric(name)
    return {"metric": name, "unit": about.unit, "better": about.better, "kind": about.kind, "version": about.version}


def _ends(interval: Interval) -> dict[str, float]:
    return {**vars(interval), **({} if interval.stated else dict.fromkeys(("low", "high", "confidence"), math.nan))}
