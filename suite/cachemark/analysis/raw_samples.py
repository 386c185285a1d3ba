"""Cases of a run with their raw samples."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.result import Outcome
from ..core.units import in_order, metric
from . import formatting as fmt
from .display_names import display_name

MOST = 150_000  # raw values that a page carries; beyond, it says how to print those of one case
_MEANS = ("fidelity", "quality")


@dataclass(frozen=True)
class CaseMetric:
    """Metric of a case; ``text`` is its mean or median, ``raw`` all values (empty on very large pages)."""

    title: str
    meaning: str
    text: str
    as_: str
    n: int
    raw: str


@dataclass(frozen=True)
class CaseRecord:
    """Case with its status, process, values and the command that prints them."""

    key: str
    label: str
    model: str
    status: str
    trial: str
    took: str
    facts: tuple[tuple[str, str], ...]
    metrics: tuple[CaseMetric, ...]
    log: str
    reason: str
    command: str


def case_records(outcomes: Sequence[Outcome], run: str, trials: Mapping[str, str]) -> tuple[CaseRecord, ...]:
    """Return each case once, in the order of the run; ``trials`` names its process by case key."""
    latest = {outcome.case.key: outcome for outcome in outcomes}
    with_raw = sum(len(values) for outcome in latest.values() for values in outcome.samples.values()) <= MOST
    return tuple(_record(outcome, run, trials.get(key, ""), with_raw) for key, outcome in latest.items())


def _record(outcome: Outcome, run: str, trial: str, with_raw: bool) -> CaseRecord:
    case, facts = outcome.case, outcome.facts
    settings = {
        "Kernel": facts.get("kernel"), "Output hash": outcome.output_hash, "Seeds": f"{case.seeds} ({case.samples})", "Batch": case.batch,
        "Engine": f"{case.engine}, {case.dtype}, {case.device_class}", "Reused": _reused(outcome),
    }
    metrics = tuple(_metric(name, outcome, with_raw) for name in in_order(outcome.samples))
    seconds = fmt.seconds(outcome.seconds) if outcome.seconds else ""
    return CaseRecord(case.key, display_name(case.label), case.model, str(outcome.status), trial, seconds,
                 tuple((name, str(value)) for name, value in settings.items() if value), metrics, outcome.log, outcome.reason,
                 f"cachemark show {shlex.quote(case.key)} --run {shlex.quote(run)}")


def _reused(outcome: Outcome) -> str:
    reused = outcome.facts.get("reused")
    return f"{', '.join(reused['metrics'])}: same tokens as {reused['from'][:12]}" if reused else ""


def _metric(name: str, outcome: Outcome, with_raw: bool) -> CaseMetric:
    values, mean = outcome.samples[name], metric(name).kind in _MEANS
    middle = outcome.mean(name) if mean else outcome.median(name)
    assert middle is not None
    return CaseMetric(metric(name).title, metric(name).meaning, fmt.with_unit(middle, name), "mean" if mean else "median", len(values),
                  " ".join(f"{value:.6g}" for value in values) if with_raw else "")
