"""Comparison of two sides in pairs: sequential measurement of configurations, and the verdict on each.

A function that measures pairs is passed in. Latency is tested by :mod:`cachemark.stats.paired_test`, as is the allocator's peak if it
varies, in a family of its own; bytes, FLOPs and output hashes are compared exactly, in every pair; other wall times get no verdict. A
configuration with a side that keeps failing is judged by its status (:mod:`cachemark.gate.flakes`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core.errors import UnfairComparison
from ..core.result import DISTURBED, IMAGES, INFRASTRUCTURE, Environment, Outcome, Status, kernels_apart
from ..core.spec import Case
from ..core.units import PEAK, TIME, Metric, in_order, metric
from ..core.verdicts import CHANGED, EQUIVALENT, IMPROVED, INCONCLUSIVE, NOT_COMPARED, REGRESSED
from ..stats.paired_test import PairedVerdict, PairRatios, Rule, judge, log_ratios, needed
from ..store.rows import Verdict
from . import flakes
from .flakes import FlakeRule

AA = "A/A "  # begins the name of a configuration whose sides are equal
COVERAGE = 0.95  # share of the configurations of which something must be said
PEAK_SHARE = 0.01  # by which the allocator's peak may differ
CURABLE = (Status.OOM, Status.TIMEOUT, Status.NAN_OUTPUT)  # ends of a first side that ran: if the second is well, it is better
NEVER_RAN = "the first side does not run"  # begins the reason of a configuration whose first side is no measure of the second
SAME_TOKENS = "same tokens, nothing to compare"
SAME, OTHER_METHODS, OTHER_NUMERICS = "same", "methods", "numerics"


@dataclass(frozen=True)
class PairOfOutcomes:
    """The results of both sides of a configuration in one pair."""

    config: str
    before: Outcome
    after: Outcome

    @property
    def ok(self) -> bool:
        return self.before.ok and self.after.ok


@dataclass
class ConfigPairs(PairRatios):
    """The pairs of one configuration: log ratios, and pairs with a failed side.

    ``tries``: pairs since the first failure. ``counted``: both sides must use the same bytes, so that a changed peak needs more pairs."""

    screening: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    measured: list[PairOfOutcomes] = field(default_factory=list)
    failures: list[PairOfOutcomes] = field(default_factory=list)
    tries: int = 0
    flakes: FlakeRule = field(default_factory=lambda: FlakeRule(1))
    counted: bool = True

    @property
    def further(self) -> list[PairOfOutcomes]:
        """The failures after the first one of the side that failed more often."""
        sides = [[pair for pair in self.failures[1:] if not _outcome(pair, side).ok] for side in (0, 1)]
        return max(sides, key=len)

    @property
    def failed(self) -> PairOfOutcomes | None:
        """A pair whose failure has a cause, or None while it may be a flake."""
        final = next((pair for pair in self.failures if not flakes.alone((pair.before, pair.after))), None)
        return final or (self.further[-1] if self.flakes.caused(len(self.further)) else None)

    @property
    def in_doubt(self) -> bool:
        """True if a failure is neither a flake nor shown to have a cause."""
        return bool(self.failures) and self.failed is None and not flakes.quiet(len(self.further), self.tries)

    def add(self, pair: PairOfOutcomes, rule: Rule) -> None:
        """Add a screening or confirming pair, whichever the configuration needs."""
        self.tries += bool(self.failures)
        if not pair.ok:
            self.failures.append(pair)
            return
        (ratio,) = log_ratios([pair.before.samples[TIME]], [pair.after.samples[TIME]])
        required, _ = needed(self, rule)
        (self.fresh if required == "confirm" else self.screening).append(float(ratio))
        self.measured.append(pair)

    def open(self, rule: Rule) -> bool:
        """Return whether another pair is needed."""
        if self.failed is not None:
            return False
        if self.failures and self.flakes.open(len(self.further), self.tries):
            return True
        peak = peaks(self.measured, rule) if self.counted else None
        return needed(self, rule)[0] != "done" or (peak is not None and needed(peak, peak_rule(rule))[0] != "done")


def peak_rule(rule: Rule) -> Rule:
    """Return the rule for peaks: they are screened once, by the first pairs that times need too."""
    return Rule(PEAK_SHARE, rule.family, rule.q, rule.interims[:1], rule.control)


def peaks(measured: Sequence[PairOfOutcomes], rule: Rule) -> PairRatios | None:
    """Return log ratios of the allocator's peak per pair; None without peaks, or if they never vary."""
    sides = [[_outcome(pair, side).samples.get(PEAK, [0.0])[0] for pair in measured] for side in (0, 1)]
    if not measured or min(map(min, sides)) <= 0 or all(len(set(side)) == 1 for side in sides):
        return None
    ratios, first = log_ratios(*sides).tolist(), rule.interims[0]
    return PairRatios(ratios[:first], ratios[first:])


def measure_until_decided(
    configs: Iterable[str], measure: Callable[[list[str]], Iterable[PairOfOutcomes]], rule: Rule, go_on: Callable[[],
                                                                                                                  bool] = lambda: True, *,
    alike: str = SAME, flake_rate: float = flakes.RATE,
) -> dict[str, ConfigPairs]:
    """Measure a pair of each open configuration per round, until all are decided or ``go_on`` is False.

    ``alike``: see :func:`verdicts`; ``flake_rate``: the rate of random process failures."""
    by = FlakeRule(rule.family, rule.q, flake_rate)
    pairs_of = {config: ConfigPairs(flakes=by, counted=alike != OTHER_METHODS) for config in configs}
    while (undecided := [config for config, pairs in pairs_of.items() if pairs.open(rule)]) and go_on():
        for pair in measure(undecided):
            pairs_of[pair.config].add(pair, rule)
    return pairs_of


# -- what may be compared -----------------------------------------------------------------------------------------------
def refuse_unequal(before: Case, after: Case, where: tuple[Environment, Environment]) -> None:
    """Raise UnfairComparison if the sides differ in a condition that is known before they run."""
    _refuse(before, after, {
        "compute dtype": (before.dtype, after.dtype), "engine": (before.engine, after.engine), "batch": (before.batch, after.batch),
        "device class": (before.device_class, after.device_class),
        "TF32 flag": (where[0].facts.get("tf32"), where[1].facts.get("tf32")),
    })


def refuse_unfair(before: Outcome, after: Outcome, where: tuple[Environment, Environment]) -> None:
    """Raise UnfairComparison if the sides differ in a condition or an attention kernel.

    A kernel that a method needs and whose cost is in its time is allowed: see :func:`cachemark.core.result.kernels_apart`."""
    refuse_unequal(before.case, after.case, where)
    _refuse(before.case, after.case, {"attention kernel": kernels_apart(before, after) or (None, None)})


def _refuse(before: Case, after: Case, sides: Mapping[str, tuple[object, object]]) -> None:
    for what, (then, now) in sides.items():
        if then != now and None not in (then, now):
            raise UnfairComparison(f"{before.label} and {after.label} differ in {what}: {then} and {now}.",
                                   remedy=f"Compare sides with the same {what}; otherwise the {what} is what would be measured.")


def other_tokens(configs: Mapping[str, ConfigPairs]) -> list[str]:
    """Return the configurations whose sides gave different tokens or images, which need to be compared."""
    return [config for config, pairs in configs.items() if pairs.failed is None and pairs.measured and (
            len({outcome.output_hash for pair in pairs.measured for outcome in (pair.before, pair.after)}) > 1 or _redrawn(pairs.measured))]


# -- verdicts -----------------------------------------------------------------------------------------------------------
def verdicts(configs: Mapping[str, ConfigPairs], rule: Rule, alike: str = SAME) -> list[Verdict]:
    """Return the rows of a comparison.

    ``alike`` is what the sides share: ``same`` (all, so bytes and hashes must be equal), ``methods`` (all but the method) or ``numerics``
    (all but the numerics, so bytes must be equal)."""
    well = {config: pairs for config, pairs in configs.items() if pairs.failed is None}
    judgements = judge(well, rule)
    varied = {config: peak_ratios for config, pairs in well.items() if pairs.counted and (peak_ratios := peaks(pairs.measured, rule))}
    of_peaks = judge(varied, peak_rule(rule))
    rows: list[Verdict] = []
    for config, pairs in configs.items():
        if pairs.failed is not None:
            rows.append(failure(config, pairs.failed))
            continue
        if pairs.failures:
            rows.append(_flaked(config, pairs))
        if pairs.measured:
            rows += [_time(config, pairs, judgements[config]), *_exact(config, pairs.measured, alike, of_peaks.get(config))]
        elif not pairs.failures:
            rows.append(Verdict("", config, "status", NOT_COMPARED, "time was up before its first pair"))
    return rows


def _flaked(config: str, pairs: ConfigPairs) -> Verdict:
    """Return the row of a configuration with a failure that has no proven cause."""
    pair, further = pairs.failures[0], len(pairs.further)
    more = f"failed once, and in {further or 'none'} of {pairs.tries} more pairs"
    reason = f"{pair.before.status} then, {pair.after.status} now: {more}: "
    if not pairs.in_doubt:
        return Verdict(pair.after.case.key, config, "status", EQUIVALENT, f"{reason}taken for a flake")
    return Verdict(pair.after.case.key, config, "status", INCONCLUSIVE, f"{reason}neither a flake nor shown to have a cause")


def _time(config: str, of: ConfigPairs, judgement: PairedVerdict) -> Verdict:
    then, now = (statistics.median([_outcome(c, side).median(TIME) or 0.0 for c in of.measured]) for side in (0, 1))
    change = 1 + judgement.effect.value if judgement.effect else None
    return Verdict(of.measured[0].after.case.key, config, TIME, judgement.verdict, judgement.reason, then, now, change)


def failure(config: str, pair: PairOfOutcomes) -> Verdict:
    """Return the verdict on a configuration by the status of both sides.

    An error of the first side says nothing about the second: this harness may be unable to run it."""
    reason = f"{pair.before.status} then, {pair.after.status} now"
    bad = pair.before if not pair.before.ok else pair.after
    if bad.status in INFRASTRUCTURE or pair.after.status in INFRASTRUCTURE:
        verdict = NOT_COMPARED
    elif pair.before.ok:
        verdict = REGRESSED
    elif pair.after.ok and pair.before.status in CURABLE:
        verdict = IMPROVED
    else:
        verdict, reason = NOT_COMPARED, f"{NEVER_RAN}, {reason}" if pair.after.ok else reason
    last = (bad.log.strip().splitlines() or [""])[-1][:200]
    return Verdict(pair.after.case.key, config, "status", verdict, f"{reason}: {last}")


def _exact(config: str, measured: Sequence[PairOfOutcomes], alike: str, peak: PairedVerdict | None) -> Iterable[Verdict]:
    key, same = measured[0].after.case.key, alike != OTHER_METHODS
    for name in (name for name in in_order(measured[0].after.samples) if metric(name).kind in ("memory", "work")):
        sides = [[_outcome(c, side).samples[name][0] for c in measured if name in _outcome(c, side).samples] for side in (0, 1)]
        if not all(sides):
            continue
        if name == PEAK and peak is not None:
            yield _peak(Verdict(key, config, name, EQUIVALENT), sides, peak)
            continue
        yield _counted(Verdict(key, config, name, EQUIVALENT), metric(name), sides, same)
    yield from _tokens(Verdict(key, config, "output_hash", EQUIVALENT, SAME_TOKENS), measured, alike)


def _tokens(row: Verdict, measured: Sequence[PairOfOutcomes], alike: str) -> Iterable[Verdict]:
    """Compare the tokens of both sides in every pair; equal code must give equal tokens."""
    then, now = ({_outcome(c, side).output_hash for c in measured} for side in (0, 1))
    if len(then) > 1 or len(now) > 1:
        yield replace(row, verdict=CHANGED, reason="one side gave other tokens in another pair: it is not deterministic")
    elif then == now and _redrawn(measured):
        yield replace(row, reason="")
        yield images(row, measured, alike)
    elif then == now:
        yield row
    elif alike == SAME:
        yield replace(row, verdict=CHANGED, reason=f"other tokens at the same seeds: {min(then)[:16]} then, {min(now)[:16]} now")


def images(row: Verdict, measured: Sequence[PairOfOutcomes], alike: str) -> Verdict:
    """Compare the image hashes of sides with the same tokens.

    They must be equal, except with other numerics."""
    then, now = (_drawn(measured, side) for side in (0, 1))
    row = replace(row, metric=IMAGES)
    if then == now and len(then) == 1:
        return replace(row, verdict=EQUIVALENT, reason="same images")
    if len(then) > 1 or len(now) > 1:
        return replace(row, verdict=CHANGED, reason="one side decoded the same tokens otherwise in another pair: it is not deterministic")
    reason = f"other images of the same tokens: {min(then)[:16]} then, {min(now)[:16]} now"
    return replace(row, verdict=NOT_COMPARED if alike == OTHER_NUMERICS else CHANGED, reason=reason)


def _redrawn(measured: Sequence[PairOfOutcomes]) -> bool:
    """Return whether all images were hashed and some differ."""
    then, now = (_drawn(measured, side) for side in (0, 1))
    return all(then) and all(now) and len(then | now) > 1


def _drawn(measured: Sequence[PairOfOutcomes], side: int) -> set[str]:
    """Return the image hashes of one side; an empty one stands for a missing hash."""
    return {str(_outcome(c, side).facts.get(IMAGES) or "") for c in measured}


def _peak(row: Verdict, sides: Sequence[Sequence[float]], judgement: PairedVerdict) -> Verdict:
    """Return the verdict on a varying peak by its test."""
    change = 1 + judgement.effect.value if judgement.effect else None
    return replace(row, verdict=judgement.verdict, reason=f"may differ by {PEAK_SHARE:.0%}; {judgement.reason}", change=change,
                   then=statistics.median(sides[0]), now=statistics.median(sides[1]))


def _counted(row: Verdict, metric: Metric, sides: Sequence[Sequence[float]], same: bool) -> Verdict:
    """Return the verdict on a counted value, by the worst pair: exact, or within ``PEAK_SHARE`` for peaks."""
    then, now = (metric.worst(side) for side in sides)
    row = replace(row, then=then, now=now, change=now / then if then else None)
    if metric.timed:
        return replace(row, verdict=NOT_COMPARED, reason="a wall time of its own, which no pairs test")
    limit = 0.0 if metric.deterministic else PEAK_SHARE
    cost = metric.cost_ratio(then, now)
    if not same or 1 - limit <= cost <= 1 + limit:
        return row if same else replace(row, verdict=NOT_COMPARED, reason="two methods: stated, not judged")
    return replace(row, verdict=REGRESSED if cost > 1 else IMPROVED,
                   reason="must be equal" if metric.deterministic else f"may differ by {PEAK_SHARE:.0%}")


def _outcome(pair: PairOfOutcomes, side: int) -> Outcome:
    return pair.after if side else pair.before


# -- the exit code ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tally:
    """The rows of a comparison and its exit code. ``configs``: the number of configurations to compare."""

    rows: tuple[Verdict, ...]
    configs: int
    min_coverage: float = COVERAGE
    most_open: float = 0.10
    fail_on_change: bool = True

    @property
    def covered(self) -> set[str]:
        """Configurations with a judged row."""
        return {r.label for r in self.rows if r.verdict != NOT_COMPARED}

    @property
    def disturbed(self) -> set[str]:
        """Configurations that the machine prevented from being judged."""
        return {r.label for r in self.rows if r.metric == "status" and r.verdict == NOT_COMPARED} - self.covered

    @property
    def unready(self) -> set[str]:
        """Configurations whose first side does not run at all."""
        return {r.label for r in self.rows if r.metric == "status" and r.reason.startswith(NEVER_RAN)}

    @property
    def regressed(self) -> list[Verdict]:
        """Failing rows: regressions, and changed tokens if they must be equal."""
        return [r for r in self.rows if r.verdict == REGRESSED or (r.verdict == CHANGED and self.fail_on_change)]

    def word(self, row: Verdict) -> str:
        """Return the verdict of a row; for a failing row with another verdict, both."""
        return row.verdict if row.verdict == REGRESSED or row not in self.regressed else f"{REGRESSED} ({row.verdict})"

    @property
    def unresolved(self) -> list[Verdict]:
        """Inconclusive times, and failures that may be flakes."""
        return [r for r in self.rows if r.metric in (TIME, "status") and r.verdict == INCONCLUSIVE]

    @property
    def exit_code(self) -> int:
        """5, 4, 1, 3 or 0.

        4: nothing or too little was judged; 5: because of the machine, or because no first side runs; 1: something regressed; 3: too much
        is inconclusive."""
        if not self.configs or not self.covered or len(self.covered) / self.configs < self.min_coverage:
            return 5 if self.disturbed and (any(_by_machine(r) for r in self.rows) or len(self.unready) == self.configs) else 4
        if self.regressed:
            return 1
        return self._left_open

    def ended(self, advisory: bool) -> int:
        """Return the exit code; an ``advisory`` gate on times does not fail by times alone."""
        excused = advisory and self.exit_code == 1 and all(r.metric == TIME for r in self.regressed)
        return self._left_open if excused else self.exit_code

    @property
    def _left_open(self) -> int:
        return 3 if len(self.unresolved) > self.most_open * self.configs else 0


def _by_machine(row: Verdict) -> bool:
    return row.metric == "status" and any(str(status) in row.reason for status in DISTURBED)
