"""Coverage of every interval that cachemark prints, on populations with known truth, for claims_study.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import binomtest

from cachemark.analysis.report_row import faster
from cachemark.core.units import METRICS
from cachemark.gate.nights import of_a_night
from cachemark.metrics.compute.image_features import ImageFeatures, RealImages
from cachemark.metrics.compute.quality_intervals import QualityInterval, difference, intervals
from cachemark.stats.intervals import PROCESS_BIAS, Interval, means_over_seeds, median_over_repeats, ratio_of_medians
from cachemark.stats.paired_test import interval

Floats = NDArray[np.float64]
Row = dict[str, Any]
Draw = Callable[[Generator, tuple[int, int]], Floats]
SEEDS = (16, 32, 64)
RESAMPLES = 400  # of the earlier bootstrap


# Rare outliers of unbounded quantities: few seeds often contain none of them, so no interval can cover them.
UNSEEN = ("KL 0.02, at 5 % of seeds 1", "ImageReward, nothing, at 10 % of seeds −1.7 ± 0.5")


class Population(NamedTuple):
    """A quantity of the metric ``metric``, a function that draws (samples, seeds), and its true mean."""

    metric: str
    draw: Draw
    mean: float


def _spoilt(right: float, share: float) -> Draw:
    return lambda s, at: np.where(s.random(at) < share, 0.25, s.binomial(4, right, at) / 4)


def _rarely(share: float, other: float, usual: float) -> Draw:
    return lambda s, at: np.where(s.random(at) < share, other, usual)


def _zeros(share: float, sigma: float) -> Draw:
    return lambda s, at: np.where(s.random(at) < share, 0.0, s.lognormal(-sigma**2 / 2, sigma, at))


def _now_and_then(share: float) -> Draw:
    return lambda s, at: np.where(s.random(at) < share, s.normal(-1.7, 0.5, at), s.normal(0, 0.05, at))


MEANS: Mapping[str, Population] = {
    "color consistency, 2 % spoiled": Population("color_consistency", _spoilt(1.0, 0.02), 0.985),
    "color consistency, each answer right in 90 %": Population("color_consistency", _spoilt(0.9, 0.0), 0.9),
    "class right in 96 %": Population("class_accuracy", lambda s, at: (s.random(at) < 0.96).astype(float), 0.96),
    "class right in 50 %": Population("class_accuracy", lambda s, at: (s.random(at) < 0.5).astype(float), 0.5),
    "prompt kept in 25 %": Population("prompt_score", lambda s, at: (s.random(at) < 0.25).astype(float), 0.25),
    "GenEval, right in 90 %": Population("geneval", lambda s, at: (s.random(at) < 0.9).astype(float), 0.9),
    "DPG-Bench, 12 questions, each yes in 85 %": Population("dpg", lambda s, at: s.binomial(12, 0.85, at) / 12, 0.85),
    "agreement near 0, beta(0.2, 9.8)": Population("token_agreement", lambda s, at: s.beta(0.2, 9.8, at), 0.02),
    "agreement, beta(8, 2)": Population("token_agreement", lambda s, at: s.beta(8, 2, at), 0.8),
    "agreement 1, at 3 % of seeds 0.3": Population("token_agreement", _rarely(0.03, 0.3, 1.0), 0.979),
    "PSNR at its cap, at 5 % of seeds 20": Population("psnr", _rarely(0.05, 20.0, 60.0), 58.0),
    "PSNR, normal 25 ± 4": Population("psnr", lambda s, at: s.normal(25, 4, at), 25.0),
    "SSIM, 1 less an exponential of 0.1": Population("ssim", lambda s, at: 1 - np.minimum(s.exponential(0.1, at), 2), 0.9),
    "KL, lognormal σ 0.5": Population("kl", _zeros(0, 0.5), 1.0), "KL, lognormal σ 1": Population("kl", _zeros(0, 1.0), 1.0),
    "KL, lognormal σ 1.5": Population("kl", _zeros(0, 1.5), 1.0),
    "KL, gamma of shape 1/2": Population("kl", lambda s, at: s.gamma(0.5, 2, at), 1.0),
    "LPIPS, half of them 0, else lognormal σ 1": Population("lpips", _zeros(0.5, 1.0), 0.5),
    "distance, normal 1 ± 0.2": Population("token_distance", lambda s, at: s.normal(1, 0.2, at), 1.0),
    "distance, Pareto of index 3": Population("token_distance", lambda s, at: (s.pareto(3, at) + 1) * 2 / 3, 1.0),
    UNSEEN[0]: Population("kl", _rarely(0.05, 1.0, 0.02), 0.069),
    "CLIP score, normal 30 ± 3": Population("clip_score", lambda s, at: s.normal(30, 3, at), 30.0),
    "CLIP score, 2 % of them at 15": Population("clip_score", lambda s, at: np.where(s.random(at) < 0.02, 15, s.normal(30, 3, at)), 29.7),
    "HPSv2, normal 0.27 ± 0.02": Population("hpsv2", lambda s, at: s.normal(0.27, 0.02, at), 0.27),
    "ImageReward, 0.8 ± 0.5, at 30 % of seeds −0.9": Population(
        "image_reward", lambda s, at: s.normal(np.where(s.random(at) < 0.3, -0.9, 0.8), 0.5), 0.29),
}  # fmt: skip
DIFFERENCES: Mapping[str, Population] = {
    "color consistency, everything lost at 2 % of seeds": Population("color_consistency", _rarely(0.02, -1.0, 0.0), -0.02),
    "color consistency, a quarter lost at 10 %": Population("color_consistency", _rarely(0.1, -0.25, 0.0), -0.025),
    "class, 3 % lost and 3 % gained": Population(
        "class_accuracy", lambda s, at: s.choice([-1.0, 0.0, 1.0], p=[0.03, 0.94, 0.03], size=at), 0.0),
    "color consistency, both of four answers right in 95 %": Population(
        "color_consistency", lambda s, at: (s.binomial(4, 0.95, at) - s.binomial(4, 0.95, at)) / 4, 0.0),
    "CLIP score, normal ± 2": Population("clip_score", lambda s, at: s.normal(-0.5, 2, at), -0.5),
    "prompt, 5 % lost and 2 % gained": Population(
        "prompt_score", lambda s, at: s.choice([-1.0, 0.0, 1.0], p=[0.05, 0.93, 0.02], size=at), -0.03),
    "DPG-Bench, both of 12 questions yes in 85 %": Population(
        "dpg", lambda s, at: (s.binomial(12, 0.85, at) - s.binomial(12, 0.85, at)) / 12, 0.0),
    "HPSv2, normal ± 0.01": Population("hpsv2", lambda s, at: s.normal(-0.002, 0.01, at), -0.002),
    "ImageReward, nothing, at 25 % of seeds −1.7 ± 0.5": Population("image_reward", _now_and_then(0.25), -0.425),
    UNSEEN[1]: Population("image_reward", _now_and_then(0.1), -0.17),
}  # fmt: skip


def means_table(size: float, seed: int) -> Iterator[Row]:
    """Simulate means over seeds.

    ``reported``: fraction of samples with an interval; ``before``: coverage of the percentile bootstrap.
    """
    yield from _covered(MEANS, size, seed, lambda name: METRICS[name].within)


def differences_table(size: float, seed: int) -> Iterator[Row]:
    yield from _covered(DIFFERENCES, size, seed, lambda name: METRICS[name].apart)


def _covered(populations: Mapping[str, Population], size: float, seed: int, within: Callable[[str], tuple[float, float]]) -> Iterator[Row]:
    for name, (of, draw, mean) in populations.items():
        row: Row = {"quantity": name}
        reported, before, wide = [], [], []
        for n in SEEDS:
            data = draw(np.random.default_rng([seed, 5, n, *name.encode()]), (round(4000 * size), n))
            estimates = list(means_over_seeds(dict(enumerate(data)), dict.fromkeys(range(len(data)), within(of))).values())
            row[f"{n} seeds"] = coverage(estimates, mean)
            reported.append(sum(ends.stated for ends in estimates) / len(estimates))
            old = percentiles(data[: round(1000 * size)])
            before.append(float(np.mean((old[0] <= mean) & (mean <= old[1]))))
            wide.append(float(np.median([ends.high - ends.low for ends in estimates if ends.stated] or [math.nan])))
        yield {**row, "reported": " / ".join(f"{share:.3g}" for share in reported), "width": " / ".join(f"{w:.3g}" for w in wide),
               "before": " / ".join(f"{share:.3g}" for share in before)}


def coverage(estimates: list[Interval], truth: float) -> float:
    """Return the fraction of reported intervals that contain the truth; NaN if less than 1 % are reported."""
    covering = [ends.low <= truth <= ends.high for ends in estimates if ends.stated]
    return sum(covering) / len(covering) if len(covering) >= 0.01 * len(estimates) else math.nan


def percentiles(data: Floats) -> tuple[Floats, Floats]:
    """Return the 95 % percentile bootstrap interval of each row."""
    n = data.shape[1]
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES).T / n
    low, high = np.quantile(data @ counts, [0.025, 0.975], axis=1)
    return low, high


# -- times --------------------------------------------------------------------------------------------------------------
def _latencies(stream: Generator, rounds: int, n: int, process_bias: float) -> Floats:
    """Return times of cases (rounds, n), one process each, with 1 % noise within it and the process's bias."""
    return np.exp(stream.normal(0, process_bias, (rounds, 1)) + 0.01 * stream.standard_t(5, (rounds, n)))


def times_table(size: float, seed: int) -> Iterator[Row]:
    """Simulate speedups and latencies.

    ``stated``: confidence of a speedup's interval as the report states it; ``latency``: coverage of a process's own median.
    """
    for n in (3, 5, 10):
        row: Row = {"repeats": n}
        for process_bias in (0.0, 0.01, PROCESS_BIAS, 0.03):
            stream, rounds = np.random.default_rng([seed, 6, n, round(1000 * process_bias)]), round(4000 * size)
            above, below = (_latencies(stream, rounds, n, process_bias) for _ in range(2))
            estimates = [ratio_of_medians(a, b) for a, b in zip(above.tolist(), below.tolist(), strict=True)]
            row["stated"] = estimates[0].confidence
            row[f"process bias {100 * process_bias:g} %"] = coverage(estimates, 1.0)
        alone = [median_over_repeats(a) for a in _latencies(np.random.default_rng([seed, 7, n]), rounds, n, 0.0).tolist()]
        yield {**row, "latency, stated": alone[0].confidence, "latency": coverage(alone, 1.0)}


def faster_table(size: float, seed: int) -> Iterator[Row]:
    """Simulate pairs of equal cases; ``before``: the rule with order statistics alone."""
    for n in (3, 5, 10):
        row: Row = {"repeats": n}
        for process_bias in (0.0, 0.01, PROCESS_BIAS, 0.03):
            stream, rounds = np.random.default_rng([seed, 8, n, round(1000 * process_bias)]), round(4000 * size)
            above, below = (_latencies(stream, rounds, n, process_bias).tolist() for _ in range(2))
            ratios = [(ratio_of_medians(a, b), ratio_of_medians(b, a)) for a, b in zip(above, below, strict=True)]
            row[f"process bias {100 * process_bias:g} %"] = sum(any(map(faster, pair)) for pair in ratios) / rounds
            apart = math.exp(1.959964 * math.sqrt(2) * PROCESS_BIAS)
            row[f"before, {100 * process_bias:g} %"] = sum(any(ratio.low * apart > 1 for ratio in pair) for pair in ratios) / rounds
        yield row


# -- whole sets ---------------------------------------------------------------------------------------------------------
FEATURES = 16
OPTIONS: Mapping[str, Any] = {"kid_subset_size": 40, "kid_subsets": 10, "isc_splits": 4}


def _rows(stream: Generator, kind: str, count: int) -> Floats:
    """Return features of images that are worse than real ones, which have standard normal features."""
    rows = stream.standard_normal((count, FEATURES))
    if kind == "t, 4 degrees, all at once":
        rows /= np.sqrt(stream.chisquare(4, (count, 1)) / 2)
    elif kind == "t, 4 degrees, each":
        rows = stream.standard_t(4, (count, FEATURES)) / math.sqrt(2)
    elif kind == "exponential":
        rows = stream.exponential(1, (count, FEATURES)) - 1
    return rows * np.linspace(0.7, 1.3, FEATURES) + 0.3


def _seen(rows: Floats) -> ImageFeatures:
    values = torch.from_numpy(rows).float()
    return ImageFeatures("study-0000000000000", values, values[:, :5].contiguous())


def sets_table(size: float, seed: int) -> Iterator[Row]:
    """Simulate sets with 8 and 24 images per feature, and differences of two sets at the same seeds.

    ``reported``: fraction of sets with an interval of FID.
    """
    stream = np.random.default_rng([seed, 9])
    real = RealImages.of(_seen(stream.standard_normal((20_000, FEATURES))))
    real = replace(real, features=real.features[:300], logits=real.logits[:300])
    for kind in ("normal", "exponential", "t, 4 degrees, each", "t, 4 degrees, all at once"):
        for count in (8 * FEATURES, 24 * FEATURES):
            intervals_by_name: dict[str, list[QualityInterval]] = {}
            for _ in range(max(round(100 * size), 4)):
                rows = _rows(stream, kind, count)
                seen, other = _seen(rows), _seen(rows * 1.05 + 0.02 * stream.standard_normal(rows.shape))
                every = {**intervals(seen, real, resamples=60, **OPTIONS), "FID less another's": difference(other, seen, real, 60)}
                for name, ends in every.items():
                    intervals_by_name.setdefault(name, []).append(ends)
            reported = np.mean([not math.isnan(ends.low) for ends in intervals_by_name["fid"]])
            rates = {name: _of_sets(ends) for name, ends in intervals_by_name.items()}
            yield {"features": kind, "images": count, **rates, "reported": float(reported)}


def _of_sets(estimates: list[QualityInterval]) -> float:
    """Return the fraction of reported intervals that contain the mean of all values."""
    middle = float(np.mean([ends.value for ends in estimates]))
    covering = [ends.low <= middle <= ends.high for ends in estimates if not math.isnan(ends.low)]
    return sum(covering) / len(covering) if len(covering) >= 0.05 * len(estimates) else math.nan


def bias_table(size: float, seed: int) -> Iterator[Row]:
    """Compute the bias of FID in the number of images.

    Features are drawn without repetition from the 3000 stored ones of real scenes. ``estimated``: bias from subsets.
    """
    from cachemark.metrics.compute.presets import preset

    real, stream = preset("scene").reference, np.random.default_rng([seed, 10])
    every = real.image_features
    for count in (64, 128, 256, 384, 500, 1000, 2000):
        estimates = []
        for _ in range(max(round((8 if count < 1000 else 4) * size), 1)):
            chosen = torch.from_numpy(np.sort(stream.permutation(len(every))[:count]))
            images = replace(every, features=every.features[chosen], logits=every.logits[chosen])
            estimates.append(intervals(images, real, resamples=40, kid=False, isc=False, prc=False)["fid"])
        yield {"images": count, "images per feature": count / every.features.shape[1],
               "FID": float(np.mean([ends.value for ends in estimates])),
               "estimated": float(np.mean([ends.bias for ends in estimates]))}


# -- others -------------------------------------------------------------------------------------------------------------
def others_table(size: float, seed: int) -> Iterator[Row]:
    """Simulate the exact interval of the false-alarm rate, and the signed-rank interval of a comparison in pairs."""
    rounds = round(4000 * size)
    for nights, rate in ((30, 0.02), (365, 0.005)):
        alarms = np.random.default_rng([seed, 11, nights]).binomial(nights, rate, rounds)
        interval_of = {int(k): binomtest(int(k), nights).proportion_ci(0.95) for k in np.unique(alarms)}
        yield {"interval": f"false alarms, {100 * rate:g} % of {nights} nights", "stated": 0.95,
               "covered": float(np.mean([interval_of[int(k)].low <= rate <= interval_of[int(k)].high for k in alarms]))}
    cells, share, family = 240, 0.0005, 200  # thirty nights with eight A/A configurations each
    wrong = np.random.default_rng([seed, 13]).binomial(cells, share, rounds)
    ends = {int(k): [of_a_night(float(end), family) for end in binomtest(int(k), cells).proportion_ci(0.95)] for k in np.unique(wrong)}
    true = of_a_night(share, family)
    yield {"interval": f"false alarms of nights of {family} configurations, {100 * true:.0f} %, from {cells} A/A tests", "stated": 0.95,
           "covered": float(np.mean([ends[int(k)][0] <= true <= ends[int(k)][1] for k in wrong]))}
    for pairs in (6, 14, 24):
        low, high, sure = interval(np.random.default_rng([seed, 12, pairs]).standard_t(3, (rounds, pairs)))
        yield {"interval": f"effect of {pairs} pairs, t of 3 degrees", "stated": sure, "covered": float(np.mean((low <= 0) & (high >= 0)))}


TABLES = {"means": means_table, "differences": differences_table, "times": times_table, "faster": faster_table, "sets": sets_table,
          "bias": bias_table, "others": others_table}  # fmt: skip
