"""Results of other programs, read into the store: the JSON of pytest-benchmark.

One file becomes one run. A benchmark is a case of the model ``pytest-benchmark``: its full name stands as the method, its group as the
condition. The time of a call is its ``latency``, with every raw value; what has no raw values is left out,
because the store keeps samples and not summaries. How many rounds there were changes from day to day and is no part of the case.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import BadResults, NothingMeasured
from ..core.result import Environment, Outcome, Status
from ..core.spec import Case, Sampling, digest
from ..core.units import TIME
from .db import Store

PYTEST_BENCHMARK = "pytest-benchmark"


@dataclass(frozen=True)
class Ingested:
    """The run that a file became, its number of cases, the benchmarks left out with the reasons, and whether the file was known before."""

    run: int
    cases: int
    left_out: tuple[str, ...]
    known: bool = False


def ingest(store: Store, text: str, source: str) -> Ingested:
    """Read the JSON that ``pytest --benchmark-json`` or ``--benchmark-save`` with ``--benchmark-save-data`` writes; ``source`` names it.

    The same file twice is one run; what a broken reading left is read again. Raises BadResults where it is no such file, NothingMeasured
    where it holds no raw values.
    """
    name = hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()
    data = _parse(text, source)
    for run in store.runs():
        same_file = run.plan == PYTEST_BENCHMARK and isinstance(run.plan_json, Mapping) and run.plan_json.get("sha256") == name
        if same_file and run.state == "finished":
            return Ingested(run.id, len(store.outcomes(run.id)), (), known=True)
    environment, code = _environment(data), _code(data)
    outcomes, left_out = _outcomes(data, environment.fingerprint, source)
    if not outcomes:
        raise NothingMeasured(f"{source} holds no raw values of any benchmark.",
                              remedy="Write it with --benchmark-json, or add --benchmark-save-data to --benchmark-save.")
    plan = {"name": PYTEST_BENCHMARK, "sha256": name, "measured": str(data.get("datetime", ""))}
    with store.new_run(PYTEST_BENCHMARK, plan, environment, code) as number:
        for outcome in outcomes:
            store.save(number, outcome, trial=PYTEST_BENCHMARK)
    return Ingested(number, len(outcomes), tuple(left_out))


def _parse(text: str, source: str) -> Mapping[str, Any]:
    remedy = "Give a file that `pytest --benchmark-json FILE` wrote."
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
    left_out = []
    for place, item in enumerate(data["benchmarks"], 1):
        try:
            name, values = str(item["fullname"]), item["stats"].get("data")
            if values is None:
                left_out.append(f"{name}: the file has its summary only, not its raw values")
                continue
            outcome = _outcome(item, name, _finite(values), fingerprint)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            problem = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            remedy = "It was edited, or written by another version of pytest-benchmark than 4 or 5. Write it again."
            raise BadResults(f"{source} cannot be used, at benchmark {place}: {problem}.", remedy=remedy) from error
        outcomes[outcome.case.key] = outcome
    return list(outcomes.values()), left_out


def _finite(values: Sequence[Any]) -> list[float]:
    seconds = [float(value) for value in values]
    if not seconds or not all(math.isfinite(value) and value >= 0 for value in seconds):
        raise ValueError("its raw values are not a list of seconds")
    return seconds


def _outcome(item: Mapping[str, Any], name: str, values: list[float], fingerprint: str) -> Outcome:
    parameters = {str(key): _plain(value) for key, value in (item.get("params") or {}).items()}
    case = Case(PYTEST_BENCHMARK, "none", (0, 0), str(item.get("group") or "no group"), Sampling(), name, parameters, seeds="none",
                samples=0,                 dtype="none", engine=PYTEST_BENCHMARK, warmup=0, repeats=0)
    stats, extra = item["stats"], item.get("extra_info") or {}
    facts = {"rounds": stats.get("rounds"), "iterations": stats.get("iterations"), "options": _plain(item.get("options") or {}),
             "fingerprint": fingerprint, **({"extra_info": _plain(extra)} if extra else {})}
    return Outcome(case, Status.OK, {TIME: values}, judgement="A micro-benchmark makes no images.", seconds=sum(values), facts=facts)


def _plain(value: Any) -> Any:
    """A value as JSON has it; NaN and infinities, which canonical JSON has no word for, as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _environment(data: Mapping[str, Any]) -> Environment:
    machine = data["machine_info"]
    cpu = machine.get("cpu") if isinstance(machine.get("cpu"), dict) else {}
    device = str(cpu.get("brand_raw") or machine.get("processor") or machine.get("machine") or "unknown")
    count = cpu.get("count")
    facts = {"device": device, "cpu": device, "cpus": count, "node": machine.get("node"), "os": machine.get("system"),
             "python": machine.get("python_version"), "measured": data.get("datetime"), PYTEST_BENCHMARK: data.get("version")}
    named = re.sub(r"[^a-z0-9]+", "-", f"{device}, {count} threads".lower()).strip("-")[:120] or "unknown"
    return Environment(device, named, digest([device, facts["python"], str(machine.get("release"))]), {k: v for k, v in facts.items() if v})


def _code(data: Mapping[str, Any]) -> dict[str, Any]:
    commit: Mapping[str, Any] = info if isinstance(info := data.get("commit_info"), dict) else {}
    commit_id = str(commit.get("id") or "")
    return {"commit": commit_id if re.fullmatch(r"[0-9a-f]{7,64}", commit_id) else "", "dirty": bool(commit.get("dirty")), "hash": "",
            "version": str(data.get("version") or "")}
