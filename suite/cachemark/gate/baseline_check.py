"""The plain gate: one run against one baseline, with a fixed threshold.

It detects bytes, fidelity and hashes that must be equal and are not, cases that no longer succeed, and slowdowns that need no statistics.
It is not a test: it compares one run per side, including all differences between days and processes, so **its false-alarm rate is
unknown**, and it misses slowdowns below its threshold. Paired runs have a stated false-alarm rate (:mod:`cachemark.gate.comparison`); if
they are available, times are reported here without a verdict.

Times are compared as ratios to the full cache of the same run, which cancels most of a day's drift. It also hides a change of the full
cache itself: a slower full cache makes every method look better.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.errors import CachemarkError, NothingMeasured
from ..core.formatting import looks_equal
from ..core.result import IMAGES, INFRASTRUCTURE, Environment, Outcome, full_latencies
from ..core.spec import FULL, Case
from ..core.units import TIME, Metric, in_order, is_metric, metric
from ..core.verdicts import CHANGED, EQUIVALENT, IMPROVED, JUDGED, MISSING, NEW, NOT_COMPARED, REGRESSED
from ..store.exchange import Exchange, rounded
from ..store.rows import Verdict

THRESHOLD = 0.15  # largest relative change of a time without a verdict from pairs
TOKENS = "output_hash"
HASHES = (TOKENS, IMAGES)  # of the tokens, and of the decoded images
DEFINITION = "the metric's definition is version"  # start of the reason for a value of another definition
STATED = "reported without a verdict"  # start of the reason for a time that pairs test or can test


@dataclass(frozen=True)
class Comparison:
    """The verdicts on a run.

    ``rows``: one per case and metric, and rows with the metric ``status`` about whole cases. ``changed`` marks values that differ without
    being better or worse; it does not fail the gate."""

    rows: tuple[Verdict, ...]
    threshold: float
    min_coverage: float
    other_numerics: bool = False

    @property
    def cases(self) -> tuple[int, int]:
        """The number of the baseline's cases with a verdict, and the number of its cases.

        With other numerics, a case needs a verdict on more than memory: its bytes may be equal while everything else is unknown."""
        case_keys = {r.case_key for r in self.rows if r.verdict != NEW}
        compared = {r.case_key for r in self.rows if r.verdict in JUDGED and not (self.other_numerics and _is_memory(r.metric))}
        return len(compared), len(case_keys)

    @property
    def values(self) -> tuple[int, int]:
        """The number of values with a verdict, and with those whose metric is defined otherwise."""
        judged = sum(row.verdict in JUDGED for row in self.rows)
        return judged, judged + sum(row.reason.startswith(DEFINITION) for row in self.rows)

    @property
    def coverage(self) -> float:
        """The smaller of the fractions of the baseline's cases and of its values with a verdict."""
        return min(part / whole if whole else 0.0 for part, whole in (self.cases, self.values))

    @property
    def exit_code(self) -> int:
        """4 if too few cases have verdicts, 1 if something regressed, else 0."""
        if self.coverage < self.min_coverage or not self.cases[0]:
            return 4
        return 1 if self.with_verdict(REGRESSED) else 0

    def with_verdict(self, verdict: str) -> tuple[Verdict, ...]:
        """Return the rows with this verdict."""
        return tuple(r for r in self.rows if r.verdict == verdict)

    @property
    def counts(self) -> str:
        """The number of rows by verdict, such as ``1 regressed, 44 equivalent``."""
        by_verdict = Counter(r.verdict for r in self.rows)
        return ", ".join(f"{n} {v.replace('_', ' ')}" for v in (*JUDGED, NOT_COMPARED, MISSING, NEW) if (n := by_verdict[v]))

    def details(self) -> list[str]:
        """Return at most five lines: coverage, worst row, rows not compared, and how times were."""
        compared, total = self.cases
        lines = [f"Judged {compared} of the baseline's {total} cases; {100 * self.min_coverage:g}% are needed."]
        judged, values = self.values
        if judged < values:
            lines.append(f"The baseline has {values - judged} of {values} values by another definition of their metric, or by none. "
                         "Accept this run with: cachemark baseline promote --reason …")
        if worst := _worst(self.with_verdict(REGRESSED)):
            lines.append(worst)
        if self.other_numerics:
            lines.append("Other numerics than the baseline's: fidelity is compared within its rounding noise, times and hashes are not. "
                         "Start a new series with: cachemark baseline rebase --reason …")
        elif reasons := Counter(r.reason for r in self.with_verdict(NOT_COMPARED)).most_common(1):
            lines.append(f"Not compared, most often ({reasons[0][1]} rows): {reasons[0][0]}.")
        stated_reasons = Counter(r.reason for r in self.rows if r.reason.startswith(STATED)).most_common(1)
        times_judged = any(r.verdict in JUDGED and is_metric(r.metric) and metric(r.metric).relative for r in self.rows)
        if stated_reasons and not times_judged:
            reason = stated_reasons[0][0]
            return [*lines, f"Times: {reason}" + ("" if "cachemark compare" in reason else ".")]  # a command is copied whole
        return [*lines, f"Times: fixed threshold of {100 * self.threshold:g}% on one run; the false-alarm rate of this gate is unknown."]


def compare(
    baseline: Exchange, outcomes: Sequence[Outcome], environment: Environment, *,
    threshold: float = THRESHOLD, min_coverage: float = 0.95, plan: str | None = None, in_pairs: Callable[[Case], str] = lambda case: "",
) -> Comparison:
    """Compare ``outcomes``, measured in ``environment``, with ``baseline``.

    ``in_pairs`` returns how the times of a case are or can be tested in pairs; then they are reported without a verdict. If a case has
    several outcomes, the last one counts. Raises NothingMeasured if the baseline belongs to another plan than ``plan``, or shares no case
    with the outcomes."""
    if not 0 < threshold <= 1 or not 0 <= min_coverage <= 1:
        raise CachemarkError(f"Threshold {threshold} or coverage {min_coverage} cannot be used.",
                             remedy="Use shares: a threshold above 0 and up to 1, such as 0.15, and a coverage from 0 to 1.")
    other = baseline.meta.get("plan")
    if plan is not None and other not in (None, plan):
        raise NothingMeasured(f"{baseline.source or 'The baseline'} is of plan {other!r}, this run of plan {plan!r}.",
                              remedy=f"Check against a baseline of {plan!r}.")
    then, now = {o.case.key: o for o in baseline.outcomes}, {o.case.key: o for o in outcomes}
    if not then.keys() & now.keys():
        raise NothingMeasured(f"{baseline.source or 'The baseline'} and this run share no case: {len(then)} there, {len(now)} here.",
                              remedy="Check against a baseline of the same plan, or save one with: cachemark baseline save")
    pair = _Pair(baseline, environment, threshold, _full_caches(then.values()), _full_caches(now.values()),
                 rounding_noise([*then.values(), *now.values()]), in_pairs)
    rows = [row for key, old in then.items() for row in pair.rows(old, now.get(key))]
    rows += [Verdict(k, o.case.title, "status", NEW, "not in the baseline") for k, o in now.items() if k not in then]
    return Comparison(tuple(rows), threshold, min_coverage, baseline.environment.fingerprint != environment.fingerprint)


class RowVerdict(NamedTuple):
    """A verdict with its reason and both values."""

    verdict: str
    reason: str = ""
    then: float | None = None
    now: float | None = None


@dataclass(frozen=True)
class _Pair:
    """Both sides of a comparison, full caches by configuration, and rounding noise by model and metric."""

    baseline: Exchange
    environment: Environment
    threshold: float
    full_then: Mapping[str, Outcome]
    full_now: Mapping[str, Outcome]
    noise: Mapping[tuple[str, str], float]
    in_pairs: Callable[[Case], str]

    def rows(self, old: Outcome, new: Outcome | None) -> Iterator[Verdict]:
        """Yield all rows of one case of the baseline."""
        verdicts: dict[str, RowVerdict] = {}
        if new is None:
            verdicts["status"] = RowVerdict(MISSING, "in the baseline, not in this run")
        elif not (old.ok and new.ok):
            verdicts["status"] = _status(old, new)
        else:
            verdicts |= {name: self._metric(metric(name), old, new) for name in in_order([*old.samples, *new.samples])}
            if old.output_hash or new.output_hash:
                verdicts[TOKENS] = self._hash(old.output_hash, new.output_hash)
            if old.facts.images_hash and new.facts.images_hash:  # older baselines lack them
                verdicts[IMAGES] = self._hash(old.facts.images_hash, new.facts.images_hash)
        for name, (verdict, reason, then, now) in verdicts.items():
            change = now / then if then and now is not None else None
            yield Verdict(old.case.key, old.case.title, name, verdict, reason, then, now, change, absolute=old.case.is_micro)

    def _metric(self, metric: Metric, old: Outcome, new: Outcome) -> RowVerdict:
        name = metric.name
        if metric.stated:
            return RowVerdict(NOT_COMPARED, "no verdict: it follows from the energy per image or the latency")
        if name not in new.samples:
            return RowVerdict(MISSING, "measured in the baseline, not in this run")
        if name not in old.samples:
            return RowVerdict(NEW, "measured in this run, not in the baseline")
        if (version := self.baseline.metrics.get(name)) != metric.version:
            return RowVerdict(NOT_COMPARED, f"{DEFINITION} {version} then, {metric.version} now")
        if metric.relative:
            return self._time(metric, old, new)
        if metric.deterministic:
            return self._exact(metric, old, new)
        if metric.kind == "memory":  # it may vary: the worst value of each run counts
            reason = self._other_machine
            sides = metric.worst(old.samples[name]), metric.worst(new.samples[name])
            return RowVerdict(NOT_COMPARED, reason) if reason else self._by_threshold(metric, *sides)
        if metric.kind == "work":
            return RowVerdict(NOT_COMPARED, "a single wall time: reported without a verdict")
        return RowVerdict(NOT_COMPARED, f"{metric.kind} varies from sample to sample and needs a paired test")

    def _time(self, metric: Metric, old: Outcome, new: Outcome) -> RowVerdict:
        """Compare the median over repeats, as a ratio to the full cache's median in the same run."""
        if reason := self._other_machine or self._other_numerics:
            return RowVerdict(NOT_COMPARED, reason)
        if old.case.is_micro:
            return self._by_threshold(metric, *(_median(metric.name, side.samples[metric.name]) for side in (old, new)))
        if _is_reference(old):
            return RowVerdict(NOT_COMPARED, "the full cache is the reference of its own run")
        then, now = _ratio(metric.name, old, self.full_then), _ratio(metric.name, new, self.full_now)
        if then is None or now is None:
            side = "baseline" if then is None else "run"
            return RowVerdict(NOT_COMPARED, f"the {side} has no full cache to compare times with")
        if metric.kind == "speed" and (better := self.in_pairs(old.case)):
            return RowVerdict(NOT_COMPARED, f"{STATED}: {better}", then, now)
        return self._by_threshold(metric, then, now)

    def _by_threshold(self, metric: Metric, then: float, now: float) -> RowVerdict:
        if then <= 0:
            verdict, reason = (EQUIVALENT, "") if now == then else (NOT_COMPARED, "no ratio to a value of zero")
            return RowVerdict(verdict, reason, then, now)
        cost, limit = metric.cost_ratio(then, now), 1 + self.threshold
        return RowVerdict(REGRESSED if cost > limit else IMPROVED if cost * limit < 1 else EQUIVALENT, "", then, now)

    def _exact(self, metric: Metric, old: Outcome, new: Outcome) -> RowVerdict:
        """Compare value by value: exactly, except fidelity under other numerics, by rounding noise."""
        then, now = list(old.samples[metric.name]), list(new.samples[metric.name])
        other_numerics = "" if metric.kind == "memory" else self._other_numerics
        if len(then) != len(now):
            return RowVerdict(NOT_COMPARED, f"{len(then)} values then, {len(now)} now")
        means = math.fsum(then) / len(then), math.fsum(now) / len(now)
        if other_numerics:
            return self._by_noise(metric, old.case.model, *means, other_numerics)
        if then == now:
            return RowVerdict(EQUIVALENT, "", *means)
        if looks_equal(*means, metric.name):
            differ = sum(a != b for a, b in zip(then, now, strict=True))
            return RowVerdict(CHANGED, f"{differ} of {len(now)} values differ, their mean by less than is printed", *means)
        return RowVerdict(REGRESSED if metric.loss(*means) > 0 else IMPROVED, "must be equal", *means)

    def _by_noise(self, metric: Metric, model: str, then: float, now: float, other_numerics: str) -> RowVerdict:
        """Compare means under two numerics: never worse or better, since a larger difference may be chance.

        By the triangle inequality the distance from the full cache changes by at most the method's noise plus the full cache's.
        """
        noise = self.noise.get((model, metric.name))
        if noise is None:
            return RowVerdict(NOT_COMPARED, other_numerics)
        if abs(now - then) <= 2 * noise or looks_equal(then, now, metric.name):
            return RowVerdict(EQUIVALENT, f"{other_numerics}; within twice their rounding noise of {noise:.2g}", then, now)
        return RowVerdict(NOT_COMPARED, f"{other_numerics}; they differ by more than twice their rounding noise of {noise:.2g}", then, now)

    def _hash(self, then: str, now: str) -> RowVerdict:
        if reason := self._other_numerics:
            return RowVerdict(NOT_COMPARED, reason)
        return RowVerdict(EQUIVALENT) if then == now else RowVerdict(CHANGED, f"{then or 'none'} then, {now or 'none'} now")

    @property
    def _other_machine(self) -> str:
        return self._other("machine class", "machine_class")

    @property
    def _other_numerics(self) -> str:
        """The numerics fingerprints in words if they differ: the kernels do, too."""
        return self._other("numerics fingerprint", "fingerprint")

    def _other(self, what: str, attribute: str) -> str:
        """Return in words that both environments differ in this attribute, or an empty text."""
        then, now = getattr(self.baseline.environment, attribute), getattr(self.environment, attribute)
        return "" if then == now else f"other {what}: {then} then, {now} now"


def _is_memory(name: str) -> bool:
    return is_metric(name) and metric(name).kind == "memory"


def _status(old: Outcome, new: Outcome) -> RowVerdict:
    reason = f"{old.status} then, {new.status} now"
    if old.status in INFRASTRUCTURE or new.status in INFRASTRUCTURE:
        return RowVerdict(NOT_COMPARED, f"{reason}: the machine is the reason")
    if old.ok or new.ok:
        return RowVerdict(REGRESSED if old.ok else IMPROVED, reason)
    return RowVerdict(EQUIVALENT if old.status is new.status else CHANGED, reason)


def _is_reference(outcome: Outcome) -> bool:
    case = outcome.case
    plain = (case.method, case.codec, case.budget) == (FULL, "native", "1") and not case.decoder
    return outcome.ok and plain and case.role in ("candidate", "baseline")


def _full_caches(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """Return the full cache of each configuration; a baseline has precedence over a candidate."""
    ordered = sorted(filter(_is_reference, outcomes), key=lambda o: o.case.role == "baseline")
    return {o.case.cell: o for o in ordered}


def rounding_noise(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], float]:
    """Return the rounding noise by model and metric of fidelity.

    It is the largest distance of a batch-size reference row from equal output.

    Metrics in decibels are excluded: they are the logarithm of a distance, so noises do not add up."""
    noise: dict[tuple[str, str], float] = {}
    for outcome in outcomes:
        if outcome.ok and outcome.case.role == "other_batch":
            for name, values in outcome.samples.items():
                entry = metric(name)
                equal = entry.within[entry.better == "higher"]
                if entry.kind == "fidelity" and entry.unit != "dB" and math.isfinite(equal):
                    key, distance = (outcome.case.model, name), abs(math.fsum(values) / len(values) - equal)
                    noise[key] = max(noise.get(key, 0.0), distance)
    return noise


def _ratio(name: str, outcome: Outcome, full_caches: Mapping[str, Outcome]) -> float | None:
    """Return the median of a metric relative to the full cache of its configuration, or None without one."""
    full = full_caches.get(outcome.case.cell)
    if full is None or name not in full.samples:
        return None
    beside = full_latencies(outcome, full) if name == TIME else full.samples[name]
    return _median(name, outcome.samples[name]) / below if (below := _median(name, beside)) > 0 else None


def _median(name: str, values: Sequence[float]) -> float:
    return statistics.median(rounded(name, values))


def _worst(rows: Sequence[Verdict]) -> str:
    """Return the worst regressed row of each kind of value, and the number of others.

    Seconds, bytes and decibels do not compare with each other."""
    measured = in_order({row.metric for row in rows if is_metric(row.metric)})
    leading: dict[str, str] = {}
    for name in (*sorted({row.metric for row in rows} - set(measured)), *measured):
        leading.setdefault(metric(name).kind if is_metric(name) else name, name)
    named = [max((row for row in rows if row.metric == name), key=_loss) for name in leading.values()]
    if not named:
        return ""
    more = f"; and {len(rows) - len(named)} more" if len(rows) > len(named) else ""
    return f"Worst: {'; '.join(f'{row.label}, {row.metric}: {_figures(row)}' for row in named)}{more}."


def _loss(row: Verdict) -> float:
    """Return the loss in the unit of the metric."""
    return metric(row.metric).loss(row.then, row.now) if is_metric(row.metric) and row.then is not None and row.now is not None else 0.0


def _figures(row: Verdict) -> str:
    if row.then is None or row.now is None:
        return row.reason
    of = metric(row.metric) if is_metric(row.metric) else None
    unit = "" if of is None else "× full" if of.relative and not row.absolute else of.unit
    then, now = (f"{figure:.4g} {unit}".rstrip() for figure in (row.then, row.now))
    return f"{then} then, {now} now"
