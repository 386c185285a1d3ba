"""Simulate years of nights of one configuration: how soon a step is found, and how often a false one.

    python -m studies.history_study [--years 16] [--seed 101] [--asv] [KIND ...]

This prints the table of docs/results/validation.md in a few minutes on one core; ``--asv`` adds the step detection of asv, applied every 30
nights (ADR 34). The noise is assumed, not measured. Each year is checked every night; ``may_change`` filters all years at once, so that the
history itself runs on few nights.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.ndimage import median_filter
from scipy.signal import lfilter
from scipy.stats import chi2, rankdata

from cachemark.stats import changepoints as history
from tools.pages.gate import markdown

Floats = NDArray[np.float64]
NIGHTS, ONSET, BURN = 365, 180, 60
STEP, DELTA = 0.05, 0.02
NEAR = 5  # largest error in nights of a step's position that counts as found


@dataclass(frozen=True)
class Kind:
    """Noise of log ratios to the canary.

    ``sd``: its standard deviation; ``alike``: correlation of neighboring nights; ``cycle``: a weekly cycle, a sine or, if ``sudden``, five
    working days and two others.
    """

    sd: float
    alike: float = 0.0
    cycle: float = 0.0
    sudden: bool = False

    def years(self, stream: Generator, count: int) -> Floats:
        """Return unchanged years, (count, nights)."""
        drawn = stream.normal(0, math.sqrt(1 - self.alike**2), (count, BURN + NIGHTS))
        nights = np.arange(NIGHTS)
        week = np.where(nights % 7 >= 5, 1.0, -1.0) if self.sudden else np.sin(2 * np.pi * nights / 7)
        return np.asarray(self.sd * lfilter([1], [1, -self.alike], drawn, axis=1)[:, BURN:] + self.cycle * week)


KINDS: Mapping[str, Kind] = {
    "independent nights, 1 %": Kind(0.01),
    "AR(1) 0.3, 1 %": Kind(0.01, 0.3), "AR(1) 0.3, 2 %": Kind(0.02, 0.3),
    "AR(1) 0.6, 1 %": Kind(0.01, 0.6), "AR(1) 0.6, 2 %": Kind(0.02, 0.6),
    "weekly ± 1 %, sine": Kind(0.005, cycle=0.01), "weekly ± 1 %, weekends": Kind(0.005, cycle=0.01, sudden=True),
    "weekly ± 2 %, weekends": Kind(0.01, cycle=0.02, sudden=True),
    "weekly ± 1 % and AR(1) 0.6": Kind(0.005, 0.6, 0.01),
}


def segment(nights: Floats) -> history.BaselineSeries:
    """Return the history of nights in one environment."""
    return history.changes(nights.tolist(), [0] * len(nights), DELTA)[0]


def gating(nights: Floats) -> list[history.ChangePoint]:
    return [change for change in segment(nights).changes if change.gates]


def false_years(years: Floats, every: int = 1) -> int:
    """Count the unchanged years with a reported change on any night, checked every ``every`` nights."""
    quiet = np.ones(len(years), dtype=bool)
    for last in range(BURN // 2, NIGHTS + 1, every):
        suspects = np.flatnonzero(quiet)[may_change(years[quiet, :last])]
        quiet[[k for k in suspects if gating(years[k, :last])]] = False
    return int((~quiet).sum())


def may_change(rows: Floats) -> NDArray[np.bool_]:
    """Return which rows, (years, nights), may have a change.

    These have a stretch whose largest change is significant with the smaller autocorrelation: the actual one without a step, or the least
    possible one without a ramp.
    """
    rows = rows - weekly(rows)
    stretches = list(history._windows(0, rows.shape[1]))
    return np.any([_height(rows[:, a:b]) >= history._significant(b - a) - 1e-6 for a, b in stretches], axis=0)


def weekly(rows: Floats) -> Floats:
    """Compute :func:`cachemark.stats.changepoints.weekly` for rows with one night per day."""
    n = rows.shape[1]
    if n < history.WEEK * history.WEEKS:
        return np.zeros_like(rows)
    away = rows - median_filter(rows, (1, history.WEEK), mode="nearest")
    ranks, days = rankdata(away, axis=1), [np.arange(day, n, history.WEEK) for day in range(history.WEEK)]
    between = sum(ranks[:, day].sum(axis=1) ** 2 / len(day) for day in days)
    height = 12 / (n * (n + 1)) * between - 3 * (n + 1)  # Kruskal and Wallis
    same = (away == 0).sum(axis=1)  # nights that are the median of the week around them
    height /= 1 - (same**3 - same) / (n**3 - n)
    owed = np.zeros_like(rows)
    for day in days:
        owed[:, day] = np.median(away[:, day], axis=1)[:, None]
    there = chi2.sf(height, history.WEEK - 1) <= history.LEVEL_OF_LEVELS
    return there[:, None] * (owed - owed.mean(axis=1)[:, None])


def _height(rows: Floats) -> Floats:
    """Return the standardized height of each row's most likely change, for a step or at most for a ramp."""
    n = rows.shape[1]
    place = history.LEAST + history._heights(rankdata(rows, axis=1)).argmax(axis=1)
    sides = [side := np.arange(n) >= place[:, None], ~side]
    residuals = rows - np.select(sides, [_medians(rows, side) for side in sides])
    most = history.MOST_ODD * 1.4826 * np.median(np.abs(residuals), axis=1)[:, None]
    clipped = rows - residuals + np.clip(residuals, -most, most)
    after, before = (((clipped * side).sum(axis=1) / side.sum(axis=1))[:, None] for side in sides)
    within = ((clipped - np.where(side, after, before)) ** 2).sum(axis=1) / (n - 2)
    widening = np.minimum(_widening(residuals), history._widened(0.0, n, 2))
    error = np.sqrt(within * n / (place * (n - place)) * widening)
    return history.standardised(np.abs(after - before)[:, 0] / error, n)


def _widening(residuals: Floats) -> Floats:
    n = residuals.shape[1]
    before, after = (part - n / 2 for part in (rankdata(residuals[:, :-1], axis=1), rankdata(residuals[:, 1:], axis=1)))
    alike = (before * after).sum(axis=1) / np.sqrt((before**2).sum(axis=1) * (after**2).sum(axis=1))
    alike = np.minimum(np.maximum(alike, 0) + 1 / math.sqrt(n), 0.95)
    return (1 + alike) / (1 - alike)


def _medians(rows: Floats, side: NDArray[np.bool_]) -> Floats:
    """Return the median of each row's values on one side, (rows, 1)."""
    ordered, count = np.sort(np.where(side, rows, np.inf), axis=1), side.sum(axis=1)
    middle = [np.take_along_axis(ordered, at[:, None], axis=1) for at in ((count - 1) // 2, count // 2)]
    return np.mean(middle, axis=0)


def stepped(nights: Floats) -> Floats:
    return nights + math.log1p(STEP) * (np.arange(NIGHTS) >= ONSET)


def wait(nights: Floats, most: int = 2 * history.SOON) -> int | None:
    """Return the nights after the step until it is reported, checked every night; None if it is not reported."""
    for after in range(1, most + 1):
        if any(abs(change.first - ONSET) <= NEAR for change in gating(stepped(nights)[: ONSET + after])):
            return after
    return None


def row(name: str, years: int, seed: int) -> dict[str, Any]:
    """Simulate one kind of noise.

    ``at most a year``: 95 % bound of false alarms per year; ``promised``: years whose history, before the step, reports that it would be
    detected; ``found of these``: fraction of these years that find it within ``SOON`` nights.
    """
    nights = KINDS[name].years(np.random.default_rng([seed, *name.encode()]), years)
    false = false_years(nights)
    waits = [math.inf if (delay := wait(year)) is None else delay for year in nights]
    shows = np.array([segment(year[:ONSET]).shows for year in nights])
    soon, promised = np.array(waits) <= history.SOON, shows <= STEP
    return {
        "noise": name, "years": years, "with a false alarm": false, "at most a year": float(chi2.ppf(0.95, 2 * false + 2)) / 2 / years,
        f"found within {history.SOON} nights": float(soon.mean()), "within twice as many": float(np.isfinite(waits).mean()),
        "median nights": float(np.median(waits)), "says it shows": float(np.median(shows)), "promised": int(promised.sum()),
        "found of these": float(soon[promised].mean()) if promised.any() else math.nan,
    }


# -- asv's step detection -----------------------------------------------------------------------------------------------
def asv_places(nights: Floats, threshold: float) -> list[int]:
    """Return the nights of regressions above ``threshold`` that ``asv publish`` reports."""
    from asv.step_detect import detect_regressions, detect_steps

    regressions = detect_regressions(detect_steps(np.exp(nights).tolist()), threshold)[2]
    return [int(after) for _, after, *_ in regressions or ()]


def beside_asv(name: str, years: int, seed: int, every: int = 30) -> dict[str, Any]:
    """Return false alarms in unchanged years, and steps found within ``SOON`` nights, of our history and asv."""
    nights = KINDS[name].years(np.random.default_rng([seed, *name.encode()]), years)
    until = ONSET + history.SOON
    ours = [any(abs(change.first - ONSET) <= NEAR for change in gating(stepped(year)[:until])) for year in nights]
    cells: dict[str, Any] = {"noise": name, "years": years, "ours: false": false_years(nights, every), "ours: found": float(np.mean(ours))}
    for threshold in (DELTA, STEP):
        false = [any(asv_places(year[:last], threshold) for last in range(BURN // 2, NIGHTS + 1, every)) for year in nights]
        by_year = [asv_places(stepped(year)[:until], threshold) for year in nights]
        cells[f"asv {threshold:.0%}: false"] = sum(false)
        cells[f"asv {threshold:.0%}: found"] = float(np.mean([any(abs(place - ONSET) <= NEAR for place in places) for places in by_year]))
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the change detection in a configuration's history.")
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help="some kinds of noise (default: all)")
    parser.add_argument("--years", type=int, default=16)
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--asv", action="store_true", help="compare with the step detection of asv")
    arguments = parser.parse_args()
    began = time.process_time()
    rows = [(beside_asv if arguments.asv else row)(name, arguments.years, arguments.seed) for name in arguments.kinds]
    spent = time.process_time() - began
    print(f"Seed {arguments.seed}, a step of {STEP:.0%} at night {ONSET}, minimum effect {DELTA:.0%}, {spent:.0f} s of one core.\n")
    print(markdown(rows))


if __name__ == "__main__":
    main()
