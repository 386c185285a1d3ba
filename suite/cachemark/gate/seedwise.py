"""Images of two sides compared seed by seed, in a family of configurations of its own.

Both sides made images at the same seeds, so every value per image (agreement, PSNR, color consistency) gives one difference per seed. In
A/A tests the sign of a difference is random, and the exact sign-flip test computes how often chance alone adds up to as much. Fidelity and
quality of all configurations form one family, separate from the family of times (Benjamini and Hochberg).

The effect is the mean over seeds, not the Hodges–Lehmann estimate: a method often changes few images much and most images not at all, and
then the median of Walsh averages is zero. "Equivalent" refers to these seeds: 64 seeds rarely show an event of one image in fifty, so the
standard error is reported and no interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy

from ..core.formatting import looks_equal
from ..core.result import INFRASTRUCTURE, JUDGING, Status
from ..core.units import Metric, in_order, metric
from ..core.verdicts import CHANGED, EQUIVALENT, IMPROVED, INCONCLUSIVE, NOT_COMPARED, REGRESSED
from ..stats.paired_test import CONFIDENCE, FDR
from ..stats.sign_flip import Floats, sign_flips
from ..store.rows import Verdict
from .comparison import SAME, PairOfOutcomes, failure, images

LEAST = 0.01  # minimum effect, as a share of the mean size of the first side's values
ITSELF = "fidelity of the full cache is to itself"


@dataclass(frozen=True)
class SeedwiseRow:
    """One value of a configuration.

    ``worse``: the loss of the second side at each seed, in the unit of the metric, (seeds,)."""

    pair: PairOfOutcomes
    metric: Metric
    worse: Floats


def seedwise(pairs: Mapping[str, PairOfOutcomes], alike: str = SAME) -> list[Verdict]:
    """Return one row per configuration and value that is known seed by seed on both sides.

    ``alike``: see :func:`cachemark.gate.comparison.verdicts`. A configuration without such a value has a row with the reason; if only its
    second side failed, it has regressed. Two full caches are compared by their image hashes, since each is the reference of its own
    fidelity."""
    lines = {config: list(_lines(pair)) for config, pair in pairs.items()}
    flat = [line for config_lines in lines.values() for line in config_lines]
    sides = sign_flips([line.worse for line in flat])
    p = iter(scipy.stats.false_discovery_control(sides, axis=0).tolist() if sides else ())
    rows: list[Verdict] = []
    for config, pair in pairs.items():
        rows += [_row(line, next(p), len(flat)) for line in lines[config]]
        rows += _lost(pair)
        rows += _whole_config(pair, alike, bool(lines[config]))
    return rows


def _lost(pair: PairOfOutcomes) -> Iterator[Verdict]:
    """Yield a row for each plug-in metric that failed on one side alone."""
    for which, failed, other in (("first", pair.before, pair.after), ("second", pair.after, pair.before)):
        for name, fault in (failed.facts.metric_faults or {}).items():
            if name in other.samples:
                yield pair.row(name, NOT_COMPARED, f"the {which} side has no value of it: {fault.said}")


def _whole_config(pair: PairOfOutcomes, alike: str, images_differ: bool) -> Iterator[Verdict]:
    """Yield the row of the whole configuration, if needed. ``images_differ``: it has rows of values."""
    hashed = all(outcome.facts.images_hash for outcome in pair.sides)
    if pair.before.ok and not pair.after.ok and pair.after.status not in (Status.UNSUPPORTED, *INFRASTRUCTURE):
        failed = failure(pair)
        yield replace(failed, reason=f"its images: {failed.reason}")
    elif _to_itself(pair) and hashed and pair.before.output_hash == pair.after.output_hash:
        yield images([pair], alike)
    elif _to_itself(pair) or not images_differ:
        yield pair.row("status", NOT_COMPARED, f"its images were not compared: {ITSELF if _to_itself(pair) else _reason(pair)}")


def _to_itself(pair: PairOfOutcomes) -> bool:
    """Return whether both sides are full caches, whose fidelity is measured against themselves.

    A ``reference`` engine is another code path."""
    return all(o.ok and o.case.role == "baseline" and o.case.engine != "reference" for o in pair.sides)


def _lines(pair: PairOfOutcomes) -> Iterator[SeedwiseRow]:
    if not pair.ok:
        return
    judging = [kind for kind in JUDGING if kind != "fidelity" or not _to_itself(pair)]
    for name in in_order(pair.before.samples):
        of, (before, after) = metric(name), (outcome.samples.get(name, ()) for outcome in pair.sides)
        if of.kind in judging and len(before) == len(after) > 1:
            yield SeedwiseRow(pair, of, np.array([of.loss(*figures) for figures in zip(before, after, strict=True)], dtype=np.float64))


def _reason(pair: PairOfOutcomes) -> str:
    failed = next((outcome for outcome in pair.sides if not outcome.ok), None)
    if failed is None:
        return "no value is known seed by seed"
    return f"{failed.status}: {(failed.log.strip().splitlines() or [''])[-1][:200]}"


def _row(line: SeedwiseRow, adjusted: tuple[float, float], family: int) -> Verdict:
    """Return the verdict on a line. ``adjusted``: p-values of worse and better in the ``family``."""
    name, unit, seeds, effect = line.metric.name, f" {line.metric.unit}".rstrip(), len(line.worse), float(line.worse.mean())
    limit = LEAST * float(np.abs(line.pair.before.samples[name]).mean())  # by sizes: the mean of signed values may be nearly 0
    error = float(line.worse.std(ddof=1) / np.sqrt(seeds))
    margin = float(scipy.stats.t.ppf((1 + CONFIDENCE) / 2, seeds - 1)) * error
    p = adjusted[0] if effect > 0 else adjusted[1]
    reason = (f"{abs(effect):.3g}{unit} {'worse' if effect > 0 else 'better'} on average (standard error {error:.2g}, {seeds} seeds, "
              f"p = {p:.2g})")
    then, now = (float(outcome.mean(name) or 0.0) for outcome in line.pair.sides)
    if p <= FDR and abs(effect) >= limit:
        verdict = CHANGED if looks_equal(then, now, name) else REGRESSED if effect > 0 else IMPROVED
    else:
        verdict = EQUIVALENT if abs(effect) + margin <= limit else INCONCLUSIVE
        least = math.ceil(math.log2(family / FDR))  # the smallest p-value is 2^-n, and the family multiplies it
        if seeds < least:
            reason += f"; alone among {family} values none can be detected with so few: {least} seeds are needed"
    return line.pair.row(name, verdict, reason, then, now, now / then if then else None)
