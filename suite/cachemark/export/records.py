"""Results as records: the columns that a case's rows share, and the others of each row; CSV is written from them line by line."""

from __future__ import annotations

import csv
import io
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

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
WHOSE = ("run", "commit", "machine_class", "case", "cell", "label", *_SETTINGS)
ENDED = ("status", "reason", "not_ranked")
_FLOATS = {"value", "mean", "median", "low", "high", "confidence", *(each.name for each in fields(Sampling) if each.type == "float")}
COLUMNS = (*WHOSE, *ENDED, "metric", "unit", "better", "kind", "version", "value", "mean", "median", "low", "high", "confidence", "n")
SAMPLE_COLUMNS = (*WHOSE, "judgement", "metric", "unit", "better", "kind", "version", "index", "value")

Records = Iterator[tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]]
Source = Store | str | Path | Iterable[Outcome]


def metric_records(source: Source, run: int | None = None) -> Records:
    """Yield the shared columns of each case, and the other columns of :data:`COLUMNS` for each metric."""
    outcomes, shared = _given(source, run)
    rows: dict[int, tuple[ReportRow, tuple[Column, ...]]] = {}
    for group in standing(outcomes)[0]:
        columns = derived_columns(group)
        for row in group.rows:
            rows.setdefault(id(row.outcome), (row, columns))  # several groups may contain the same reference row
    for outcome in outcomes:
        row, columns = rows[id(outcome)]
        reason = row.unjudged if row.ok else row.outcome.reason
        ended = {"status": str(outcome.status), "reason": reason, "not_ranked": row.unranked}
        yield _whole({**shared, **_whose(row.case), **ended}), _records(row, columns)


def sample_records(source: Source, run: int | None = None) -> Records:
    """Yield the shared columns of each case, and the other columns of :data:`SAMPLE_COLUMNS` for each raw value."""
    outcomes, shared = _given(source, run)
    for outcome in outcomes:
        yield (_whole({**shared, **_whose(outcome.case), "judgement": outcome.unjudged}),
               ({**_about(name), "index": index, "value": value}
                for name in in_order(outcome.samples) for index, value in enumerate(outcome.samples[name])))


def csv_lines(source: Source, run: int | None = None, *, samples: bool = False) -> Iterator[str]:
    """Yield CSV in parts, one for each case; texts that look like formulas get a leading apostrophe."""
    columns, records = (SAMPLE_COLUMNS, sample_records) if samples else (COLUMNS, metric_records)
    at = columns.index("metric")
    yield _line(columns) + "\n"
    for shared, others in records(source, run):
        start = _line([_cell(shared, name) for name in columns[:at]])
        yield "".join(f"{start},{_line([_cell(other, name) for name in columns[at:]])}\n" for other in others)


_for_sheet = lru_cache(10_000)(for_sheet)  # names and settings repeat in most rows


def _cell(record: Mapping[str, Any], name: str) -> Any:
    value = record.get(name)
    if isinstance(value, str):
        return _for_sheet(value)
    if value is None or not (name in _FLOATS or isinstance(value, float)):
        return value
    return "" if math.isnan(value) else float(value)


def _line(cells: Sequence[Any]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


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
        return list(map(_packed, source.each_outcome(record.id))), shared
    if run is not None:
        raise Unsupported(f"A run number ({run}) requires a store.", remedy="Pass a store, or omit the run.")
    return list(source), {"run": None, "commit": None, "machine_class": None}


def _packed(outcome: Outcome) -> Outcome:
    """Return the outcome with its raw values in arrays, which take a fourth of the memory of lists."""
    return replace(outcome, samples={name: array("d", values) for name, values in outcome.samples.items()})


def _records(row: ReportRow, columns: Iterable[Column]) -> Iterator[dict[str, Any]]:
    outcome = row.outcome
    if not row.ok:
        yield {}
        return
    names = [name for name in in_order([*outcome.samples, *row.quality]) if not (metric(name).kind in JUDGING and is_random(outcome.case))]
    if not names:
        yield {}
    for name in names:
        interval = row.fidelity.get(name) or row.quality.get(name) or median_over_repeats(outcome.raw(name))
        yield {**_about(name), "mean": outcome.mean(name), "median": outcome.median(name), **_ends(interval)}
    for column in columns if row.case.role == "candidate" else ():
        if (value := column.value(row)) is not None:
            yield {"metric": column.key, "unit": column.unit, "better": column.better, "kind": "derived", **_ends(value)}


def _about(name: str) -> dict[str, Any]:
    about = metric(name)
    return {"metric": name, "unit": about.unit, "better": about.better, "kind": about.kind, "version": about.version}


def _ends(interval: Interval) -> dict[str, float]:
    return {**vars(interval), **({} if interval.stated else dict.fromkeys(("low", "high", "confidence"), math.nan))}
