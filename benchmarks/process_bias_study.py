"""Simulate months of nights with between-process variance that lasts: how often a night alarms for nothing, and what is printed of that.

    python benchmarks/process_bias_study.py [--months 20] [--seed 17] [--page docs/results/validation.md]

Process bias is what a side of a configuration has in all pairs of a night, such as where its code lies in memory: a share drawn for each
side of each configuration, of equal configurations too, or one for each side that all of them have (*common*), every night anew or once
for a month. It is normal or Student's t of three degrees of freedom, with this standard deviation. Every month begins with an empty store;
its nights are judged as `cachemark compare` judges them: the minimum effect by the A/A tests of all nights so far, tonight's included, and
the standing by those of the last thirty. *The effect kept* is the same gate without that raise.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

import gate_page
from cachemark.core.result import Environment
from cachemark.core.units import TIME
from cachemark.core.verdicts import EQUIVALENT, IMPROVED, REGRESSED
from cachemark.gate import nights as ledger
from cachemark.gate.comparison import AA
from cachemark.stats import paired_test as pairs
from cachemark.stats.paired_test import PairRatios, Rule
from cachemark.store.rows import RunRecord, Verdict
from gate_study import FAMILY, PROFILES, Floats, paired
from pages import put

SEED, MONTHS, NIGHTS = 17, 20, 30
CONFIGS = [str(config) for config in range(FAMILY)]
EQUAL = len(ledger.equal_configs(CONFIGS))
EFFECTS = {0.03: 10, 0.10: 10}  # how much slower configurations of the last night of a month truly are, and how many
COLUMNS = ("profile", "process bias", "drawn for", "effect", "falsely regressed", "with a false alarm", "in the worst month",
           "can see after a night", "can see after a month", *(f"found of +{effect:.0%}" for effect in EFFECTS))
BEGIN, END = "<!-- written by benchmarks/process_bias_study.py -->", "<!-- end of what process_bias_study.py has written -->"
ENVIRONMENT = Environment("simulated", "simulated", "cuda", {})
NORMAL, HEAVY, COMMON = "normal", "t of 3 degrees", "normal, common"
SETTINGS = ((0.0, NORMAL, "a night"), (0.005, NORMAL, "a night"), (0.01, NORMAL, "a night"), (0.01, NORMAL, "a month"),
            (0.01, HEAVY, "a night"), (0.01, HEAVY, "a month"), (0.01, COMMON, "a night"))


@dataclass
class Month:
    """A store of nights of one profile: what A/A tests have shown so far. ``raised``: whether their process bias raises the minimum effect;
    ``shape`` of its distribution; ``found``: the share of the truly slower configurations of the last night that is found, by effect."""

    name: str
    stream: Generator
    process_bias: float
    shape: str
    lasts: str
    raised: bool = True
    equal: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    nights: list[ledger.Night] = field(default_factory=list)
    alarms: list[set[str]] = field(default_factory=list)
    deltas: list[float] = field(default_factory=list)
    delta: float = ledger.FLOOR["cuda"]
    found: dict[float, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._sides, self._aa_bias = self._drawn(), self._drawn()

    def _drawn(self) -> Floats:
        """The log ratio that process bias gives to two sides of every configuration, (configurations,)."""
        shape = 2, 1 if self.shape == COMMON else FAMILY
        heavy = self.shape == HEAVY
        sides = self.process_bias * (self.stream.standard_t(3, shape) / math.sqrt(3) if heavy else self.stream.normal(size=shape))
        return np.broadcast_to(sides[1] - sides[0], FAMILY)

    def night(self) -> None:
        """Measure and judge one more night. On the last one some configurations are truly slower."""
        number = len(self.nights)
        if self.lasts == "a night":
            self._sides, self._aa_bias = self._drawn(), self._drawn()
        truth, changed = self._sides.copy(), dict[float, list[str]]()
        for effect, many in EFFECTS.items() if number == NIGHTS - 1 else ():
            start = sum(map(len, changed.values()))
            truth[start : start + many] += math.log1p(effect)
            changed[effect] = CONFIGS[start : start + many]
        tonight = ledger.equal_configs(CONFIGS, number)
        configs = self._measured(CONFIGS, truth)
        equal = self._measured([f"{AA}{config}" for config in tonight], self._aa_bias[[int(config) for config in tonight]])
        self.equal |= {(number, name): [*config.screening, *config.fresh] for name, config in equal.items()}
        if self.raised:  # what was stored before tonight was seen at the end of the night before
            self.delta = max(ledger.FLOOR["cuda"], ledger.least_effect(self.equal, FAMILY, "cuda")[0])
        said, of_equal = self._judged(configs), self._judged(equal)
        self.alarms.append({said[config] for config in CONFIGS[sum(map(len, changed.values())) :]} - {EQUIVALENT})
        self.deltas.append(self.delta)
        self.found = {effect: float(np.mean([said[config] == REGRESSED for config in configs])) for effect, configs in changed.items()}
        rows = tuple(Verdict("", name, TIME, verdict) for name, verdict in of_equal.items())
        self.nights.append(ledger.Night(RunRecord(number, "", {"configurations": FAMILY}, "", "", "finished", ENVIRONMENT, {}), rows))

    def _measured(self, names: Sequence[str], truth: Floats) -> dict[str, PairRatios]:
        """The pairs of each configuration, as many as the rule asks for."""
        rule, noise = Rule(self.delta, FAMILY), PROFILES[self.name]
        screening, fresh = (paired(noise, self.stream, truth, count) for count in (rule.interims[-1], rule.looks[-1]))
        seen = pairs.screen(screening, rule)
        return {name: PairRatios(screening[i, : seen.pairs[i]].tolist(), fresh[i].tolist() if seen.side[i] else ())
                for i, name in enumerate(names)}

    def _judged(self, configs: Mapping[str, PairRatios]) -> dict[str, str]:
        """What is told of each configuration: what was not confirmed raises no alarm, and is not judged here, which saves time."""
        found = pairs.judge({name: config for name, config in configs.items() if config.fresh}, Rule(self.delta, FAMILY))
        alarms = {name: verdict.verdict for name, verdict in found.items() if verdict.verdict in (REGRESSED, IMPROVED)}
        return {name: alarms.get(name, EQUIVALENT) for name in configs}


def row(name: str, process_bias: float, shape: str, lasts: str, raised: bool, months: int, seed: int) -> dict[str, Any]:
    """Figures of some months. The rate that is true is that of all their nights: what is printed on the last one is compared with it."""
    held = []
    for number in range(months):
        month = Month(name, np.random.default_rng([seed, number, *name.encode()]), process_bias, shape, lasts, raised)
        for _ in range(NIGHTS):
            month.night()
        held.append(month)
    regressed, alarms = (np.array([[kind in night if kind else bool(night) for night in month.alarms[:-1]] for month in held])
                         for kind in (REGRESSED, ""))
    true, printed = float(alarms.mean()), [ledger.standing(month.nights) for month in held]
    return {
        "profile": name, "process bias": f"{process_bias:.1%}, {shape}" if process_bias else "none",
        "drawn for": lasts, "effect": "raised" if raised else "kept", "nights": alarms.size,
        "falsely regressed": float(regressed.mean()), "with a false alarm": true, "in the worst month": float(alarms.mean(axis=1).max()),
        "printed": float(np.median([standing.rate for standing in printed])),
        "interval holds it": float(np.mean([standing.low <= true <= standing.high for standing in printed])),
        "advisory": float(np.mean([standing.advisory for standing in printed])),
        "can see after a night": float(np.median([month.deltas[0] for month in held])),
        "can see after a month": float(np.median([month.deltas[-1] for month in held])),
        **{f"found of +{effect:.0%}": float(np.mean([month.found[effect] for month in held])) for effect in EFFECTS},
    }  # fmt: skip


def rows(months: int, seed: int) -> Iterator[dict[str, Any]]:
    for name in ("locked", "unlocked"):
        for process_bias, shape, lasts in SETTINGS:
            for raised in (True, False) if (process_bias, lasts) == (0.01, "a night") else (True,):
                yield row(name, process_bias, shape, lasts, raised, months, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate nights with between-process variance that lasts.")
    parser.add_argument("--months", type=int, default=MONTHS)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--page", type=Path, help="put the table into this page")
    given = parser.parse_args()
    start = time.process_time()
    made = list(rows(given.months, given.seed))
    minutes = (time.process_time() - start) / 60
    table = gate_page.markdown(made, COLUMNS)
    table = f"Seed {given.seed}, {given.months} months for each row, {minutes:.0f} minutes of one core.\n{table}"
    print(table)
    if given.page:
        put(given.page, BEGIN, END, table)


if __name__ == "__main__":
    main()
