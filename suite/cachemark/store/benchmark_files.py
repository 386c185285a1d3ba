"""JSON files of benchmark programs as one structure: pytest-benchmark, Google Benchmark, hyperfine, CodSpeed and Bencher (BMF).

A benchmark has raw times if its program writes them; CodSpeed writes the median of each benchmark and Bencher one value. Sources: files
written by pytest-benchmark 5, Google Benchmark 1.9, hyperfine 1.15 and pytest-codspeed 5, and the page of the Bencher Metric Format.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ..core.errors import BadResults
from ..core.result import SHORTEST
from ..core.spec import BENCHER, CODSPEED, GOOGLE, HYPERFINE, MICRO

DEEPEST = 60  # nested tables and lists
CHANGING = re.compile(
    r"(?<= at )0x[0-9a-fA-F]+|(?<=pytest-of-)\w+/pytest-\d+|(?<=/tmp/)tmp\w{8}|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?[\d.+:Z]*"
    r"|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
"""Parts of a name that differ from night to night: addresses of objects, temporary folders, times and UUIDs."""
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_TIMES = {"latency": 1e-9, "build-time": 1.0}  # measures of Bencher that are times, with their unit in seconds


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: its times per call in seconds, empty if they are ``missing`` for that reason, and facts about it.

    ``full_name``: the name in the file, which may have parts that change from run to run."""

    name: str
    times: tuple[float, ...]
    group: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    missing: str = ""
    full_name: str = ""


@dataclass(frozen=True)
class BenchmarkFile:
    """A file: its program and version, the machine, the time of the measurement, the commit, and its benchmarks.

    ``machine``: name of the processor and facts; ``measured``: None if the file does not contain it; ``runtime``: what makes times
    incomparable besides the machine, such as ``CPython 3.12``."""

    program: str
    benchmarks: tuple[Benchmark, ...]
    version: str = ""
    device: str = "unknown machine"
    cpus: int | None = None
    runtime: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    measured: datetime | None = None
    commit: Mapping[str, Any] = field(default_factory=dict)


def read(text: str, source: str) -> BenchmarkFile:
    """Return the content of a file; errors mention ``source``.

    Raises BadResults for other text and for duplicate names.
    """
    data = _parsed(text, source)
    program = next((name for name, (belongs, _) in _PROGRAMS.items() if isinstance(data, dict) and belongs(data)), "")
    if not program:
        raise BadResults(f"{source} is JSON, but not of a program that is known here.", remedy=_REMEDY)
    try:
        content = _PROGRAMS[program][1](data)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise BadResults(f"{source} cannot be used as a file of {program}: {problem}.",
                         remedy=f"It was edited, or written by an unknown version of {program}. Write it again.") from error
    benchmarks = tuple(replace(each, name=stable(each.name), group=stable(each.group), full_name=each.name) for each in content.benchmarks)
    most = Counter((each.name, each.group) for each in benchmarks).most_common(1)
    if most and most[0][1] > 1:
        raise BadResults(f"{source} has several benchmarks {most[0][0][0]!r}.",
                         remedy="Give the files to `ingest` one by one instead of joining them, or give parameters distinct ids.")
    return replace(content, benchmarks=benchmarks)


def stable(name: str) -> str:
    """Return a name without the parts that change from run to run."""
    return CHANGING.sub("…", name)


_REMEDY = ("Use a file of `pytest --benchmark-json FILE`, `hyperfine --export-json FILE` or Google Benchmark's --benchmark_out=FILE, "
           "results of CodSpeed, or Bencher Metric Format.")


def _parsed(text: str, source: str) -> Any:
    try:
        return _plain(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise BadResults(f"{source} is not JSON of benchmarks: {error}.", remedy=_REMEDY) from error


def _plain(value: Any, depth: int = 0) -> Any:
    """Return JSON without values that a store rejects: NaN, infinity and lone surrogates.

    Raises ValueError if it is nested too deep.
    """
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        return {_plain(name): _plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- pytest-benchmark -------------------------------------------------------------------------------------------------
def _pytest_benchmark(data: Mapping[str, Any]) -> BenchmarkFile:
    machine = data["machine_info"]
    cpu = _table(machine.get("cpu"))
    device = cpu.get("brand_raw") or cpu.get("brand") or machine.get("processor") or machine.get("machine")  # brand: py-cpuinfo up to 5
    python = str(machine.get("python_version") or "")
    facts = {"node": machine.get("node"), "os": machine.get("system"), "python": python}
    benchmarks = tuple(_at(place, _of_pytest, item) for place, item in enumerate(data["benchmarks"], 1))
    return BenchmarkFile(MICRO, benchmarks, _text(data.get("version")), _text(device) or "unknown", _count(cpu.get("count")),
                         f"{machine.get('python_implementation') or 'CPython'} {'.'.join(python.split('.')[:2])}", facts,
                         _moment(data.get("datetime")), _table(data.get("commit_info")))


def _of_pytest(item: Mapping[str, Any]) -> Benchmark:
    name, stats = str(item["fullname"]), item["stats"]
    facts = {"rounds": _count(stats.get("rounds")), "iterations": _count(stats.get("iterations")), "options": item.get("options") or {},
             "parameters": dict(item.get("params") or {}), "extra_info": item.get("extra_info")}
    values = stats.get("data")
    missing = "no raw values, only a summary" if values is None else ""
    return Benchmark(name, () if missing else _times(values), str(item.get("group") or "no group"), facts, missing)


# -- Google Benchmark -------------------------------------------------------------------------------------------------
def _google(data: Mapping[str, Any]) -> BenchmarkFile:
    context = data["context"]
    rows: dict[str, list[Mapping[str, Any]]] = {}
    summaries: dict[str, Mapping[str, Any]] = {}
    failed = {}
    for row in data["benchmarks"]:
        name = str(row.get("run_name") or row["name"])
        if row.get("error_occurred") or row.get("skipped"):
            failed[name] = _text(row.get("error_message") or row.get("skip_message")) or "it was skipped"
        elif row.get("run_type", "iteration") == "iteration":
            rows.setdefault(name, []).append(row)
        elif row.get("aggregate_name") == "median":
            summaries[name] = row
    benchmarks = []
    for name in {**rows, **summaries, **failed}:
        each = rows.get(name) or ([summaries[name]] if name in summaries else [])
        if len(indices := [row.get("repetition_index", 0) for row in each]) > len(set(indices)):
            raise ValueError(f"several benchmarks are called {name!r}")
        times = _times([row["real_time"] * _UNITS[row.get("time_unit", "ns")] for row in each]) if each else ()
        facts = {"rounds": len(each) or None, "iterations": _count(each[0].get("iterations")) if each else None,
                 "summary": "" if name in rows else "median"}
        benchmarks.append(Benchmark(name, times, facts=facts, missing="" if each else failed[name]))
    facts = {"node": context.get("host_name"), "executable": context.get("executable"), "mhz": context.get("mhz_per_cpu")}
    return BenchmarkFile(GOOGLE, tuple(benchmarks), _text(context.get("library_version")), cpus=_count(context.get("num_cpus")),
                         runtime=_text(context.get("library_build_type")), facts=facts, measured=_moment(context.get("date")))


# -- hyperfine --------------------------------------------------------------------------------------------------------
def _hyperfine(data: Mapping[str, Any]) -> BenchmarkFile:
    return BenchmarkFile(HYPERFINE, tuple(_at(place, _of_hyperfine, row) for place, row in enumerate(data["results"], 1)))


def _of_hyperfine(row: Mapping[str, Any]) -> Benchmark:
    times = row.get("times") or [row["median"]]
    facts = {"rounds": len(times), "parameters": row.get("parameters"), "summary": "" if row.get("times") else "median",
             "exit_codes": codes if any(codes := row.get("exit_codes") or []) else None}
    return Benchmark(str(row["command"]), _times(times), facts=facts)


# -- CodSpeed and Bencher ---------------------------------------------------------------------------------------------
def _codspeed(data: Mapping[str, Any]) -> BenchmarkFile:
    creator = data["creator"]
    python = _text(_table(_table(data.get("python")).get("sysconfig")).get("py_version_short"))
    benchmarks = tuple(_at(place, _of_codspeed, item) for place, item in enumerate(data["benchmarks"], 1))
    return BenchmarkFile(CODSPEED, benchmarks, f"{creator['name']} {creator.get('version') or ''}".strip(),
                         runtime=f"CPython {python}" if python else "", facts={"python": python})


def _of_codspeed(item: Mapping[str, Any]) -> Benchmark:
    stats = item["stats"]
    uri = str(item.get("uri") or item["name"])
    name = uri.rsplit("/", 1)[-1] if uri.startswith("/") else uri  # a path of the machine, outside a repository
    facts = {"rounds": _count(stats.get("rounds")), "iterations": _count(stats.get("iter_per_round")), "options": item.get("config") or {},
             "summary": "median"}
    return Benchmark(name, _times([stats["median_ns"] * 1e-9]), facts=facts)


def _bencher(data: Mapping[str, Any]) -> BenchmarkFile:
    return BenchmarkFile(BENCHER, tuple(_of_bencher(data)))


def _of_bencher(data: Mapping[str, Any]) -> Iterator[Benchmark]:
    for name, measures in data.items():
        for measure, row in measures.items():
            if (unit := _TIMES.get(measure)) is None:
                yield Benchmark(name, (), measure, missing=f"measure {measure} is not a time")
            else:
                ends = {end: row[end] * unit for end in ("lower_value", "upper_value") if row.get(end) is not None}
                yield Benchmark(name, _times([row["value"] * unit]), measure, {"summary": "value", **ends})


def _is_bencher(data: Mapping[str, Any]) -> bool:
    tables = list(data.values())
    return bool(tables) and all(isinstance(measures, dict) and measures and all(
        isinstance(row, dict) and "value" in row for row in measures.values()) for measures in tables)


_PROGRAMS: Mapping[str, tuple[Callable[[dict[str, Any]], bool], Callable[[dict[str, Any]], BenchmarkFile]]] = {
    MICRO: (lambda data: isinstance(data.get("benchmarks"), list) and isinstance(data.get("machine_info"), dict), _pytest_benchmark),
    CODSPEED: (lambda data: isinstance(data.get("benchmarks"), list) and isinstance(data.get("creator"), dict), _codspeed),
    GOOGLE: (lambda data: isinstance(data.get("benchmarks"), list) and isinstance(data.get("context"), dict), _google),
    HYPERFINE: (lambda data: isinstance(data.get("results"), list), _hyperfine), BENCHER: (_is_bencher, _bencher),
}
"""By program: whether a file is its own, and its reader."""


# -- values -----------------------------------------------------------------------------------------------------------
def _at(place: int, reader: Callable[[Any], Benchmark], item: Any) -> Benchmark:
    """Return a benchmark; an error names its place."""
    try:
        return reader(item)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"benchmark {place}: {problem}") from error


def _times(values: Any) -> tuple[float, ...]:
    times = tuple(float(value) for value in values)
    if not times or bool in map(type, values) or min(times) < SHORTEST or not math.isfinite(sum(times)):
        raise ValueError("its times are not a list of seconds")
    return times


def _moment(text: Any) -> datetime | None:
    """Return a time in ISO 8601 in UTC, which is also assumed without a zone; None if it is none, or no date of a benchmark."""
    try:
        moment = datetime.fromisoformat(str(text))
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment if 1970 <= moment.year < 9000 else None


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**12 else None
