"""Facts of machines, settings and cases as names and values, with the raw samples of each case."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..core.result import Environment, Outcome
from ..core.spec import Case
from ..core.units import in_order, metric
from ..store.differences import flat
from . import formatting as fmt

NEAR = 0.1  # share by which two measured rates of one machine may differ and still count as equal
RATES = ("bandwidth", 1e9, "GB/s"), ("peak_flops", 1e12, "TFLOP/s")
ABBREVIATIONS = {"cpu": "CPU", "cpus": "CPUs", "cuda": "CUDA", "os": "OS", "tf32": "TF32", "gpu": "GPU"}
MOST = 150_000  # raw values that a page carries; beyond, it says how to print those of one case


# -- machines and settings --------------------------------------------------------------------------------------------
def environment_facts(environment: Environment, code: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of each fact of a machine and of the code that measured."""
    facts = {**_facts(environment), **dict(flat(code, "code"))}
    return tuple((title(name), _fact(name, value)) for name, value in facts.items())


def differences(then: Environment, now: Environment) -> tuple[tuple[str, str, str], ...]:
    """Return (name, then, now) of facts that differ; measured rates within 10 % count as equal."""
    old, new = _facts(then), _facts(now)
    return tuple((title(name), _fact(name, old.get(name)), _fact(name, new.get(name)))
                 for name in dict.fromkeys((*new, *old)) if not _alike(name, old.get(name), new.get(name)))


def conditions(case: Case) -> tuple[tuple[str, str], ...]:
    """Return (name, value) of the settings that the cases of a group share."""
    settings = {
        "Weights": case.weights, "Grid": f"{case.grid[0]} × {case.grid[1]} tokens", "Conditions": case.conditions,
        "Seeds": f"{case.seeds} ({case.samples})", "Batch": case.batch, "Compute dtype": case.dtype, "Engine": case.engine,
        "Device class": case.device_class, "Warm-up, repeats": f"{case.warmup}, {case.repeats}",
    }
    sampling = {name.replace("cfg", "CFG").replace("_", " "): value for name, value in asdict(case.sampling).items()}
    evaluation = dict(flat(case.evaluation, "evaluation"))
    return tuple((title(name), as_text(value)) for name, value in {**settings, **sampling, **evaluation}.items())


def _facts(environment: Environment) -> dict[str, Any]:
    first = {"device": environment.device, "machine class": environment.machine_class, "fingerprint": environment.fingerprint}
    return {**first, **dict(flat(environment.facts)), **first}


def _alike(name: str, value: Any, other: Any) -> bool:
    if name.startswith("rates ") and isinstance(value, float) and isinstance(other, float) and other:
        return abs(value / other - 1) < NEAR
    return as_text(value) == as_text(other)


def title(name: str) -> str:
    """Return a fact's name as a heading."""
    first, _, remainder = name.partition(" ")
    return " ".join(filter(None, (ABBREVIATIONS.get(first, first[:1].upper() + first[1:]), remainder)))


def _fact(name: str, value: Any) -> str:
    for ending, scale, unit in RATES:
        if name.startswith("rates ") and name.endswith(ending) and isinstance(value, (int, float)):
            return f"{value / scale:.3g} {unit}"
    return as_text(value)


def as_text(value: Any) -> str:
    """Return a setting or fact as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return fmt.DASH
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple, dict)) else str(value)


# -- cases ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CaseMetric:
    """Metric of a case; ``text`` is its mean or median, ``raw`` all values (empty on very large pages)."""

    title: str
    text: str
    statistic: str
    n: int
    raw: str


@dataclass(frozen=True)
class CaseRecord:
    """Case with its process and values."""

    outcome: Outcome
    trial: str
    facts: tuple[tuple[str, str], ...]
    metrics: tuple[CaseMetric, ...]


def case_records(outcomes: Sequence[Outcome], trials: Mapping[str, str]) -> tuple[CaseRecord, ...]:
    """Return each case once, in the order of the run; ``trials`` names its process by case key."""
    latest = {outcome.case.key: outcome for outcome in outcomes}
    with_raw = sum(len(values) for outcome in latest.values() for values in outcome.samples.values()) <= MOST
    return tuple(_record(outcome, trials.get(key, ""), with_raw) for key, outcome in latest.items())


def _record(outcome: Outcome, trial: str, with_raw: bool) -> CaseRecord:
    case, facts = outcome.case, outcome.facts
    reused = facts.get("reused")
    settings = {
        "Kernel": facts.get("kernel"), "Output hash": outcome.output_hash, "Seeds": f"{case.seeds} ({case.samples})", "Batch": case.batch,
        "Engine": f"{case.engine}, {case.dtype}, {case.device_class}",
        "Reused": f"{', '.join(reused['metrics'])}: same tokens as {reused['from'][:12]}" if reused else "",
    }
    return CaseRecord(outcome, trial, tuple((name, str(value)) for name, value in settings.items() if value),
                      tuple(_metric(name, outcome, with_raw) for name in in_order(outcome.samples)))


def _metric(name: str, outcome: Outcome, with_raw: bool) -> CaseMetric:
    values, mean = outcome.samples[name], metric(name).kind in ("fidelity", "quality")
    middle = outcome.mean(name) if mean else outcome.median(name)
    assert middle is not None
    return CaseMetric(metric(name).title, fmt.with_unit(middle, name), "mean" if mean else "median", len(values),
                      " ".join(f"{value:.6g}" for value in values) if with_raw else "")
