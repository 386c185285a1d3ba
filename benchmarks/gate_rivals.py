"""The rules by which other tools call a regression, each as a function of numbers: through the tool's own code where it is installed,
else by the formula that is all there is to it.

Two runs: a *score* is a ratio of costs, 1 where the rule sees no difference, and the rule alarms above its parameter.
Series: a *verdict* says whether the rule shows a regression in a series of nightly values.
Apache Otava is not among this project's dependencies; the study uses it where it finds it.
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
    """A tool's rule for two runs: how it scores them, above which score it alarms, and whether it is meant for as many images as the
    gate takes."""

    name: str
    score: str
    parameter: float
    many: bool = False


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


# -- two runs -----------------------------------------------------------------------------------------------------------
def by_asv(before: Floats, after: Floats) -> float:
    """Ratio of medians where ``asv compare`` finds the samples different."""
    from asv._stats import is_different
    from asv_runner.statistics import compute_stats

    (a, about_a), (b, about_b) = (compute_stats(list(map(float, run)), 1) for run in (before, after))
    return b / a if is_different(list(before), list(after), about_a, about_b) else 1.0


def by_pytest_benchmark(field: str) -> Score:
    """What ``--benchmark-compare-fail`` computes, as a ratio."""
    from pytest_benchmark.utils import PercentageRegressionCheck

    check = PercentageRegressionCheck(field, 0)
    figure = {"min": np.min, "median": np.median}[field]
    return lambda before, after: 1 + check.compute({field: float(figure(after))}, {field: float(figure(before))}) / 100


def by_mean(before: Floats, after: Floats) -> float:
    return float(after.mean() / before.mean())


def by_median(before: Floats, after: Floats) -> float:
    return float(np.median(after) / np.median(before))


def scores() -> dict[str, Score]:
    """Every score that can be computed here, by name."""
    found: dict[str, Score] = {"median": by_median, "mean": by_mean}
    if installed("pytest_benchmark"):
        found |= {"pytest-benchmark min": by_pytest_benchmark("min"), "pytest-benchmark median": by_pytest_benchmark("median")}
    if installed("asv"):
        found["asv"] = by_asv
    return found


RULES = (
    Rule("TorchBench 7 %", "median", 1.07), Rule("conbench pairwise 5 %", "mean", 1.05),
    Rule("pytest-benchmark min 5 %", "pytest-benchmark min", 1.05), Rule("pytest-benchmark median 10 %", "pytest-benchmark median", 1.10),
    Rule("asv 1.1", "asv", 1.1), Rule("asv 1.05", "asv", 1.05), Rule("asv 1.02, many images", "asv", 1.02, many=True),
)


# -- series -------------------------------------------------------------------------------------------------------------
def by_asv_publish(times: Floats) -> bool:
    """Whether ``asv publish`` shows a regression, at its default of 5 %."""
    from asv.step_detect import detect_regressions, detect_steps

    return detect_regressions(detect_steps(list(map(float, times))), 0.05)[0] is not None


def by_otava(times: Floats, least: float = 0.0, ignored: int = 0) -> bool:
    """Whether Apache Otava finds a rise of at least ``least``, other than in the last ``ignored`` nights."""
    from otava.analysis import compute_change_points

    found = compute_change_points(list(map(float, times)), min_magnitude=least)[0]
    return any(c.stats.mean_2 > c.stats.mean_1 for c in found if c.index < len(times) - ignored)


def by_z_score(times: Floats) -> bool:
    """The last night against the mean before it, in standard deviations of what was before: conbench's five."""
    before = times[:-1]
    return bool(times[-1] - before.mean() > 5 * before.std(ddof=1))


def by_fence(times: Floats) -> bool:
    """The last difference against the third quartile of those before and three times their spread, as rustc-perf does."""
    differences = np.abs(np.diff(np.log(times)))
    low, high = np.quantile(differences[:-1], [0.25, 0.75])
    return bool(times[-1] > times[-2] and differences[-1] > high + 3 * (high - low))
