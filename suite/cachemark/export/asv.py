"""Results as files of asv, which plots them over commits.

asv expects lower values to be better, so others become costs: seconds per token, 1 − agreement, the error that a PSNR measures. In asv 0.6
a result file is one commit on one machine, a row needs the version of ``benchmarks.json``, and each combination of ``params`` is its own
curve. So ``params`` contain everything that makes values incomparable (machine class, device, major versions), but not drivers or clocks.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from asv_runner.statistics import compute_stats

from ..analysis.report_row import is_random
from ..core.errors import Unsupported
from ..core.files import read_json, replacing
from ..core.git import git, is_shallow, run_git
from ..core.result import JUDGING, Outcome
from ..core.spec import Case, digest
from ..core.units import Metric, metric
from ..core.wording import on_one_line
from ..store.db import Store
from ..store.rows import RunRecord
from .escape import slug

LIST_VERSION, FILE_VERSION, MACHINE_VERSION = 2, 2, 1  # of asv's own formats
STATS = ("ci_99_a", "ci_99_b", "q_25", "q_75", "number", "repeat")  # asv's names
COLUMNS = ["result", "params", "version", *(f"stats_{name}" for name in STATS), "samples"]
_NO_STATS = (None,) * len(STATS)
_UNITS = {"s": "seconds", "B": "bytes"}


@dataclass(frozen=True)
class Written:
    """Result files, number of values, and runs left out with reasons."""

    files: tuple[Path, ...]
    points: int
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    """A metric of a case: a row of a benchmark, whose ``entry`` is all but its list of rows."""

    series: str
    label: str
    entry: Mapping[str, Any]
    value: Callable[[float], float]
    middle: Callable[[Sequence[float]], float]
    timed: bool


Value = tuple[_Row, float, list[float]]  # a cost, and those of the repeats of a time


@dataclass
class _Point:
    commit: str
    date: int
    facets: Mapping[str, str]
    machine: Mapping[str, str]
    values: dict[str, list[Value]] = field(default_factory=dict)
    results: dict[str, dict[str, tuple[float, list[float]]]] = field(default_factory=dict)


def write(store: Store, folder: str | Path, repository: str | Path = ".") -> Written:
    """Write every run whose commit is in ``repository`` to ``folder``, asv's ``results_dir``.

    Existing benchmarks stay; new cases are appended. Reused results, comparisons and runs of a changed working tree are left out. The
    newest result of a case at a commit counts; a case without values is a gap. Raises Unsupported for a ``benchmarks.json`` of another
    format, and CachemarkError for a repository that git does not read.
    """
    git(repository, "rev-parse", "--git-dir")
    folder = Path(folder)
    runs = [run for run in reversed(store.runs()) if not run.is_comparison]
    dates = commits(repository, {str(run.code.get("commit") or "") for run in runs})
    points, known, rows = dict[str, _Point](), dict[str, Case](), dict[tuple[str, str], _Row | None]()
    whys = {run.id: _why_not(run, repository, dates) for run in runs}
    left_out = [f"run {number}: {why}" for number, why in whys.items() if why]
    for run, outcomes in store.values_measured([run for run in runs if not whys[run.id]], known):
        commit, date = dates[str(run.code["commit"])]
        facets, machine = _facets(run)
        point = points.setdefault(digest([commit, facets]), _Point(commit, date, facets, machine))
        for outcome in outcomes:
            if outcome.case.role in ("candidate", "baseline"):
                point.values[outcome.case.key] = _values(outcome, rows)
    path = folder / "benchmarks.json"
    benchmarks, measured = _benchmarks_in(path), [point for point in points.values() if point.values]
    for row in {id(row): row for point in measured for row, _, _ in chain.from_iterable(point.values.values())}.values():
        _add(row, benchmarks)
    for point in measured:
        for row, cost, costs in chain.from_iterable(point.values.values()):
            if math.isfinite(cost):
                point.results.setdefault(row.series, {})[row.label] = cost, costs
    if measured:
        _put(path, {**benchmarks, "version": LIST_VERSION})
    for point in {point.facets["machine"]: point for point in measured}.values():
        _put(folder / point.facets["machine"] / "machine.json", {**point.machine, "version": MACHINE_VERSION})
    written = [_write_point(folder, point, benchmarks) for point in measured]
    return Written(tuple(file for file, _ in written), sum(count for _, count in written), tuple(left_out))


# -- assignment of values to files ------------------------------------------------------------------------------------
def _why_not(run: RunRecord, repository: str | Path, dates: Mapping[str, object]) -> str:
    """Return why a run is left out, or an empty text."""
    commit = str(run.code.get("commit") or "")
    if not commit:
        return "its commit is not known"
    if run.code.get("dirty"):
        return "its working tree had changes that are in no commit"
    if commit not in dates:
        incomplete = ", a shallow clone: run git fetch --unshallow" if is_shallow(repository) else ""
        return f"its commit {commit[:12]} is not in {repository}{incomplete}"
    return ""


def commits(repository: str | Path, names: Collection[str]) -> dict[str, tuple[str, int]]:
    """Return the full name and the date in milliseconds of each commit that the repository has, with two calls of git."""
    asked = sorted(name for name in names if re.fullmatch(r"[0-9a-f]{7,64}", name))
    listed = "".join(f"{name}^{{commit}}\n" for name in asked)
    found = [line.split() for line in run_git(repository, "cat-file", "--batch-check", stdin=listed).stdout.splitlines()]
    full = {name: fields[0] for name, fields in zip(asked, found, strict=False) if fields[1:2] == ["commit"]}
    if not full:
        return {}
    dated = git(repository, "rev-list", "--no-walk", "--timestamp", "--stdin", stdin="".join(f"{name}\n" for name in full.values()))
    dates = {commit: 1000 * int(seconds) for seconds, commit in map(str.split, dated.splitlines())}
    return {name: (commit, dates[commit]) for name, commit in full.items()}


def _facets(run: RunRecord) -> tuple[dict[str, str], dict[str, str]]:
    facts, device = run.environment.facts, _plain(run.environment.device)
    short = {name: ".".join(str(facts.get(name) or "unknown").split("+")[0].split(".")[:2]) for name in ("python", "torch")}
    machine = slug(run.environment.machine_class) or "unknown"
    description = {"machine": machine, "os": facts.get("os"), "arch": "", "cpu": facts.get("cpu"), "num_cpu": facts.get("cpus"), "ram": "",
             "device": device, "driver": facts.get("driver")}
    facets = {"machine": machine, "device": device, **{name: _plain(value) for name, value in short.items()}}
    return facets, {name: _plain("" if value is None else value) for name, value in description.items()}


def _plain(text: object) -> str:
    """Replace characters with a meaning in asv's pages; a changed text gets digits of its hash."""
    raw = str(text)
    plain = re.sub(r"[^\w .,:()/+=@-]", "_", on_one_line(raw, 80), flags=re.ASCII)
    return plain if plain == raw else f"{plain} {digest(raw, 6)}"


# -- benchmarks -------------------------------------------------------------------------------------------------------
def _values(outcome: Outcome, rows: dict[tuple[str, str], _Row | None]) -> list[Value]:
    """Return the cost of each metric: mean over seeds, or median; times keep their repeats. ``rows`` keeps each row once."""
    case, values = outcome.case, []
    for name, samples in outcome.samples.items():
        key = case.key, name
        if key not in rows:
            rows[key] = _row(case, metric(name))
        if row := rows[key]:
            costs = list(map(row.value, samples))
            values.append((row, row.middle(costs), costs if row.timed else []))
    return values


def _row(case: Case, of: Metric) -> _Row | None:
    if is_random(case) and of.kind in JUDGING:
        return None
    about, middle = cost_of(of), statistics.fmean if of.kind in JUDGING else statistics.median
    title = _plain(f"{case.model} (batch {case.batch}, {case.seeds}, {case.dtype}, {case.engine})")
    series = f"{slug(case.model) or 'model'}.{case.cell[:8]}.{about.name}"
    entry = {
        "name": series, "code": f"{title}: {of.meaning}", "param_names": ["case"], "type": "track", "unit": about.unit,
        "version": str(of.version), "timeout": 600, "pretty_name": f"{title}: {about.title}",
    }  # fmt: skip
    return _Row(series, repr(_plain(case.label)), entry, about.value, middle, of.timed)


def _add(row: _Row, benchmarks: dict[str, Any]) -> None:
    entry = benchmarks.setdefault(row.series, {"params": [[]]})
    if row.label not in entry["params"][0]:
        entry["params"][0].append(row.label)
    entry.update(row.entry)


@dataclass(frozen=True)
class Cost:
    """Metric as a cost, computed by ``value``."""

    name: str
    unit: str
    title: str
    value: Callable[[float], float]


def cost_of(of: Metric) -> Cost:
    """Return the metric as a cost. Raises KeyError for a higher-is-better metric without a rule."""
    if of.better == "lower":
        return Cost(of.name, _UNITS.get(of.unit, of.unit), of.title, lambda value: value)
    ceiling = of.within[1] if of.ceiling is None else of.ceiling
    if of.unit in RULES:
        end, unit, title, value = RULES[of.unit]
    elif of.ceiling is None and of.within[0] > 0:
        end, unit, title, value = "_inverse", "", "inverse", _inverse
    elif math.isfinite(ceiling):
        end, unit, title, value = "_lost", of.unit, f"shortfall from {ceiling:g}", _lacking(ceiling)
    else:
        raise KeyError(of.unit)
    return Cost(of.cost_name or f"{of.name}{end}", unit, f"{of.title}, {title}", value)


def _inverse(value: float) -> float:
    return 1 / value if value else math.nan


def _lacking(ceiling: float) -> Callable[[float], float]:
    return lambda value: ceiling - value


RULES: Mapping[str, tuple[str, str, str, Callable[[float], float]]] = {
    "token/s": ("_inverse", "seconds", "as seconds per token", _inverse),
    "image/s": ("_inverse", "seconds", "as seconds per image", _inverse),
    "image": ("_inverse", "1/image", "inverse", _inverse),
    "dB": ("_error", "", "as root mean square error", lambda value: 10.0 ** (-value / 20)),
    "share": ("_lost", "share", "shortfall from 1", _lacking(1.0)),
}
"""Costs of metrics that should be high, by unit: the end of the name where the metric states no ``cost_name``, the unit, the end of the
title, and the cost of a value."""


def _benchmarks_in(path: Path) -> dict[str, Any]:
    if not os.path.lexists(path):
        return {}
    try:
        stored = read_json(path)
        if stored.pop("version") == LIST_VERSION and all(isinstance(entry["params"], list) for entry in stored.values()):
            return dict(stored)
    except (ValueError, AttributeError, KeyError, TypeError):
        pass
    raise Unsupported(f"{path} is not a list of benchmarks of asv 0.6.", remedy="Name a new folder, or the results_dir of asv.conf.json.")


# -- files ------------------------------------------------------------------------------------------------------------
def _write_point(folder: Path, point: _Point, benchmarks: Mapping[str, Any]) -> tuple[Path, int]:
    machine, python, results = point.facets["machine"], point.facets["python"], {}
    for name, values in point.results.items():
        params = benchmarks[name]["params"]
        cells: list[tuple[float | None, list[float]]] = [values.get(label, (None, [])) for label in params[0]]
        stats = zip(*(_stats(samples) for _, samples in cells), strict=True)
        results[name] = [[cost for cost, _ in cells], params, benchmarks[name]["version"], *map(list, stats),
                         [samples or None for _, samples in cells]]
    environment = f"cachemark-py{slug(python)}-torch{slug(point.facets['torch'])}"
    path = folder / machine / f"{point.commit[:8]}-{environment}.json"
    _put(path, {
        "commit_hash": point.commit, "env_name": environment, "date": point.date, "params": dict(point.facets), "python": python,
        "requirements": {}, "env_vars": {}, "result_columns": COLUMNS, "results": results, "durations": {}, "version": FILE_VERSION,
    })  # fmt: skip
    return path, sum(value is not None for values, *_ in results.values() for value in values)


def _stats(samples: list[float]) -> tuple[float | None, ...]:
    """Return the values of :data:`STATS` as asv computes them; ``asv compare`` distinguishes changes from noise by them."""
    if not samples:
        return _NO_STATS
    stats = compute_stats(samples, 1)[1]
    return tuple(stats.get(name) for name in STATS)


def _put(path: Path, data: Mapping[str, Any]) -> None:
    with replacing(path) as part:
        part.write_text(json.dumps(data), encoding="utf-8")
