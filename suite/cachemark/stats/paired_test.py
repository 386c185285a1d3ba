"""Paired tests: pure functions from log ratios of pairs to verdicts on a family of configurations.

A pair is two new processes on one device, one per side, with the same seeds and in random order. Only the pair is a replicate: images of
one process share its bias. The pairs of a configuration are log ratios of costs, positive if the second side is worse.

- **Estimate**: Hodges–Lehmann (the median of Walsh averages) with its interval between two Walsh averages, whose ranks come from the exact
  distribution of the signed-rank sum (Hollander, Wolfe and Chicken, *Nonparametric Statistical Methods*, 3.2, 3.3).
- **Test**: exact one-sided sign flip, valid because the order of the sides is random. The smallest p-value is 2⁻ⁿ for n pairs, which
  determines the number of confirming pairs. They are tested at two looks, so p-values are doubled (Bonferroni): twice the p-value of
  whichever look decides is valid, because the smaller of two p-values is below x in at most a share 2x of nights.
- **Two stages**: a few pairs of every configuration *screen*; a configuration that looks changed is *confirmed* on new pairs alone, so
  that the selection is free. The false discovery rate is controlled over the whole family (Benjamini and Hochberg 1995), in
  which configurations without confirmation have p = 1. A change must also be at least the minimum effect.
- Configurations that are neither changed nor equivalent are *inconclusive* and get more screening pairs, at fixed interim analyses, up to
  a cap.

Equivalence is tested several times, so a configuration that differs by exactly the minimum effect is called equivalent more often than in
5 % of cases; ``studies/gate_study.py`` prints the rate. All of this assumes that the log ratios of a configuration are independent and,
if the sides are equal, symmetric around zero.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from ..core.errors import CachemarkError
from ..core.verdicts import EQUIVALENT, IMPROVED, INCONCLUSIVE, REGRESSED
from ..core.wording import percent
from .intervals import Interval
from .sign_flip import Floats, rows, sign_flip

FLOOR = {"cpu": 0.10, "cuda": 0.02}  # least minimum effect of a device class
FDR = 0.05  # false discovery rate of a family of configurations
LOOKS = 2  # at the confirming pairs; p-values are multiplied by it
CONFIDENCE = 0.90  # of the interval that must be within the minimum effect for "equivalent"
SCREEN_P = 1 / 16
SCREEN_SHARE = 0.75  # of the minimum effect
PAIRS = 8.0  # pairs per configuration that a machine should need on average


# -- statistics of one configuration ---------------------------------------------------------------------------------------------
def log_ratios(before: ArrayLike, after: ArrayLike) -> Floats:
    """Return the log cost ratio of each pair, (pairs,), positive if ``after`` is worse.

    ``before`` and ``after``: positive values in one unit, (pairs,) or (pairs, images); the median over images counts. Images of one index
    were measured one right after the other where sides alternate, so drift cancels. Raises CachemarkError for other shapes and values."""
    a, b = (np.asarray(side, dtype=np.float64) for side in (before, after))
    if len(a.shape) not in (1, 2) or a.shape[:1] != b.shape[:1] or len(a.shape) != len(b.shape) or 0 in (*a.shape, *b.shape):
        raise CachemarkError(f"Sides of the shapes {a.shape} and {b.shape} make no pairs.",
                             remedy="Pass both sides as (pairs,) or (pairs, images), with as many pairs in both.")
    if not all(np.isfinite(side).all() and (side > 0).all() for side in (a, b)):
        raise CachemarkError("Some values of the pairs are not positive numbers, and only those have a ratio.",
                             remedy="Remove pairs with a failed side.")
    ratios = np.log(b) - np.log(a)
    return ratios if ratios.ndim == 1 else np.median(ratios, axis=1)


def hodges_lehmann(ratios: ArrayLike) -> Floats:
    """Return the median of the averages of all pairs of values, each with itself too. (..., n) -> (...)."""
    return np.median(_walsh(ratios), axis=-1)


def interval(ratios: ArrayLike, confidence: float = CONFIDENCE) -> tuple[Floats, Floats, float]:
    """Return low, high and confidence of :func:`hodges_lehmann`'s interval. (..., n) -> (...) each.

    It covers the center of a symmetric distribution with at least the returned confidence: the smallest attainable one that reaches
    ``confidence``, or the largest if there are too few pairs."""
    walsh = _walsh(ratios)
    cut, sure = _cut(rows(ratios).shape[-1], confidence)
    ordered = np.sort(walsh, axis=-1)
    return ordered[..., cut], ordered[..., -1 - cut], sure


@functools.cache
def signed_rank(n: int) -> Floats:
    """Return P(0 … n(n+1)/2) of the signed-rank sum of n values under symmetry, exact up to rounding."""
    counts = np.ones(1)
    for rank in range(1, n + 1):
        counts = np.pad(counts, (0, rank)) + np.pad(counts, (rank, 0))
    return counts / 2.0**n


@functools.cache
def _cut(n: int, confidence: float) -> tuple[int, float]:
    """Return the number of Walsh averages to cut at each end, and the coverage of the rest."""
    below = np.cumsum(signed_rank(n))
    cut = max(int(np.searchsorted(below, (1 - confidence) / 2, side="right")) - 1, 0)
    return cut, max(0.0, float(1 - 2 * below[cut]))


def _walsh(ratios: ArrayLike) -> Floats:
    d = rows(ratios)
    i, j = np.triu_indices(d.shape[-1])
    return (d[..., i] + d[..., j]) / 2


# -- the rule -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Rule:
    """The decision rule of a family of configurations.

    ``delta``: the minimum effect, a fraction (0.02 is 2 %). ``family``: the number of configurations decided together, each with one timed
    metric. ``interims``: the numbers of pairs of each interim analysis; the last one is the cap."""

    delta: float
    family: int
    interims: tuple[int, ...] = (6, 8, 12, 16, 24)

    def __post_init__(self) -> None:
        if not (0 < self.delta < 1 and self.family >= 1):
            raise CachemarkError(f"A minimum effect of {self.delta} and a family of {self.family} cannot be used.",
                                 remedy="Use a share above 0 and below 1, such as 0.02, and at least one configuration.")

    @property
    def limit(self) -> float:
        """The minimum effect as a log ratio."""
        return math.log1p(self.delta)

    @property
    def looks(self) -> tuple[int, int]:
        """Numbers of confirming pairs of the two looks.

        The first is the smallest number that can detect one changed configuration of the family.
        """
        first = math.ceil(math.log2(LOOKS * self.family / FDR))
        return first, max(14, first + 3)


@dataclass(frozen=True)
class Screened:
    """The result of screening, as arrays of one shape.

    ``side``: 1 looks worse, −1 looks better, else 0. ``equal``: equivalent within the minimum effect. ``pairs``: the number of pairs used.
    """

    side: NDArray[np.int64]
    equal: NDArray[np.bool_]
    pairs: NDArray[np.int64]


def screen(ratios: ArrayLike, rule: Rule) -> Screened:
    """Screen configurations, (configs, available pairs).

    Each is decided at the first interim analysis that decides it; analyses that need more pairs are skipped."""
    d = rows(ratios)
    side, equal = np.zeros(len(d), dtype=np.int64), np.zeros(len(d), dtype=bool)
    pairs = np.zeros(len(d), dtype=np.int64)
    for count in (n for n in rule.interims if n <= d.shape[1]):
        still = np.flatnonzero((side == 0) & ~equal)
        screened = d[still, :count]
        side[still], pairs[still] = _sides(screened, rule), count
        equal[still] = (side[still] == 0) & within(screened, rule)
    return Screened(side, equal, pairs)


def within(ratios: ArrayLike, rule: Rule) -> NDArray[np.bool_]:
    """Return whether the interval is inside the minimum effect on both sides. (..., n) -> (...)."""
    low, high, sure = interval(ratios)
    return (low > -rule.limit) & (high < rule.limit) & (sure >= CONFIDENCE)


def _sides(d: Floats, rule: Rule) -> NDArray[np.int64]:
    estimate = hodges_lehmann(d)
    far = np.abs(estimate) >= SCREEN_SHARE * rule.limit
    side = np.where(far, np.sign(estimate), 0).astype(np.int64)
    suspects = np.flatnonzero(far)
    if suspects.size:
        unlikely = sign_flip(d[suspects] * side[suspects, None]) <= SCREEN_P
        side[suspects[~unlikely]] = 0
    return side


def adjusted(p: ArrayLike, rule: Rule) -> Floats:
    """Return the adjusted p-values of a family, (..., configurations) -> (..., configurations).

    Missing configurations of the family have p = 1."""
    p_values = np.asarray(p, dtype=np.float64)
    missing = rule.family - p_values.shape[-1]
    if missing < 0:
        raise CachemarkError(f"{p_values.shape[-1]} configurations exceed the family of {rule.family} that the pairs were planned for.",
                             remedy="Pass the rule the number of all configurations.")
    padded = np.concatenate((p_values, np.ones((*p_values.shape[:-1], missing))), axis=-1)
    return np.asarray(scipy.stats.false_discovery_control(padded, axis=-1))[..., : p_values.shape[-1]]


# -- verdicts -----------------------------------------------------------------------------------------------------------
@dataclass
class PairRatios:
    """Log ratios of one configuration: screening pairs in the order of measurement, and confirming ones."""

    screening: Sequence[float]
    fresh: Sequence[float] = ()


class Effect(Interval):
    """A relative change of cost (0.05: 5 % worse) with its interval and number of pairs."""

    @classmethod
    def from_ratios(cls, ratios: ArrayLike) -> Effect:
        """Estimate the effect from log ratios, (n,)."""
        d = rows(ratios)
        least, most, sure = interval(d)
        value, low, high = (math.expm1(float(x)) for x in (hodges_lehmann(d), least, most))
        return cls(value, low, high, sure, len(d))

    def __str__(self) -> str:
        value, low, high = (percent(x, "+") for x in (self.value, self.low, self.high))
        return f"{value} ({low} to {high}, {100 * self.confidence:.0f} % sure, {self.n} pairs)"


@dataclass(frozen=True)
class PairedVerdict:
    """The verdict on one configuration: ``regressed``, ``improved``, ``equivalent`` or ``inconclusive``.

    ``adjusted``: the p-value corrected for the family, 1 without confirmation. ``pairs``: the number of pairs used. ``reason``: a text for
    people."""

    verdict: str
    effect: Effect | None
    adjusted: float
    pairs: int
    reason: str


def needed(config: PairRatios, rule: Rule) -> tuple[str, int]:
    """Return the pairs to measure next: ``("screen", n)``, ``("confirm", n)`` or ``("done", 0)``."""
    screened = _screened(config, rule)
    if screened.side[0]:
        missing = _counting(config.fresh, int(screened.side[0]), rule)[1]
        return ("confirm", missing) if missing else ("done", 0)
    later = [count for count in rule.interims if count > screened.pairs[0]]
    return ("screen", later[0] - len(config.screening)) if later and not screened.equal[0] else ("done", 0)


def judge(configs: Mapping[str, PairRatios], rule: Rule) -> dict[str, PairedVerdict]:
    """Return the verdicts of a family, by configuration.

    Regressions and improvements are corrected separately, because an improvement fails no gate. The confirming pairs of the first
    deciding look count, or else of the last look that was reached."""
    screened = {name: _screened(config, rule) for name, config in configs.items()}
    sides = {name: int(screen_result.side[0]) for name, screen_result in screened.items()}
    worse, better = (_confirmed(configs, sides, side, rule) for side in (1, -1))
    return {name: _judgement(config, screened[name], worse[name] if sides[name] > 0 else better[name], rule) for name,
            config in configs.items()}


def _screened(config: PairRatios, rule: Rule) -> Screened:
    if not len(config.screening):
        return Screened(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=bool), np.zeros(1, dtype=np.int64))
    return screen(np.asarray(config.screening, dtype=np.float64)[None], rule)


def _confirmed(configs: Mapping[str, PairRatios], sides: Mapping[str, int], side: int, rule: Rule) -> dict[str, float]:
    """Return adjusted p-values that configurations changed to that side."""
    def p(name: str, config: PairRatios) -> float:
        return confirmed(config.fresh, side, rule)[1] if sides[name] == side else 1.0

    return dict(zip(configs, map(float, adjusted([p(name, config) for name, config in configs.items()], rule)), strict=True))


def _judgement(config: PairRatios, screened: Screened, p: float, rule: Rule) -> PairedVerdict:
    side, used = int(screened.side[0]), int(screened.pairs[0])
    if not used:
        return PairedVerdict(INCONCLUSIVE, None, 1.0, 0, f"{len(config.screening)} of the {rule.interims[0]} pairs that are needed")
    if not side:
        effect = Effect.from_ratios(config.screening[:used])
        verdict = EQUIVALENT if screened.equal[0] else INCONCLUSIVE
        return PairedVerdict(verdict, effect, 1.0, used, _reason(verdict, effect, rule))
    fresh = config.fresh[: confirmed(config.fresh, side, rule)[0]]
    verdict = verdict_of(fresh, side, p, rule) if len(fresh) else INCONCLUSIVE
    if verdict == INCONCLUSIVE and len(fresh) < rule.looks[-1]:
        effect = Effect.from_ratios(config.screening[:used])
        reason = f"looks changed, but {len(config.fresh)} of {rule.looks[-1]} pairs confirm it: {effect}"
        return PairedVerdict(INCONCLUSIVE, effect, 1.0, used, reason)
    effect = Effect.from_ratios(fresh)
    return PairedVerdict(verdict, effect, p, used + len(fresh), _reason(verdict, effect, rule))


def confirmed(fresh: Sequence[float], side: int, rule: Rule) -> tuple[int, float]:
    """Return the number of counted confirming pairs, and their p-value before the family correction.

    ``side``: 1 looked worse, −1 better. 0 pairs and p = 1 before the first look."""
    count, _ = _counting(fresh, side, rule)
    return count, _p(fresh[:count], side) if count else 1.0


def _counting(fresh: Sequence[float], side: int, rule: Rule) -> tuple[int, int]:
    """Return the confirming pairs at the deciding or newest look, and those missing for the next."""
    reached = 0
    for count in rule.looks:
        if len(fresh) < count:
            return reached, count - len(fresh)
        reached, p = count, min(1.0, rule.family * _p(fresh[:count], side))
        if verdict_of(fresh[:count], side, p, rule) != INCONCLUSIVE:
            break
    return reached, 0


def _p(fresh: ArrayLike, side: int) -> float:
    return min(1.0, LOOKS * float(sign_flip(side * rows(fresh))))


def verdict_of(fresh: ArrayLike, side: int, p: float, rule: Rule) -> str:
    """Return the verdict from the confirming pairs of a configuration, (n,).

    ``side``: 1 looked worse, −1 better. ``p`` is adjusted."""
    if p <= FDR and side * hodges_lehmann(fresh) >= rule.limit:
        return REGRESSED if side > 0 else IMPROVED
    return EQUIVALENT if within(fresh, rule) else INCONCLUSIVE


def _reason(verdict: str, effect: Effect, rule: Rule) -> str:
    least = f"{100 * rule.delta:g} %"
    return {EQUIVALENT: f"within {least}: {effect}", INCONCLUSIVE: f"not resolved at {least}: {effect}"}.get(verdict, str(effect))


# -- resolution of a machine --------------------------------------------------------------------------------------------
def sees(unchanged: ArrayLike, family: int) -> float:
    """Return the smallest minimum effect, in steps of 0.5 %, that ``PAIRS`` pairs can decide on average.

    Infinite if it is above 50 %. ``unchanged``: log ratios of A/A pairs of any configurations of the machine class. Configurations are
    drawn from them with random signs by a frozen stream; the order of equal sides is random, so the signs carry no information."""
    pool = rows(ratios=np.ravel(np.asarray(unchanged, dtype=np.float64)))
    stream = np.random.RandomState(0)  # a legacy stream never changes
    shape = (400, Rule(0.01, family).interims[-1])
    drawn = stream.choice(pool, size=shape) * stream.choice([-1.0, 1.0], size=shape)

    def decides(step: int) -> bool:
        """Return whether few pairs decide on average, confirming ones included."""
        rule = Rule(step / 200, family)
        screened = screen(drawn, rule)
        return bool((screened.pairs + np.where(screened.side != 0, rule.looks[-1], 0)).mean() <= PAIRS)

    steps = range(1, 101)  # the larger the minimum effect, the sooner a configuration is decided
    first = bisect.bisect_left(steps, True, key=decides)
    return steps[first] / 200 if first < len(steps) else math.inf
