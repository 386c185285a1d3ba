"""Simulate missed regressions and false alarms of the gate, and of the rules of other tools.

Time is simulated as log y = configuration + effect + day + process + mode + warmth + AR(1) of t-distributed noise + outliers, in three
profiles whose parameters are assumed, not measured: a GPU with locked clocks, one without, and a shared CPU. Left out: the timer's quantum
(far below all other noise), throttled pairs (the gate redoes them, so they cost time and no verdicts) and the difference between GPUs (the
gate pairs on one device; for the other rules it would be part of the day).

- ``gate``: whole nights of a family of configurations through :mod:`cachemark.stats.paired_test`, with the minimum effect chosen as on a
  real machine (``sees``, at least 2 %, on a shared CPU 10 %). Alarms are nights with any false regression.
- ``rules``: other tools' decisions on single configurations (``gate_rivals.py``); a family of m configurations has a false alarm with
  probability 1 − (1 − f)^m. Like these tools, they compare today's run with a stored one of another day. *Matched*: power if the rule's
  threshold is moved so that a family of 200 has 5 % false alarms; *equal cost*: with as many images as the gate.
- ``roc``: the gate with other minimum effects, for the charts.
- ``history``: nightly series with and without a change. The gate follows the ratio to the canary; the other rules follow absolute times.
  ``waits``: nights until the first false alarm in any of 200 unchanged series.

    python -m studies.gate_study [--quick | --full] [--only gate rules …] [--seed 0] [--json FILE] [--page FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import chi2

from cachemark.core.verdicts import EQUIVALENT, IMPROVED, INCONCLUSIVE, REGRESSED
from cachemark.stats import changepoints as history, paired_test as pairs
from cachemark.stats.paired_test import Rule
from tools.pages import gate as gate_page

from . import gate_rivals as rivals
from .history_study import may_change

Floats = NDArray[np.float64]
FAMILY, IMAGES, LONE, RHO, TAU, STICKY = 200, 8, 10, 0.3, 10.0, 0.5
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.10, 0.20)
PER_CONFIG = 1 - 0.95 ** (1 / FAMILY)  # rate per configuration that gives a family of 200 5 % false alarms


@dataclass(frozen=True)
class Noise:
    """The noise of one profile, in relative numbers.

    Standard deviations ``within`` a process, between processes (``process``) and days (``day``); ``warmth``: rise from cold to warm;
    ``mode``: probability of a slow mode of a process, and ``shift`` its slowdown; ``outliers``: probability of an outlier image, and its
    ``size``; ``freedom``: degrees of freedom of the noise within a process.
    """

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
    """Size of the simulation.

    ``nights`` of the gate; ``unchanged`` and ``changed`` configurations for each other rule; ``series`` of histories; ``wait``: nights of a
    wait for a false alarm, ``waits`` their number, and ``watched`` the series in each.
    """

    nights: int
    unchanged: int
    changed: int
    series: int
    wait: int
    waits: int
    watched: int


SIZES = {
    "quick": Size(4, 300, 100, 4, 70, 2, 10), "default": Size(1000, 20_000, 1000, 80, 500, 3, FAMILY),
    "full": Size(5000, 100_000, 10_000, 500, 1000, 20, FAMILY),
}
SCORES = rivals.scores()
TARGET = {"locked": 0.03, "unlocked": 0.05, "shared CPU": 0.20}  # the effect that a profile's curves are drawn for
COMPARED = (0.03, 0.05, 0.10, 0.20)


# -- the noise ----------------------------------------------------------------------------------------------------------
def images(noise: Noise, stream: Generator, shape: tuple[int, ...], count: int, mode: NDArray[np.bool_], warm: Floats) -> Floats:
    """Return log times of ``count`` images of processes, (*shape, count), without day and effect.

    ``warm``: number of images that ran just before.
    """
    inner = stream.standard_t(noise.freedom, (*shape, count)) * noise.within * math.sqrt((noise.freedom - 2) / noise.freedom)
    for i in range(1, count):
        inner[..., i] = RHO * inner[..., i - 1] + math.sqrt(1 - RHO**2) * inner[..., i]
    inner += noise.warmth * (1 - np.exp(-(warm[..., None] + 2 + np.arange(count)) / TAU))  # two warm-ups
    inner += (stream.random((*shape, count)) < noise.outliers) * np.abs(stream.normal(0, noise.size, (*shape, count)))
    return inner + (stream.normal(0, noise.process, shape) + mode * noise.shift)[..., None]


def paired(noise: Noise, stream: Generator, effect: Floats, count: int) -> Floats:
    """Return log ratios of pairs of configurations, (configs, count), with these effects in log ratios.

    The sides of a pair share a day; in random order, one runs on the device that the other warmed up; half of the pairs share the mode.
    """
    shape = (len(effect), count, 2)
    mode = stream.random(shape) < noise.mode
    mode[..., 1] = np.where(stream.random(shape[:2]) < STICKY, mode[..., 0], mode[..., 1])
    first = stream.random(shape[:2]) < 0.5
    warm = np.stack((first, ~first), axis=-1) * 2.0
    sides = np.median(images(noise, stream, shape, IMAGES, mode, warm), axis=-1)
    return effect[:, None] + sides[..., 1] - sides[..., 0]


def lone(noise: Noise, stream: Generator, effect: Floats, count: int) -> Floats:
    """Return times of one process per configuration, each on another day, (configs, count)."""
    shape = effect.shape
    times = images(noise, stream, shape, count, stream.random(shape) < noise.mode, np.zeros(shape))
    return np.exp(times + (effect + stream.normal(0, noise.day, shape))[:, None])


# -- our gate, as whole nights ------------------------------------------------------------------------------------------
def night(noise: Noise, stream: Generator, effect: Floats, rule: Rule) -> tuple[list[str], NDArray[np.int64]]:
    """Return the verdicts of one night's configurations, and the number of pairs of each.

    Later pairs are simulated only for configurations that need them.
    """
    ratios = paired(noise, stream, effect, rule.interims[0])
    screened = pairs.screen(ratios, rule)
    side, equal, used = screened.side, screened.equal, screened.pairs
    still = np.flatnonzero((side == 0) & ~equal)
    if still.size:
        more = np.concatenate((ratios[still], paired(noise, stream, effect[still], rule.interims[-1] - rule.interims[0])), axis=1)
        later = pairs.screen(more, rule)
        side[still], equal[still], used[still] = later.side, later.equal, later.pairs
    verdicts = [EQUIVALENT if e else INCONCLUSIVE for e in equal]
    suspects = np.flatnonzero(side)
    fresh, counted = paired(noise, stream, effect[suspects], rule.looks[-1]), np.zeros(len(effect), dtype=np.int64)
    p = np.ones((2, len(effect)))
    for row, config in zip(fresh, suspects, strict=True):
        counted[config], p[(1 - side[config]) // 2, config] = pairs.confirmed(row, int(side[config]), rule)
    adjusted = pairs.adjusted(p, rule)
    for row, config in zip(fresh, suspects, strict=True):
        p_value = float(adjusted[(1 - side[config]) // 2, config])
        verdicts[config] = pairs.verdict_of(row[: counted[config]], int(side[config]), p_value, rule)
    return verdicts, used + counted


def least_effect(name: str, stream: Generator) -> float:
    """Return the minimum effect of a profile's machine, from 400 A/A pairs, at least the allowed minimum."""
    return max(ALLOWED[name], pairs.sees(paired(PROFILES[name], stream, np.zeros(400), 1), FAMILY))


def nights(noise: Noise, stream: Generator, rule: Rule, effect: float, affected: int, count: int) -> dict[str, float]:
    """Simulate ``count`` nights of ``rule.family`` configurations; ``effect`` changes the first ``affected``."""
    truth = np.zeros(rule.family)
    truth[:affected] = math.log1p(effect)
    runs = [night(noise, stream, truth, rule) for _ in range(count)]
    outcomes = np.array([verdicts for verdicts, _ in runs])
    flagged, same = outcomes == REGRESSED, truth == 0
    false, detected = flagged[:, same], flagged[:, ~same]
    return {
        "effect": effect, "affected": affected, "family": rule.family, "delta": rule.delta, "nights": count,
        "false per configuration": float(false.mean()) if false.size else math.nan,
        "nights with a false alarm": float(false.any(axis=1).mean()),
        "false discoveries": float(np.mean(false.sum(axis=1) / np.maximum(flagged.sum(axis=1), 1))),
        "power": float(detected.mean()) if detected.size else math.nan,
        "passed though changed": float((outcomes[:, ~same] == EQUIVALENT).mean()) if detected.size else math.nan,
        "inconclusive": float((outcomes == INCONCLUSIVE).mean()), "improved": float((outcomes == IMPROVED).mean()),
        "pairs per configuration": float(np.mean([used for _, used in runs])),
    }  # fmt: skip


def gate_table(size: Size, seed: int) -> Iterator[dict[str, object]]:
    """Simulate the gate: no change in families of 1, 50 and 200; each effect in one configuration, a tenth and all."""
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


# -- other tools' rules, configuration by configuration -----------------------------------------------------------------------------------
def scored(name: str, noise: Noise, stream: Generator, effect: float, configs: int, count: int) -> Floats:
    """Return a rule's scores for configurations with this effect, from a stored run and today's, ``count`` images each."""
    score = SCORES[name]
    before = lone(noise, stream, np.zeros(configs), count)
    after = lone(noise, stream, np.full(configs, math.log1p(effect)), count)
    return np.array([score(a, b) for a, b in zip(before, after, strict=True)])


def family_rate(per_config: float) -> float:
    return 1 - (1 - per_config) ** FAMILY


def curve(none: Floats, some: Floats) -> list[tuple[float, float]]:
    """Return points (false alarms of a family of 200, power) of a score for many parameters."""
    rates = np.linspace(0, PER_CONFIG * 20, 60)
    parameters = [max(float(np.quantile(none, 1 - rate)), 1.0) for rate in rates]
    return [(family_rate(float((none > parameter).mean())), float((some > parameter).mean())) for parameter in parameters]


def rule_table(size: Size, seed: int) -> Iterator[dict[str, object]]:
    """Yield false alarms and power of every rule in every profile.

    The power is also computed with the threshold that gives 5 % of nights with a false alarm, for ten images and for as many as the gate
    uses for both sides (these rules compare with a stored run, so all images are today's).
    """
    for name, noise in PROFILES.items():
        stream = np.random.default_rng([seed, 1, *name.encode()])
        pairs_of_a_config = float(night(noise, stream, np.zeros(2000), Rule(least_effect(name, stream), 2000))[1].mean())
        for score in SCORES:
            drawn: dict[bool, tuple[int, Floats, dict[float, Floats]]] = {}
            for many in (False, True):
                count = math.ceil(2 * pairs_of_a_config * IMAGES) if many else LONE
                none = scored(score, noise, stream, 0.0, size.unchanged, count)
                drawn[many] = count, none, {e: scored(score, noise, stream, e, size.changed, count) for e in COMPARED}
            for rule in (r for r in rivals.RULES if r.score == score):
                yield rule_row(name, rule, drawn)


def rule_row(profile: str, rule: rivals.Rule, drawn: dict[bool, tuple[int, Floats, dict[float, Floats]]]) -> dict[str, object]:
    count, none, some = drawn[rule.many]
    rate = float((none > rule.parameter).mean())
    row: dict[str, object] = {"profile": profile, "rule": rule.name, "images": count, "false per configuration": rate,
                              "false alarms of 200": family_rate(rate)}
    row |= {f"power {e:.0%}": float((some[e] > rule.parameter).mean()) for e in COMPARED}
    for many, (_, none, some) in drawn.items():
        matched = max(float(np.quantile(none, 1 - PER_CONFIG)), 1.0)
        row |= {f"matched {e:.0%}{', equal cost' if many else ''}": float((some[e] > matched).mean()) for e in COMPARED}
    row["curve"] = curve(drawn[True][1], drawn[True][2][TARGET[profile]])
    return row


def roc_table(size: Size, seed: int) -> Iterator[dict[str, object]]:
    """Yield false alarms of 200 configurations and power for one changed one, for several minimum effects."""
    for name, noise in PROFILES.items():
        stream = np.random.default_rng([seed, 3, *name.encode()])
        delta = least_effect(name, stream)
        for factor in (0.05, 0.25, 0.5, 0.75, 1.0, 1.5):
            rule = Rule(factor * delta, FAMILY)
            unchanged = nights(noise, stream, rule, 0.0, 0, max(1, size.nights // 10))
            changed = nights(noise, stream, rule, TARGET[name], 1, max(1, size.nights // 10))
            yield {"profile": name, "delta": rule.delta, "effect": TARGET[name], "power": changed["power"],
                   "false alarms of 200": unchanged["nights with a false alarm"],
                   "pairs per configuration": unchanged["pairs per configuration"]}


# -- histories ----------------------------------------------------------------------------------------------------------
NIGHTS, ONSET = 60, 36
SHAPES: dict[str, Callable[[Floats], Floats]] = {
    "none": lambda t: 0.0 * t,
    "step": lambda t: (t >= ONSET) * 1.0,
    "ramp": lambda t: np.clip((t - ONSET + 1) / 16, 0, 1),
    "spike": lambda t: (t == ONSET) * 1.0,
    "improvement": lambda t: (t >= ONSET) * -1.0,
}


def ratios_to_canary(noise: Noise, stream: Generator, series: int, count: int, alike: float = 0.0, missing: float = 0.05) -> Floats:
    """Return nightly estimates from six pairs each, (series, count), with some nights missing.

    ``alike``: correlation of neighboring nights.
    """
    values = pairs.hodges_lehmann(paired(noise, stream, np.zeros(series * count), 6)).reshape(series, count)
    for i in range(1, count):
        values[:, i] = alike * values[:, i - 1] + math.sqrt(1 - alike**2) * values[:, i]
    values[stream.random(values.shape) < missing] = math.nan
    return values


def alarms(values: Floats, delta: float) -> list[history.ChangePoint]:
    """Return the changes of one series that fail the gate."""
    return [c for segment in history.changes(values, [0] * len(values), delta) for c in segment.changes if c.gates]


def shape_row(noise: Noise, stream: Generator, delta: float, shape: str, effect: float, series: int) -> dict[str, object]:
    """Count how often a change in 60 nights is found, with its kind and night.

    Rules that use only the last night are applied at the onset.
    """
    t = np.arange(NIGHTS, dtype=np.float64)
    truth = math.log1p(effect) * SHAPES[shape](t)
    followed = ratios_to_canary(noise, stream, series, NIGHTS) + truth
    ours = [alarms(row, delta) for row in followed]
    absolute = [np.median(lone(noise, stream, truth, LONE), axis=1) for _ in range(series)]
    late = [abs(change_points[0].first - ONSET) for change_points in ours if change_points]

    def share(there: str, by: Callable[[Floats], bool], rows: Iterable[Floats]) -> float:
        return float(np.mean([by(row) for row in rows])) if not there or rivals.installed(there) else math.nan

    return {
        "shape": shape, "effect": effect, "delta": delta, "ours": float(np.mean([bool(change_points) for change_points in ours])),
        "named ramp": float(np.mean([any(c.kind == history.RAMP for c in change_points) for change_points in ours])),
        "nights off": float(np.median(late)) if late else math.nan,
        "asv publish": share("asv", rivals.by_asv_publish, absolute), "otava": share("otava", rivals.by_otava, absolute),
        "otava on our ratios": share("otava", lambda row: rivals.by_otava(row, delta, 4), [np.exp(r[~np.isnan(r)]) for r in followed]),
        "z-score": share("", rivals.by_z_score, [row[: ONSET + 1] for row in absolute]),
        "fence": share("", rivals.by_fence, [row[: ONSET + 1] for row in absolute]),
    }


def wait(values: Floats, delta: float) -> int | None:
    """Return the nights until the first alarm in any of the series, (series, nights), or None.

    Every night, the last 60 nights are tested. Most series are skipped together, since nothing in them can be significant.
    """
    for last in range(2 * history.LEAST, values.shape[1] + 1):
        recent = values[:, max(0, last - NIGHTS) : last]
        if any(alarms(row, delta) for row in recent[may_change(recent)]):
            return last
    return None


def wait_row(noise: Noise, stream: Generator, delta: float, alike: float, size: Size) -> dict[str, object]:
    """Simulate the wait until a false alarm in any unchanged series.

    ``at least``: lower 95 % bound of the mean wait. Waits are exponential, so nights without an alarm count too.
    """
    waits = [wait(ratios_to_canary(noise, stream, size.watched, size.wait, alike, missing=0.0), delta) for _ in range(size.waits)]
    simulated, came = sum(w or size.wait for w in waits), sum(w is not None for w in waits)
    return {"correlation": alike, "series": size.watched, "nights simulated": simulated, "false alarms": came,
            "nights to a false alarm": simulated / came if came else math.inf, "at least": 2 * simulated / chi2.ppf(0.95, 2 * came + 2)}


def history_table(size: Size, seed: int) -> Iterator[dict[str, object]]:
    for name, noise in PROFILES.items():
        stream = np.random.default_rng([seed, 2, *name.encode()])
        delta = least_effect(name, stream)
        yield {"profile": name, **shape_row(noise, stream, delta, "none", 0.0, 2 * size.series)}
        for shape in list(SHAPES)[1:]:
            for effect in EFFECTS[2:]:
                yield {"profile": name, **shape_row(noise, stream, delta, shape, effect, size.series)}


def wait_table(size: Size, seed: int) -> Iterator[dict[str, object]]:
    for name, noise in PROFILES.items():
        stream = np.random.default_rng([seed, 4, *name.encode()])
        delta = least_effect(name, stream)
        for alike in (0.0, RHO):
            yield {"profile": name, "delta": delta, **wait_row(noise, stream, delta, alike, size)}


# -- all of it ----------------------------------------------------------------------------------------------------------
TABLES = {"gate": gate_table, "rules": rule_table, "roc": roc_table, "history": history_table, "waits": wait_table}


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate the regression gate and the rules of other tools.")
    how_much = parser.add_mutually_exclusive_group()
    how_much.add_argument("--quick", action="store_const", const="quick", dest="size", help="seconds: to see that it runs")
    how_much.add_argument("--full", action="store_const", const="full", dest="size", help="hours")
    parser.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="store all values in this file; tables not in --only are taken from it")
    parser.add_argument("--page", type=Path, help="put the tables into this page, and the charts next to it")
    arguments = parser.parse_args()
    size = SIZES[arguments.size or "default"]
    results: dict[str, Any] = json.loads(arguments.json.read_text(encoding="utf-8")) if arguments.json and arguments.json.is_file() else {}
    for name in arguments.only:
        start = time.process_time()
        results[name] = list(TABLES[name](size, arguments.seed))
        results.setdefault("seconds", {})[name] = round(time.process_time() - start)
        print(f"\n## {name} ({results['seconds'][name]} s)\n{gate_page.markdown(results[name])}", flush=True)
    if arguments.only:
        results |= {"seed": arguments.seed, "size": asdict(size)}
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if arguments.page:
        gate_page.write(arguments.page, results)


if __name__ == "__main__":
    main()
