"""Regression rules of other tools, by the tool's own code if it is installed, else by its published formula.

For two runs, a *score* is a ratio of costs (1: no difference), and the rule alarms above its parameter. For series, a *verdict* is whether
the rule detects a regression in nightly values. Apache Otava is not a dependency of this project; the study uses it if it is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Score = Callable[[Floats, Floats], float]


@dataclass(frozen=True)
class Rule:
    """A tool's rule for two runs: its score, the parameter above which it alarms, and whether it needs ``many`` images."""

    name: str
    score: str
    parameter: float
    many: bool = False


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


# -- two runs -----------------------------------------------------------------------------------------------------------
def by_asv(before: Floats, after: Floats) -> float:
    """Return the ratio of medians if ``asv compare`` finds the samples different, else 1."""
    from asv._stats import is_different
    from asv_runner.statistics import compute_stats

    (a, about_a), (b, about_b) = (compute_stats(list(map(float, run)), 1) for run in (before, after))
    return b / a if is_different(list(before), list(after), about_a, about_b) else 1.0


def by_pytest_benchmark(field: str) -> Score:
    """Return the score of ``--benchmark-compare-fail``, as a ratio."""
    from pytest_benchmark.utils import PercentageRegressionCheck

    check = PercentageRegressionCheck(field, 0)
    figure = {"min": np.min, "median": np.median}[field]
    return lambda before, after: 1 + check.compute({field: float(figure(after))}, {field: float(figure(before))}) / 100


def by_mean(before: Floats, after: Floats) -> float:
    return float(after.mean() / before.mean())


def by_median(before: Floats, after: Floats) -> float:
    return float(np.median(after) / np.median(before))


def scores() -> dict[str, Score]:
    """Return every score that can be computed here, by name."""
    scores_by_name: dict[str, Score] = {"median": by_median, "mean": by_mean}
    if installed("pytest_benchmark"):
        scores_by_name |= {"pytest-benchmark min": by_pytest_benchmark("min"), "pytest-benchmark median": by_pytest_benchmark("median")}
    if installed("asv"):
        scores_by_name["asv"] = by_asv
    return scores_by_name


RULES = (
    Rule("TorchBench 7 %", "median", 1.07), Rule("conbench pairwise 5 %", "mean", 1.05),
    Rule("pytest-benchmark min 5 %", "pytest-benchmark min", 1.05), Rule("pytest-benchmark median 10 %", "pytest-benchmark median", 1.10),
    Rule("asv 1.1", "asv", 1.1), Rule("asv 1.05", "asv", 1.05), Rule("asv 1.02, many images", "asv", 1.02, many=True),
)


# -- series -------------------------------------------------------------------------------------------------------------
def by_asv_publish(times: Floats) -> bool:
    """Return whether ``asv publish`` reports a regression, at its default of 5 %."""
    from asv.step_detect import detect_regressions, detect_steps

    return detect_regressions(detect_steps(list(map(float, times))), 0.05)[0] is not None


def by_otava(times: Floats, least: float = 0.0, ignored: int = 0) -> bool:
    """Return whether Apache Otava finds a rise of at least ``least``, except in the last ``ignored`` nights."""
    from otava.analysis import compute_change_points

    change_points = compute_change_points(list(map(float, times)), min_magnitude=least)[0]
    return any(c.stats.mean_2 > c.stats.mean_1 for c in change_points if c.index < len(times) - ignored)


def by_z_score(times: Floats) -> bool:
    """Compare the last night with the previous ones: an alarm is 5 standard deviations from their mean (conbench)."""
    before = times[:-1]
    return bool(times[-1] - before.mean() > 5 * before.std(ddof=1))


def by_fence(times: Floats) -> bool:
    """Compare the last difference with the third quartile of earlier ones plus 3 interquartile ranges (rustc-perf)."""
    differences = np.abs(np.diff(np.log(times)))
    low, high = np.quantile(differences[:-1], [0.25, 0.75])
    return bool(times[-1] > times[-2] and differences[-1] > high + 3 * (high - low))
