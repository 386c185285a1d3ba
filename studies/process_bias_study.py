"""Simulate months of nights with persistent between-process variance, and count false alarms.

    python -m studies.process_bias_study [--months 20] [--seed 17] [--page FILE]

Process bias is a relative change of the times of one side of a configuration in all pairs of a night, for example from its code's position
in memory. It is drawn for each side of each configuration, including A/A configurations, or once per side for all of them (*common*), every
night or once per month. Its distribution is normal or Student's t with three degrees of freedom, with the given standard deviation. Every
month starts with an empty store. Its nights are tested like in `cachemark compare`: the minimum effect follows from the A/A tests of all
nights so far, including tonight's, and the false-alarm record from the last thirty nights. *Kept* is the same gate without raising the
minimum effect.
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

from cachemark.core.result import Environment
from cachemark.core.units import TIME
from cachemark.core.verdicts import EQUIVALENT, IMPROVED, REGRESSED
from cachemark.gate import nights as ledger
from cachemark.gate.comparison import AA
from cachemark.stats import paired_test as pairs
from cachemark.stats.paired_test import PairRatios, Rule
from cachemark.store.rows import RunRecord, Verdict
from tools.pages import gate as gate_page
from tools.pages.writing import put

from .gate_study import FAMILY, PROFILES, Floats, paired

SEED, MONTHS, NIGHTS = 17, 20, 30
CONFIGS = [str(config) for config in range(FAMILY)]
EQUAL = len(ledger.equal_configs(CONFIGS))
EFFECTS = {0.03: 10, 0.10: 10}  # slowdown of some configurations on the last night of a month, and their number
COLUMNS = ("profile", "process bias", "drawn for", "effect", "falsely regressed", "with a false alarm", "in the worst month",
           "can see after a night", "can see after a month", *(f"found of +{effect:.0%}" for effect in EFFECTS))
BEGIN, END = "<!-- written by studies/process_bias_study.py -->", "<!-- end of what process_bias_study.py has written -->"
ENVIRONMENT = Environment("simulated", "simulated", "cuda", {})
NORMAL, HEAVY, COMMON = "normal", "t of 3 degrees", "normal, common"
SETTINGS = ((0.0, NORMAL, "a night"), (0.005, NORMAL, "a night"), (0.01, NORMAL, "a night"), (0.01, NORMAL, "a month"),
            (0.01, HEAVY, "a night"), (0.01, HEAVY, "a month"), (0.01, COMMON, "a night"))


@dataclass
class Month:
    """The nights of one profile and their A/A tests.

    ``raised``: the process bias found by A/A tests raises the minimum effect; ``shape``: distribution of the bias; ``found``: by effect,
    the fraction of slowed configurations of the last night that are found.
    """

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
        """Return the log ratio of both sides' process bias for every configuration, (configurations,)."""
        shape = 2, 1 if self.shape == COMMON else FAMILY
        heavy = self.shape == HEAVY
        sides = self.process_bias * (self.stream.standard_t(3, shape) / math.sqrt(3) if heavy else self.stream.normal(size=shape))
        return np.broadcast_to(sides[1] - sides[0], FAMILY)

    def night(self) -> None:
        """Measure and test one more night. On the last one some configurations are slower."""
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
        if self.raised:  # earlier A/A tests are in the store already
            self.delta = max(ledger.FLOOR["cuda"], ledger.least_effect(self.equal, FAMILY, "cuda")[0])
        verdicts, of_equal = self._judged(configs), self._judged(equal)
        self.alarms.append({verdicts[config] for config in CONFIGS[sum(map(len, changed.values())) :]} - {EQUIVALENT})
        self.deltas.append(self.delta)
        self.found = {effect: float(np.mean([verdicts[config] == REGRESSED for config in configs])) for effect, configs in changed.items()}
        rows = tuple(Verdict("", name, TIME, verdict) for name, verdict in of_equal.items())
        self.nights.append(ledger.Night(RunRecord(number, "", {"configurations": FAMILY}, "", "", "finished", ENVIRONMENT, {}), rows))

    def _measured(self, names: Sequence[str], truth: Floats) -> dict[str, PairRatios]:
        """Measure the pairs of each configuration that the rule requires."""
        rule, noise = Rule(self.delta, FAMILY), PROFILES[self.name]
        screening, fresh = (paired(noise, self.stream, truth, count) for count in (rule.interims[-1], rule.looks[-1]))
        screened = pairs.screen(screening, rule)
        return {name: PairRatios(screening[i, : screened.pairs[i]].tolist(), fresh[i].tolist() if screened.side[i] else ())
                for i, name in enumerate(names)}

    def _judged(self, configs: Mapping[str, PairRatios]) -> dict[str, str]:
        """Return the verdict of each configuration; without a confirmation it is not an alarm, so it is not tested."""
        verdicts = pairs.judge({name: config for name, config in configs.items() if config.fresh}, Rule(self.delta, FAMILY))
        alarms = {name: verdict.verdict for name, verdict in verdicts.items() if verdict.verdict in (REGRESSED, IMPROVED)}
        return {name: alarms.get(name, EQUIVALENT) for name in configs}


def row(name: str, process_bias: float, shape: str, lasts: str, raised: bool, months: int, seed: int) -> dict[str, Any]:
    """Simulate months and return one row. The reported false-alarm rate is compared with the rate of all nights."""
    simulated = []
    for number in range(months):
        month = Month(name, np.random.default_rng([seed, number, *name.encode()]), process_bias, shape, lasts, raised)
        for _ in range(NIGHTS):
            month.night()
        simulated.append(month)
    regressed, alarms = (np.array([[kind in night if kind else bool(night) for night in month.alarms[:-1]] for month in simulated])
                         for kind in (REGRESSED, ""))
    true, printed = float(alarms.mean()), [ledger.standing(month.nights) for month in simulated]
    return {
        "profile": name, "process bias": f"{process_bias:.1%}, {shape}" if process_bias else "none",
        "drawn for": lasts, "effect": "raised" if raised else "kept", "nights": alarms.size,
        "falsely regressed": float(regressed.mean()), "with a false alarm": true, "in the worst month": float(alarms.mean(axis=1).max()),
        "printed": float(np.median([standing.rate for standing in printed])),
        "interval holds it": float(np.mean([standing.low <= true <= standing.high for standing in printed])),
        "advisory": float(np.mean([standing.advisory for standing in printed])),
        "can see after a night": float(np.median([month.deltas[0] for month in simulated])),
        "can see after a month": float(np.median([month.deltas[-1] for month in simulated])),
        **{f"found of +{effect:.0%}": float(np.mean([month.found[effect] for month in simulated])) for effect in EFFECTS},
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
    arguments = parser.parse_args()
    start = time.process_time()
    table_rows = list(rows(arguments.months, arguments.seed))
    minutes = (time.process_time() - start) / 60
    table = gate_page.markdown(table_rows, COLUMNS)
    table = f"Seed {arguments.seed}, {arguments.months} months for each row, {minutes:.0f} minutes of one core.\n{table}"
    print(table)
    if arguments.page:
        put(arguments.page, BEGIN, END, table)


if __name__ == "__main__":
    main()
