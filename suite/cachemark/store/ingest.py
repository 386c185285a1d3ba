"""Import of pytest-benchmark files.

A file becomes a run. A benchmark becomes a case of the model ``pytest-benchmark``, with its full name as the method and its group as the
condition. The raw times of its calls are its ``latency``. Benchmarks without raw times are skipped. The number of rounds varies from
day to day and is not part of the case.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import BadResults, NothingMeasured
from ..core.facts import Facts
from ..core.result import Environment, Outcome, Status
from ..core.spec import MICRO, Case, Sampling, digest, finite
from ..core.units import TIME
from .db import Store


@dataclass(frozen=True)
class Ingested:
    """Imported file: its run, number of cases, skipped benchmarks; ``repeated``: imported before."""

    run: int
    cases: int
    skipped: tuple[str, ...]
    repeated: bool = False


def ingest(store: Store, text: str, source: str) -> Ingested:
    """Import JSON of pytest-benchmark that contains raw values; errors mention ``source``.

    A file is imported once; an interrupted import is repeated. Raises BadResults if the text has another format, NothingMeasured without
    raw values.
    """
    name = hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()
    data = _parse(text, source)
    for run in store.runs():
        if (run.plan, run.state, run.plan_json.get("sha256")) == (MICRO, "finished", name):
            return Ingested(run.id, len(store.outcomes(run.id)), (), repeated=True)
    environment, code = _environment(data), _code(data)
    outcomes, skipped = _outcomes(data, environment.fingerprint, source)
    if not outcomes:
        raise NothingMeasured(f"{source} has no raw values.",
                              remedy="Write it with --benchmark-json, or add --benchmark-save-data to --benchmark-save.")
    plan = {"name": MICRO, "sha256": name, "measured": str(data.get("datetime", ""))}
    with store.new_run(MICRO, plan, environment, code) as number:
        for outcome in outcomes:
            store.save(number, outcome, trial=MICRO)
    return Ingested(number, len(outcomes), tuple(skipped))


def _parse(text: str, source: str) -> Mapping[str, Any]:
    remedy = "Use a file of `pytest --benchmark-json FILE`."
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadResults(f"{source} is not JSON: {error}.", remedy=remedy) from error
    if not isinstance(data, dict) or not isinstance(data.get("benchmarks"), list) or not isinstance(data.get("machine_info"), dict):
        raise BadResults(f"{source} is JSON, but not of pytest-benchmark: it has no list `benchmarks` or no table `machine_info`.",
                         remedy=remedy)
    return data


def _outcomes(data: Mapping[str, Any], fingerprint: str, source: str) -> tuple[list[Outcome], list[str]]:
    outcomes: dict[str, Outcome] = {}
    skipped = []
    for place, item in enumerate(data["benchmarks"], 1):
        try:
            name, values = str(item["fullname"]), item["stats"].get("data")
            if values is None:
                skipped.append(f"{name}: no raw values, only a summary")
                continue
            outcome = _outcome(item, name, [float(value) for value in values], fingerprint)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            problem = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            remedy = "It was edited, or written by another version of pytest-benchmark than 4 or 5. Write it again."
            raise BadResults(f"{source} cannot be used, at benchmark {place}: {problem}.", remedy=remedy) from error
        outcomes[outcome.case.key] = outcome
    return list(outcomes.values()), skipped


def _outcome(item: Mapping[str, Any], name: str, values: list[float], fingerprint: str) -> Outcome:
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        raise ValueError("the raw values are not a list of seconds")
    parameters = finite(dict(item.get("params") or {}))
    case = Case(MICRO, "none", (0, 0), str(item.get("group") or "no group"), Sampling(), name, parameters, seeds="none",
                samples=0, dtype="none", engine=MICRO, warmup=0, repeats=0)
    stats, extra = item["stats"], item.get("extra_info") or {}
    facts = Facts.from_json({"rounds": stats.get("rounds"), "iterations": stats.get("iterations"), "options": item.get("options") or {},
                             "fingerprint": fingerprint, **({"extra_info": extra} if extra else {})})
    return Outcome(case, Status.OK, {TIME: values}, judgement="A micro-benchmark makes no images.", seconds=sum(values), facts=facts)


def _environment(data: Mapping[str, Any]) -> Environment:
    machine = data["machine_info"]
    cpu = machine.get("cpu") if isinstance(machine.get("cpu"), dict) else {}
    device = str(cpu.get("brand_raw") or machine.get("processor") or machine.get("machine") or "unknown")
    count = cpu.get("count")
    facts = {"device": device, "cpu": device, "cpus": count, "node": machine.get("node"), "os": machine.get("system"),
             "python": machine.get("python_version"), "measured": data.get("datetime"), MICRO: data.get("version")}
    named = re.sub(r"[^a-z0-9]+", "-", f"{device}, {count} threads".lower()).strip("-")[:120] or "unknown"
    return Environment(device, named, digest([device, facts["python"], str(machine.get("release"))]), {k: v for k, v in facts.items() if v})


def _code(data: Mapping[str, Any]) -> dict[str, Any]:
    commit: Mapping[str, Any] = info if isinstance(info := data.get("commit_info"), dict) else {}
    commit_id = str(commit.get("id") or "")
    return {"commit": commit_id if re.fullmatch(r"[0-9a-f]{7,64}", commit_id) else "", "dirty": bool(commit.get("dirty")), "hash": "",
            "version": str(data.get("version") or "")}
