"""Comparison of two sides in pairs: sequential measurement of configurations, and the verdict on each.

A function that measures pairs is passed in. Latency is tested by :mod:`cachemark.stats.paired_test`, as is the allocator's peak if it
varies, in a family of its own; bytes, FLOPs and output hashes are compared exactly, in every pair; other wall times get no verdict. A
configuration with a side that keeps failing gets its verdict from its status (:mod:`cachemark.gate.flakes`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..core.errors import UnfairComparison
from ..core.formatting import looks_equal
from ..core.result import DISTURBED, IMAGES, INFRASTRUCTURE, Environment, Outcome, Status, kernels_apart
from ..core.spec import Case
from ..core.units import PEAK, TIME, Metric, in_order, metric
from ..core.verdicts import CHANGED, EQUIVALENT, IMPROVED, INCONCLUSIVE, NOT_COMPARED, REGRESSED
from ..stats.paired_test import PairedVerdict, PairRatios, Rule, judge, log_ratios, needed
from ..store.rows import Verdict
from . import flakes
from .baseline_check import HASHES
from .flakes import FlakeRule

AA = "A/A "  # prefix of the name of a configuration with equal sides
COVERAGE = 0.95  # smallest share of configurations with a verdict
MOST_OPEN = 0.10  # largest share of inconclusive configurations
PEAK_SHARE = 0.01  # largest relative change of the allocator's peak
CURABLE = (Status.OOM, Status.TIMEOUT, Status.NAN_OUTPUT)  # ends of a first side that ran: if the second is well, it is better
NEVER_RAN = "the first side does not run"  # start of the reason for a configuration without a working first side
SAME_TOKENS = "same tokens, nothing to compare"
SAME, OTHER_METHODS, OTHER_NUMERICS = "same", "methods", "numerics"


@dataclass(frozen=True)
class PairOfOutcomes:
    """The results of both sides of a configuration in one pair.

    ``swapped``: the second side ran first; ``redone``: number of repetitions."""

    config: str
    before: Outcome
    after: Outcome
    number: int = 1
    swapped: bool = False
    redone: int = 0

    @property
    def ok(self) -> bool:
        return self.before.ok and self.after.ok

    @property
    def sides(self) -> tuple[Outcome, Outcome]:
        return self.before, self.after

    def row(
        self, metric: str, verdict: str, reason: str = "", then: float | None = None, now: float | None = None, change: float | None = None,
    ) -> Verdict:
        """Return the verdict on a metric of the configuration."""
        return Verdict(self.after.case.key, self.config, metric, verdict, reason, then, now, change, absolute=True)


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
        sides = [[pair for pair in self.failures[1:] if not pair.sides[side].ok] for side in (0, 1)]
        return max(sides, key=len)

    @property
    def failed(self) -> PairOfOutcomes | None:
        """A pair whose failure has a cause, or None while it may be a flake."""
        final = next((pair for pair in self.failures if not flakes.alone(pair.sides)), None)
        return final or (self.further[-1] if self.flakes.caused(len(self.further)) else None)

    @property
    def in_doubt(self) -> bool:
        """True if a failure is neither a known flake nor a confirmed regression."""
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
    return Rule(PEAK_SHARE, rule.family, rule.interims[:1])


def peaks(measured: Sequence[PairOfOutcomes], rule: Rule) -> PairRatios | None:
    """Return log ratios of the allocator's peak per pair; None without peaks, or if they never vary."""
    sides = [[pair.sides[side].samples.get(PEAK, [0.0])[0] for pair in measured] for side in (0, 1)]
    if not measured or min(map(min, sides)) <= 0 or all(len(set(side)) == 1 for side in sides):
        return None
    ratios, first = log_ratios(*sides).tolist(), rule.interims[0]
    return PairRatios(ratios[:first], ratios[first:])


def measure_until_decided(
    configs: Iterable[str], measure: Callable[[list[str]], Iterable[PairOfOutcomes]], rule: Rule,
    go_on: Callable[[], bool] = lambda: True, *, alike: str = SAME, flake_rate: float = flakes.RATE,
    left: Callable[[int], None] = lambda pairs: None,
) -> dict[str, ConfigPairs]:
    """Measure a pair of each open configuration per round, until all are decided or ``go_on`` is False.

    ``alike``: see :func:`verdicts`; ``flake_rate``: the rate of random process failures. ``left`` is called before each
    round with the number of pairs until the next decision on every open configuration."""
    by = FlakeRule(rule.family, flake_rate)
    pairs_of = {config: ConfigPairs(flakes=by, counted=alike != OTHER_METHODS) for config in configs}
    while (undecided := [config for config, pairs in pairs_of.items() if pairs.open(rule)]) and go_on():
        left(sum(max(1, needed(pairs_of[config], rule)[1]) for config in undecided))
        for pair in measure(undecided):
            pairs_of[pair.config].add(pair, rule)
    return pairs_of


# -- comparable configurations ------------------------------------------------------------------------------------------
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
            len({outcome.output_hash for pair in pairs.measured for outcome in pair.sides}) > 1 or _redrawn(pairs.measured))]


# -- verdicts -----------------------------------------------------------------------------------------------------------
def verdicts(configs: Mapping[str, ConfigPairs], rule: Rule, alike: str = SAME) -> list[Verdict]:
    """Return the rows of a comparison.

    ``alike`` names the common properties of the sides: ``same`` (all, so bytes and hashes must be equal), ``methods`` (all except the
    method) or ``numerics`` (all except the numerics, so bytes must be equal)."""
    well = {config: pairs for config, pairs in configs.items() if pairs.failed is None}
    judgements = judge(well, rule)
    varied = {config: peak_ratios for config, pairs in well.items() if pairs.counted and (peak_ratios := peaks(pairs.measured, rule))}
    of_peaks = judge(varied, peak_rule(rule))
    rows: list[Verdict] = []
    for config, pairs in configs.items():
        if pairs.failed is not None:
            rows.append(failure(pairs.failed))
            continue
        if pairs.failures:
            rows.append(_flaked(pairs))
        if pairs.measured:
            rows += [_time(pairs.measured, judgements[config]), *_exact(pairs.measured, alike, of_peaks.get(config)),
                     *_energy(pairs.measured), *_tokens(pairs.measured, alike)]
        elif not pairs.failures:
            rows.append(Verdict("", config, "status", NOT_COMPARED, "time was up before its first pair"))
    return rows


def _flaked(pairs: ConfigPairs) -> Verdict:
    """Return the row of a configuration with a failure that has no proven cause."""
    pair, further = pairs.failures[0], len(pairs.further)
    reason = (f"{pair.before.status} then, {pair.after.status} now: failed once, and in {further or 'none'} of {pairs.tries} more pairs: "
              f"{'neither a known flake nor a confirmed regression' if pairs.in_doubt else 'taken for a flake'}")
    return pair.row("status", INCONCLUSIVE if pairs.in_doubt else EQUIVALENT, reason)


def failure(pair: PairOfOutcomes) -> Verdict:
    """Return the verdict on a configuration by the status of both sides.

    An error of the first side is no evidence about the second, since this harness may be unable to run the first."""
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
    return pair.row("status", verdict, f"{reason}: {(bad.log.strip().splitlines() or [''])[-1][:200]}")


def _time(measured: Sequence[PairOfOutcomes], judgement: PairedVerdict) -> Verdict:
    then, now = (statistics.median([pair.sides[side].median(TIME) or 0.0 for pair in measured]) for side in (0, 1))
    return measured[0].row(TIME, judgement.verdict, judgement.reason, then, now, _change(judgement))


def _change(judgement: PairedVerdict) -> float | None:
    return 1 + judgement.effect.value if judgement.effect else None


def _exact(measured: Sequence[PairOfOutcomes], alike: str, peak: PairedVerdict | None) -> Iterable[Verdict]:
    """Compare bytes and counts; a ``peak`` that varies was tested."""
    for name in (name for name in in_order(measured[0].after.samples) if metric(name).kind in ("memory", "work")):
        then, now = ([pair.sides[side].samples[name][0] for pair in measured if name in pair.sides[side].samples] for side in (0, 1))
        if then and now and name == PEAK and peak is not None:
            yield measured[0].row(name, peak.verdict, f"may differ by {PEAK_SHARE:.0%}; {peak.reason}", statistics.median(then),
                                  statistics.median(now), _change(peak))
        elif then and now:
            yield _counted(measured[0], metric(name), metric(name).worst(then), metric(name).worst(now), alike != OTHER_METHODS)


def _energy(measured: Sequence[PairOfOutcomes]) -> Iterable[Verdict]:
    """Show the medians of energy values of both sides; pairs test the latency alone."""
    for name in (name for name in in_order(measured[0].after.samples) if metric(name).kind == "energy"):
        then, now = ([value for pair in measured if (value := pair.sides[side].median(name)) is not None] for side in (0, 1))
        if then and now:
            before, after = statistics.median(then), statistics.median(now)
            yield measured[0].row(name, NOT_COMPARED, "no verdict: pairs test the latency", before, after, after / before)


def _counted(pair: PairOfOutcomes, metric: Metric, then: float, now: float, same: bool) -> Verdict:
    """Return the verdict on a counted value of the worst pair: exact, or within ``PEAK_SHARE`` for peaks."""
    limit, cost, reason = 0.0 if metric.deterministic else PEAK_SHARE, metric.cost_ratio(then, now), ""
    if metric.timed:
        verdict, reason = NOT_COMPARED, "a separate wall time, which is not tested in pairs"
    elif not same:
        verdict, reason = NOT_COMPARED, "two methods: reported without a verdict"
    elif 1 - limit <= cost <= 1 + limit:
        verdict = EQUIVALENT
    elif looks_equal(then, now, metric.name):
        verdict, reason = CHANGED, "they differ by less than is printed"
    else:
        verdict = REGRESSED if cost > 1 else IMPROVED
        reason = "must be equal" if metric.deterministic else f"may differ by {PEAK_SHARE:.0%}"
    return pair.row(metric.name, verdict, reason, then, now, now / then if then else None)


def _tokens(measured: Sequence[PairOfOutcomes], alike: str) -> Iterable[Verdict]:
    """Compare the tokens of both sides in every pair; equal code must give equal tokens."""
    row = measured[0].row
    then, now = ({pair.sides[side].output_hash for pair in measured} for side in (0, 1))
    if len(then) > 1 or len(now) > 1:
        yield row("output_hash", CHANGED, "one side gave other tokens in another pair: it is not deterministic")
    elif then == now and _redrawn(measured):
        yield row("output_hash", EQUIVALENT)
        yield images(measured, alike)
    elif then == now:
        yield row("output_hash", EQUIVALENT, SAME_TOKENS)
    elif alike == SAME:
        yield row("output_hash", CHANGED, f"other tokens at the same seeds: {min(then)[:16]} then, {min(now)[:16]} now")


def images(measured: Sequence[PairOfOutcomes], alike: str) -> Verdict:
    """Compare the image hashes of sides with the same tokens.

    They must be equal, except with other numerics."""
    then, now = (_drawn(measured, side) for side in (0, 1))
    if len(then) > 1 or len(now) > 1:
        return measured[0].row(IMAGES, CHANGED, "one side decoded the same tokens otherwise in another pair: it is not deterministic")
    if then == now:
        return measured[0].row(IMAGES, EQUIVALENT, "same images")
    reason = f"other images of the same tokens: {min(then)[:16]} then, {min(now)[:16]} now"
    return measured[0].row(IMAGES, NOT_COMPARED if alike == OTHER_NUMERICS else CHANGED, reason)


def _redrawn(measured: Sequence[PairOfOutcomes]) -> bool:
    """Return whether all images were hashed and some differ."""
    then, now = (_drawn(measured, side) for side in (0, 1))
    return all(then) and all(now) and len(then | now) > 1


def _drawn(measured: Sequence[PairOfOutcomes], side: int) -> set[str]:
    """Return the image hashes of one side; a missing hash is empty."""
    return {pair.sides[side].facts.images_hash or "" for pair in measured}


# -- the exit code ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Tally:
    """The rows of a comparison and its exit code. ``configs``: the number of configurations to compare."""

    rows: tuple[Verdict, ...]
    configs: int
    min_coverage: float = COVERAGE
    fail_on_change: bool = True

    @property
    def covered(self) -> set[str]:
        """Configurations with a verdict."""
        return {r.label for r in self.rows if r.verdict != NOT_COMPARED}

    @property
    def regressed(self) -> list[Verdict]:
        """Failing rows: regressions, and changed tokens if they must be equal."""
        return [r for r in self.rows if r.verdict == REGRESSED or (r.verdict == CHANGED and r.metric in HASHES and self.fail_on_change)]

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

        4: no or too few configurations have verdicts; 5: because of the machine, or because no first side runs; 1: something regressed; 3:
        too much is inconclusive."""
        if not self.configs or not self.covered or len(self.covered) / self.configs < self.min_coverage:
            ended = [r for r in self.rows if r.metric == "status"]
            undecided = {r.label for r in ended if r.verdict == NOT_COMPARED} - self.covered
            by_machine = any(str(status) in r.reason for r in ended for status in DISTURBED)
            unready = {r.label for r in ended if r.reason.startswith(NEVER_RAN)}
            return 5 if undecided and (by_machine or len(unready) == self.configs) else 4
        if self.regressed:
            return 1
        return self._left_open

    def ended(self, advisory: bool) -> int:
        """Return the exit code; an ``advisory`` gate on times does not fail by times alone."""
        excused = advisory and self.exit_code == 1 and all(r.metric == TIME for r in self.regressed)
        return self._left_open if excused else self.exit_code

    @property
    def _left_open(self) -> int:
        return 3 if len(self.unresolved) > MOST_OPEN * self.configs else 0
