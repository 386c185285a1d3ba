"""Import of files of benchmark programs (:mod:`cachemark.store.benchmark_files`).

A file becomes a run at the time of its measurement. A benchmark becomes a case of the model that has the program's name, with its name as
the method and its group as the condition. Its times are its ``latency``. Parameters and the number of rounds are no part of the case:
parameters may have values that change from day to day, and pytest writes their ids into the name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from ..core.errors import NothingMeasured
from ..core.facts import Facts
from ..core.result import Environment, Outcome, Status
from ..core.spec import MICRO, Case, Sampling, digest
from ..core.units import TIME
from .benchmark_files import Benchmark, BenchmarkFile, read
from .db import Store


@dataclass(frozen=True)
class Ingested:
    """Imported file: its run, number of cases, skipped benchmarks; ``repeated``: imported before.

    ``left_out``: parameters and parts of names that do not identify a case."""

    run: int
    cases: int
    skipped: tuple[str, ...]
    repeated: bool = False
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Import:
    """A file to be imported: its content, SHA-256, the time of its measurement, and the name for messages."""

    content: BenchmarkFile
    sha256: str
    measured: datetime
    source: str

    @classmethod
    def of(cls, text: str, source: str, written: datetime | None = None) -> Import:
        """Read a file. ``written``: its time, for programs that do not write one.

        Raises BadResults if the text has another format, NothingMeasured without times."""
        content = read(text, source)
        if not any(benchmark.times for benchmark in content.benchmarks):
            reasons = sorted({benchmark.missing for benchmark in content.benchmarks if benchmark.missing})
            remedy = "Write it with --benchmark-json, or add --benchmark-save-data to --benchmark-save." if content.program == MICRO else ""
            raise NothingMeasured(f"{source} has no times{f': {reasons[0]}' if reasons else ''}.", remedy=remedy)
        named = re.search(r"(?<!\d)(1\d{12})(?!\d)", source)  # CodSpeed writes milliseconds into the name of its file
        of_name = datetime.fromtimestamp(int(named[1]) / 1000, UTC) if named else None
        measured = content.measured or of_name or written or datetime.now(UTC)
        return cls(content, hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest(), measured, source)


def ingest(store: Store, text: str, source: str, written: datetime | None = None) -> Ingested:
    """Import a file; see :meth:`Import.of` and :func:`save`."""
    return save(store, Import.of(text, source, written))


def save(store: Store, file: Import) -> Ingested:
    """Save a file as one run. A file is imported once; an interrupted import is repeated."""
    content, program = file.content, file.content.program
    left_out = _left_out(content)
    for run in store.runs():
        if (run.plan, run.state, run.plan_json.get("sha256")) == (program, "finished", file.sha256):
            return Ingested(run.id, len(store.outcomes(run.id)), (), repeated=True, left_out=left_out)
    environment = _environment(content, file.measured)
    outcomes = [_outcome(benchmark, program, environment.fingerprint) for benchmark in content.benchmarks if benchmark.times]
    plan = {"name": program, "sha256": file.sha256, "measured": file.measured.isoformat()}
    finished = file.measured + timedelta(seconds=min(sum(outcome.seconds for outcome in outcomes), 1e8))
    with store.new_run(program, plan, environment, _code(content), times=(file.measured, finished)) as number:
        for outcome in outcomes:
            store.save(number, outcome, trial=program)
    skipped = tuple(f"{benchmark.name}: {benchmark.missing}" for benchmark in content.benchmarks if benchmark.missing)
    return Ingested(number, len(outcomes), skipped, left_out=left_out)


def _left_out(content: BenchmarkFile) -> tuple[str, ...]:
    """Return parameters, and parts of names, that are no part of a case."""
    parameters = sorted({name for benchmark in content.benchmarks for name in benchmark.facts.get("parameters") or ()})
    renamed = [benchmark.full_name for benchmark in content.benchmarks if benchmark.name != benchmark.full_name]
    return (*([f"parameters {', '.join(parameters)} (the names have their ids)"] if parameters else []),
            *(f"what changes in {name}" for name in renamed))


def _outcome(benchmark: Benchmark, program: str, fingerprint: str) -> Outcome:
    case = Case(program, "none", (0, 0), benchmark.group or "no group", Sampling(), benchmark.name, seeds="none",
                samples=0, dtype="none", engine=program, warmup=0, repeats=0)
    facts = {**{name: value for name, value in benchmark.facts.items() if value not in (None, "", {})}, "fingerprint": fingerprint}
    return Outcome(case, Status.OK, {TIME: benchmark.times}, unjudged="A micro-benchmark makes no images.",
                   seconds=sum(benchmark.times), facts=Facts.from_json(facts))


def _environment(content: BenchmarkFile, measured: datetime) -> Environment:
    """Return the environment; releases of the kernel and patch releases of Python are facts only."""
    facts = {"device": content.device, "cpu": content.device, "cpus": content.cpus, **content.facts, "measured": measured.isoformat(),
             content.program: content.version}
    named = f"{content.device}, {content.cpus} threads" if content.cpus else content.device
    machine_class = re.sub(r"[^a-z0-9]+", "-", named.lower()).strip("-")[:120] or "unknown"
    fingerprint = digest([content.program, content.device, content.runtime])
    return Environment(content.device, machine_class, fingerprint, {name: value for name, value in facts.items() if value})


def _code(content: BenchmarkFile) -> Mapping[str, Any]:
    commit = str(content.commit.get("id") or "")
    return {"commit": commit if re.fullmatch(r"[0-9a-f]{7,64}", commit) else "", "dirty": bool(content.commit.get("dirty")), "hash": "",
            "version": content.version}
