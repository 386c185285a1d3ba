"""What the gate misses and what it raises for nothing, by simulation, beside the rules that other tools use.

Time is simulated as log y = cell + effect + day + process + mode + warmth + AR(1) of t-distributed noise + outliers, in three profiles
whose parameters are assumed, not measured: a GPU with locked clocks, one without, and a shared CPU. Left out: the timer's quantum (far
below all other noise), throttled pairs (the gate redoes them, so they cost time and no verdicts) and the difference between GPUs
(the gate pairs on one device; for the other rules it would be part of the day).

- ``gate``: whole nights of a family of cells through :mod:`cachemark.regress.pairs`, the minimum effect chosen as on a real machine
  (``sees``, at least 2 %, on a shared CPU 10 %). Alarms are nights with any false regression.
- ``rules``: other tools' decisions cell by cell, asv and pytest-benchmark through their own code, the others by their formula; a family
  of m cells raises a false alarm with 1 − (1 − f)^m. They compare today's run with a stored one of another day, as these tools do.
  *Matched* is the power that is left when the rule's own threshold is moved to where a family of 200 gives 5 % false alarms.
- ``history``: nightly series with a change, and unchanged ones until the first false alarm in any of 200. Only the ratio to the canary
  is followed by the gate; asv, the z-score and the fence follow absolute times.

    python benchmarks/gate_study.py [--quick | --full] [--only gate rules history] [--seed 0] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.random import Generator
from numpy.typing import NDArray

from cachemark.regress import history, pairs
from cachemark.regress.gate import EQUIVALENT, IMPROVED, REGRESSED
from cachemark.regress.pairs import INCONCLUSIVE, Rule

Floats = NDArray[np.float64]
FAMILY, IMAGES, LONE, RHO, TAU, STICKY = 200, 8, 10, 0.3, 10.0, 0.5
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10, 0.20)
PER_CELL = 1 - 0.95 ** (1 / FAMILY)  # the rate per cell at which a family of 200 has 5 % false alarms


@dataclass(frozen=True)
class Noise:
    """One profile, shares: standard deviations within a process, between processes and between days; the rise from cold to warm; how
    often a process runs in another mode and how much slower that is; how often an image is an outlier and its size; degrees of
    freedom of the noise within a process."""

    within: float
    process: float
    day: float
    warmth: float
    mode: float
    shift: float
    outliers: float
    size: float
    freedom: float


PROFILES = {
    "locked": Noise(0.003, 0.002, 0.003, 0.003, 0.0, 0.0, 0.01, 0.03, 8),
    "unlocked": Noise(0.006, 0.006, 0.010, 0.02, 0.15, 0.04, 0.02, 0.08, 4),
    "shared CPU": Noise(0.02, 0.03, 0.05, 0.01, 0.10, 0.10, 0.05, 0.30, 3),
}
ALLOWED = {"locked": 0.02, "unlocked": 0.02, "shared CPU": 0.10}


@dataclass(frozen=True)
class Size:
    """How much is simulated: nights of the gate, cells of each other rule (unchanged, changed), histories, nights of a wait."""

    nights: int
    unchanged: int
    changed: int
    series: int
    wait: int


SIZES = {"quick": Size(4, 300, 100, 4, 70), "default": Size(1000, 20_000, 1000, 80, 365), "full": Size(5000, 100_000, 10_000, 500, 1095)}


# -- the noise ----------------------------------------------------------------------------------------------------------
def images(noise: Noise, stream: Generator, shape: tuple[int, ...], count: int, mode: NDArray[np.bool_], warm: Floats) -> Floats:
    """Log times of ``count`` images of processes, (*shape, count), day and effect left out; ``warm``: images run just before."""
    inner = stream.standard_t(noise.freedom, (*shape, count)) * noise.within * math.sqrt((noise.freedom - 2) / noise.freedom)
    for i in range(1, count):
        inner[..., i] = RHO * inner[..., i - 1] + math.sqrt(1 - RHO**2) * inner[..., i]
    inner += noise.warmth * (1 - np.exp(-(warm[..., None] + 2 + np.arange(count)) / TAU))  # two warm-ups
    inner += (stream.random((*shape, count)) < noise.outliers) * np.abs(stream.normal(0, noise.size, (*shape, count)))
    return inner + (stream.normal(0, noise.process, shape) + mode * noise.shift)[..., None]


def paired(noise: Noise, stream: Generator, effect: Floats, count: int) -> Floats:
    """Log ratios of pairs of cells with these effects (log ratios), (cells, count): the arms of a pair share a day, one runs into the
    other's warmth, in random order, and the mode sticks for half of them."""
    shape = (len(effect), count, 2)
    mode = stream.random(shape) < noise.mode
    mode[..., 1] = np.where(stream.random(shape[:2]) < STICKY, mode[..., 0], mode[..., 1])
    first = stream.random(shape[:2]) < 0.5
    warm = np.stack((first, ~first), axis=-1) * 2.0
    arms = np.median(images(noise, stream, shape, IMAGES, mode, warm), axis=-1)
    return effect[:, None] + arms[..., 1] - arms[..., 0]


def lone(noise: Noise, stream: Generator, effect: Floats, count: int) -> Floats:
    """Times of one process per cell on a day of its own, (cells, count)."""
    shape = effect.shape
    times = images(noise, stream, shape, count, stream.random(shape) < noise.mode, np.zeros(shape))
    return np.exp(times + (effect + stream.normal(0, noise.day, shape))[:, None])


# -- our gate, as whole nights ------------------------------------------------------------------------------------------
def night(noise: Noise, stream: Generator, effect: Floats, rule: Rule) -> tuple[list[str], NDArray[np.int64]]:
    """Verdicts of one night's cells and the pairs each took. Later pairs are drawn only for cells that ask for them."""
    ratios = paired(noise, stream, effect, rule.looks[0])
    seen = pairs.screen(ratios, rule)
    side, equal, used = seen.side, seen.equal, seen.pairs
    still = np.flatnonzero((side == 0) & ~equal)
    if still.size:
        more = np.concatenate((ratios[still], paired(noise, stream, effect[still], rule.looks[-1] - rule.looks[0])), axis=1)
        later = pairs.screen(more, rule)
        side[still], equal[still], used[still] = later.side, later.equal, later.pairs
    verdicts = [EQUIVALENT if e else INCONCLUSIVE for e in equal]
    suspects = np.flatnonzero(side)
    fresh = paired(noise, stream, effect[suspects], rule.fresh)
    p = np.ones((2, len(effect)))
    if suspects.size:
        p[(1 - side[suspects]) // 2, suspects] = pairs.sign_flip(fresh * side[suspects, None])
    adjusted = pairs.adjusted(p, rule)
    for row, cell in zip(fresh, suspects, strict=True):
        verdicts[cell] = pairs.verdict_of(row, int(side[cell]), float(adjusted[(1 - side[cell]) // 2, cell]), rule)
    return verdicts, used + rule.fresh * (side != 0)


def least_effect(name: str, stream: Generator) -> float:
    """The minimum effect as a machine of that profile would get it from 400 pairs of equal arms, and no less than is allowed there."""
    return max(ALLOWED[name], pairs.sees(paired(PROFILES[name], stream, np.zeros(400), 1), FAMILY))


def nights(noise: Noise, stream: Generator, rule: Rule, effect: float, affected: int, count: int) -> dict[str, float]:
    """Figures of ``count`` nights of ``rule.family`` cells, the first ``affected`` of which are changed by ``effect``."""
    truth = np.zeros(rule.family)
    truth[:affected] = math.log1p(effect)
    runs = [night(noise, stream, truth, rule) for _ in range(count)]
    said = np.array([verdicts for verdicts, _ in runs])
    flagged, same = said == REGRESSED, truth == 0
    false, found = flagged[:, same], flagged[:, ~same]
    return {
        "effect": effect, "affected": affected, "family": rule.family, "delta": rule.delta, "nights": count,
        "false per cell": float(false.mean()) if false.size else math.nan, "nights with a false alarm": float(false.any(axis=1).mean()),
        "false discoveries": float(np.mean(false.sum(axis=1) / np.maximum(flagged.sum(axis=1), 1))),
        "power": float(found.mean()) if found.size else math.nan,
        "passed though changed": float((said[:, ~same] == EQUIVALENT).mean()) if found.size else math.nan,
        "inconclusive": float((said == INCONCLUSIVE).mean()), "improved": float((said == IMPROVED).mean()),
        "pairs per cell": float(np.mean([used for _, used in runs])),
    }  # fmt: skip


def gate_table(size: Size, seed: int) -> Iterator[dict[str, object]]:
    """All settings of the gate: no change in families of 1, 50 and 200, then every effect in one cell, a tenth and all."""
    for name, noise in PROFILES.items():
        stream = np.random.default_rng([seed, *name.encode()])
        delta = least_effect(name, stream)
        for family in (1, 50, FAMILY):
            count = size.nights if family == FAMILY else max(1, size.nights // 4)
            yield {"profile": name, **nights(noise, stream, Rule(delta, family), 0.0, 0, count)}
        for effect in (*EFFECTS, -0.05):
            for affected in (1, FAMILY // 10, FAMILY):
                count = max(1, size.nights // {1: 5, FAMILY: 100}.get(affected, 20))
                yield {"profile": name, **nights(noise, stream, Rule(delta, FAMILY), effect, affected, count)}


# -- other tools' rules, cell by cell -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Competitor:
    """``score``: from a stored run and today's, (images,) each, how much slower (a ratio), 1 where the rule sees no difference;
    it is an alarm above ``knob``. ``images``: per arm, 0 for as many as the gate takes."""

    name: str
    knob: float
    images: int
    score: Callable[[Floats, Floats], float]


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def by_asv(before: Floats, after: Floats) -> float:
    """Ratio of medians where ``asv compare`` finds the samples different."""
    from asv._stats import is_different
    from asv_runner.statistics import compute_stats

    (a, about_a), (b, about_b) = (compute_stats(list(map(float, run)), 1) for run in (before, after))
    return b / a if is_different(list(before), list(after), about_a, about_b) else 1.0


def by_pytest_benchmark(field: str) -> Callable[[Floats, Floats], float]:
    """What ``--benchmark-compare-fail`` computes, as a ratio."""
    from pytest_benchmark.utils import PercentageRegressionCheck

    check = PercentageRegressionCheck(field, 0)
    figure = {"min": np.min, "median": np.median}[field]
    return lambda before, after: 1 + check.compute({field: float(figure(after))}, {field: float(figure(before))}) / 100


def by_mean(before: Floats, after: Floats) -> float:
    return float(after.mean() / before.mean())


def by_median(before: Floats, after: Floats) -> float:
    return float(np.median(after) / np.median(before))


def competitors() -> list[Competitor]:
    """Those whose code is installed, and those whose formula is all there is to them."""
    found = [Competitor("TorchBench 7 %", 1.07, LONE, by_median), Competitor("conbench pairwise 5 %", 1.05, LONE, by_mean)]
    if installed("pytest_benchmark"):
        found += [Competitor("pytest-benchmark min 5 %", 1.05, LONE, by_pytest_benchmark("min")),
                  Competitor("pytest-benchmark median 10 %", 1.10, LONE, by_pytest_benchmark("median"))]
    if installed("asv"):
        found += [Competitor("asv 1.1", 1.1, LONE, by_asv), Competitor("asv 1.05", 1.05, LONE, by_asv),
                  Competitor("asv 1.02, images of the gate", 1.02, 0, by_asv)]
    return found


def scores(rule: Competitor, noise: Noise, stream: Generator, effect: float, cells: int, count: int) -> Floats:
    before = lone(noise, stream, np.zeros(cells), count)
    after = lone(noise, stream, np.full(cells, math.log1p(effect)), count)
    return np.array([rule.score(a, b) for a, b in zip(before, after, strict=True)])


def rule_table(size: Size, seed: int) -> Iterator[dict[str, object]]:
    """Every rule in every profile: false alarms, power, and power with the threshold at which 5 % of nights have a false alarm."""
    for name, noise in PROFILES.items():
        stream = np.random.default_rng([seed, 1, *name.encode()])
        gate_images = math.ceil(6.5 * IMAGES)
        for rule in competitors():
            count = rule.images or gate_images
            none = scores(rule, noise, stream, 0.0, size.unchanged, count)
            matched = max(float(np.quantile(none, 1 - PER_CELL)), 1.0)
            row: dict[str, object] = {"profile": name, "rule": rule.name, "images per arm": count,
                                      "false per cell": float((none > rule.knob).mean()), "matched knob": matched}
            row["false alarms of 200"] = 1 - (1 - float((none > rule.knob).mean())) ** FAMILY
            for effect in (0.03, 0.05, 0.10):
                some = scores(rule, noise, stream, effect, size.changed, count)
                row[f"power {effect:.0%}"] = float((some > rule.knob).mean())
                row[f"matched {effect:.0%}"] = float((some > matched).mean())
            yield row


# -- histories ----------------------------------------------------------------------------------------------------------
NIGHTS, ONSET = 60, 36
SHAPES: dict[str, Callable[[Floats], Floats]] = {
    "step": lambda t: (t >= ONSET) * 1.0,
    "ramp": lambda t: np.clip((t - ONSET + 1) / 16, 0, 1),
    "spike": lambda t: (t == ONSET) * 1.0,
    "improvement": lambda t: (t >= ONSET) * -1.0,
}


def ratios_to_canary(noise: Noise, stream: Generator, series: int, count: int, alike: float = 0.0, missing: float = 0.05) -> Floats:
    """Nightly estimates from six pairs each, (series, count), some of the nights missing; ``alike``: correlation of neighbours."""
    values = pairs.hodges_lehmann(paired(noise, stream, np.zeros(series * count), 6)).reshape(series, count)
    for i in range(1, count):
        values[:, i] = alike * values[:, i - 1] + math.sqrt(1 - alike**2) * values[:, i]
    values[stream.random(values.shape) < missing] = math.nan
    return values


def alarms(values: Floats, delta: float) -> list[history.Change]:
    """Changes of one series that gate."""
    return [c for epoch in history.changes(values, [0] * len(values), delta) for c in epoch.changes if c.gates]


def by_asv_publish(times: Floats) -> bool:
    """Whether ``asv publish`` shows a regression, at its default of 5 %."""
    from asv.step_detect import detect_regressions, detect_steps

    return detect_regressions(detect_steps(list(map(float, times))), 0.05)[0] is not None


def by_z_score(times: Floats) -> bool:
    """The last night against the mean before it, in standard deviations of what was before: conbench's five."""
    before = times[:-1]
    return bool(times[-1] - before.mean() > 5 * before.std(ddof=1))


def by_fence(times: Floats) -> bool:
    """The last difference against the third quartile of those before and three times their spread, as rustc-perf does."""
    differences = np.abs(np.diff(np.log(times)))
    low, high = np.quantile(differences[:-1], [0.25, 0.75])
    return bool(times[-1] > times[-2] and differences[-1] > high + 3 * (high - low))


def shape_row(noise: Noise, stream: Generator, delta: float, shape: str, effect: float, series: int) -> dict[str, object]:
    """How often a change in 60 nights is found, named and placed. Rules that look at the last night alone are asked at the onset."""
    t = np.arange(NIGHTS, dtype=np.float64)
    truth = math.log1p(effect) * SHAPES[shape](t)
    ours = [alarms(row + truth, delta) for row in ratios_to_canary(noise, stream, series, NIGHTS)]
    absolute = [np.median(lone(noise, stream, truth, LONE), axis=1) for _ in range(series)]
    late = [abs(found[0].first - ONSET) for found in ours if found]
    return {
        "shape": shape, "effect": effect, "delta": delta, "ours": float(np.mean([bool(found) for found in ours])),
        "named ramp": float(np.mean([any(c.kind == history.RAMP for c in found) for found in ours])),
        "nights off": float(np.median(late)) if late else math.nan,
        "asv publish": float(np.mean([by_asv_publish(row) for row in absolute])) if installed("asv") else math.nan,
        "z-score": float(np.mean([by_z_score(row[: ONSET + 1]) for row in absolute])),
        "fence": float(np.mean([by_fence(row[: ONSET + 1]) for row in absolute])),
    }


def may_alarm(window: Floats, limit: float) -> NDArray[np.bool_]:
    """Which series, (series, nights), can have segments whose medians differ by ``limit`` at all. A median of a long segment lies
    between those of pieces that make it up, and pieces of 5 to 13 nights make up any; so this only saves time."""
    longest = min(13, window.shape[1])
    parts = [np.median(sliding_window_view(window, k, axis=1), axis=-1) for k in range(history.LEAST, longest + 1)]
    return np.ptp(np.concatenate(parts, axis=1), axis=1) >= limit


def wait(noise: Noise, stream: Generator, delta: float, alike: float, count: int, series: int = FAMILY) -> int:
    """Nights until the first false alarm in any of the series, looked at every night over the last 60; ``count`` where none came."""
    values = ratios_to_canary(noise, stream, series, count, alike, missing=0.0)
    for last in range(2 * history.LEAST, count):
        window = values[:, max(0, last - NIGHTS) : last]
        if any(alarms(row, delta) for row in window[may_alarm(window, math.log1p(delta))]):
            return last
    return count


def history_table(size: Size, seed: int) -> Iterator[dict[str, object]]:
    for name, noise in PROFILES.items():
        stream = np.random.default_rng([seed, 2, *name.encode()])
        delta = least_effect(name, stream)
        for shape in SHAPES:
            for effect in EFFECTS[2:]:
                yield {"profile": name, **shape_row(noise, stream, delta, shape, effect, size.series)}
        for alike in (0.0, RHO):
            series = FAMILY if size.wait > NIGHTS * 2 else 10
            yield {"profile": name, "correlation": alike, "series": series, "simulated nights": size.wait,
                   "nights to a false alarm": wait(noise, stream, delta, alike, size.wait, series)}


# -- printing -----------------------------------------------------------------------------------------------------------
TABLES = {"gate": gate_table, "rules": rule_table, "history": history_table}


def written(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def markdown(rows: Sequence[dict[str, object]]) -> str:
    """Tables of rows; a new one wherever the columns change."""
    lines: list[str] = []
    for i, row in enumerate(rows):
        if i == 0 or rows[i - 1].keys() != row.keys():
            lines += ["", f"| {' | '.join(row)} |", "|" + "---|" * len(row)]
        lines.append(f"| {' | '.join(map(written, row.values()))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the regression gate and the rules of other tools.")
    how_much = parser.add_mutually_exclusive_group()
    how_much.add_argument("--quick", action="store_const", const="quick", dest="size", help="seconds: to see that it runs")
    how_much.add_argument("--full", action="store_const", const="full", dest="size", help="hours")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    size, results = SIZES[given.size or "default"], {}
    for name in given.only:
        start = time.perf_counter()
        results[name] = list(TABLES[name](size, given.seed))
        print(f"\n## {name} ({time.perf_counter() - start:.0f} s)\n{markdown(results[name])}", flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump({"seed": given.seed, "size": asdict(size), **results}, file, indent=1)


if __name__ == "__main__":
    main()
