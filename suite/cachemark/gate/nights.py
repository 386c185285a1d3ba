"""Earlier comparisons in the store: nights, A/A alarms, and the false-alarm record of the gate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import scipy

from ..core.facts import ProcessBias
from ..core.result import Outcome
from ..core.spec import Case
from ..core.units import TIME, metric
from ..core.verdicts import IMPROVED, NOT_COMPARED, REGRESSED
from ..core.wording import count, percent, short_commits
from ..stats import changepoints as history
from ..stats.paired_test import FLOOR, log_ratios, sees
from ..stats.process_bias import process_bias, process_deviation
from ..store.db import Store
from ..store.rows import COMPARISON, RunRecord, Verdict
from .comparison import AA, COVERAGE, OTHER_METHODS, Tally

ENOUGH = 30  # A/A pairs from which a machine's least effect is taken
WATCHED, MOST_ALARMS = 30, 3  # nights that are looked back at, and those among them with an alarm that demote the gate
MOST_EFFECT = 0.5  # beyond which the minimum effect is not raised
MOST_EQUAL = 8  # configurations that are also compared with themselves


@dataclass(frozen=True)
class Night:
    """One finished comparison: its run and verdicts.

    ``min_coverage`` overrides the coverage of the run."""

    run: RunRecord
    rows: tuple[Verdict, ...]
    min_coverage: float | None = None

    @property
    def stated(self) -> Mapping[str, Any]:
        """Its settings: sides, minimum effect, configurations."""
        return self.run.plan_json

    @property
    def sides(self) -> list[str]:
        """The options of `cachemark compare`: its sides, by their commits if they have two, and settings of their processes."""
        options = [short_commits(option) for option in self.stated.get("options", ())]
        if options and options[0] != "--commits":
            return options
        names, commits = map(str, self.stated["sides"]), [str(code.get("commit") or "")[:12] for code in self.stated.get("code", ())]
        if self.stated.get("alike") == OTHER_METHODS:
            return ["--cases", *names]
        by_commits = bool(options) or (all(commits) and len(set(commits)) == 2)
        return ["--commits", *(commits if all(commits) else names), *options[3:]] if by_commits else ["--env", *names]

    @property
    def unchanged(self) -> bool:
        """True if it compared one commit with itself."""
        commits = [code.get("commit") for code in self.stated.get("code", ())]
        return len(commits) == 2 and len(set(commits)) == 1 and self.sides[0] == "--commits"

    def holds(self, case: Case) -> bool:
        """Return whether a case was one of its configurations.

        Labels are titles, followed by conditions if several configurations share a title."""
        return any(row.label == case.title or row.label.startswith(f"{case.title}, ") for row in self.rows)

    @property
    def tally(self) -> Tally:
        """Its rows without the A/A tests, with their exit code."""
        rows = tuple(r for r in self.rows if not r.label.startswith(AA))
        required = self.stated.get("min_coverage", COVERAGE) if self.min_coverage is None else self.min_coverage
        return Tally(rows, int(self.stated.get("configurations", 0)), float(required), fail_on_change=self.stated.get("alike") == "same")

    @property
    def equal_configs(self) -> dict[str, bool]:
        """Its A/A tests that were timed or failed, and whether each raised an alarm."""
        labels = {r.label for r in self.rows if r.label.startswith(AA) and r.metric in (TIME, "status") and r.verdict != NOT_COMPARED}
        return {label: any(r.label == label and r.verdict in (REGRESSED, IMPROVED) for r in self.rows) for label in sorted(labels)}


def nights(store: Store, plan: str, machine_class: str) -> list[Night]:
    """Return finished comparisons of a plan on a machine class, oldest first, merged ones included."""
    key = (COMPARISON + plan, "finished", machine_class)
    runs = [run for run in store.runs() if (run.plan, run.state, run.environment.machine_class) == key]
    all_nights = (Night(run, tuple(store.verdicts(run.id))) for run in sorted(runs, key=lambda r: (r.started, r.id)))
    return [night for night in all_nights if night.rows]


def equal_configs(configs: Sequence[str], turn: int = 0) -> list[str]:
    """Return the configurations for A/A tests: a quarter, evenly spread, between 2 and ``MOST_EQUAL``.

    Every ``turn``, such as a night, takes the next ones, because a configuration may have the same process bias every night."""
    count = min(len(configs), max(2, min(MOST_EQUAL, len(configs) // 4)))
    return [configs[(number * len(configs) // count + turn) % len(configs)] for number in range(count)]


def aa_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes of A/A tests."""
    return [outcome for outcome in outcomes if (pair := outcome.facts.pair) and pair.configuration.startswith(AA)]


def unchanged(outcomes: Iterable[Outcome]) -> dict[tuple[int, str], list[float]]:
    """Return log ratios of A/A pairs by comparison and configuration."""
    pairs: dict[tuple[int, str, int], dict[str, Outcome]] = {}
    for outcome in aa_outcomes(outcomes):
        if outcome.ok and (place := outcome.facts.pair):
            pairs.setdefault((place.run, place.configuration, place.number), {})[place.side or ""] = outcome
    ratios: dict[tuple[int, str], list[float]] = {}
    for (run, config, _), pair in pairs.items():
        if {"before", "after"} <= pair.keys():
            (ratio,) = log_ratios([pair["before"].samples[TIME]], [pair["after"].samples[TIME]])
            ratios.setdefault((run, config), []).append(float(ratio))
    return ratios


def least_effect(equal: Mapping[tuple[int, str], Sequence[float]], family: int, device_class: str) -> tuple[float, str]:
    """Return the minimum effect for a family on a machine, and a sentence about its origin.

    ``equal``: see :func:`unchanged`."""
    floor, ratios = FLOOR.get(device_class, max(FLOOR.values())), [ratio for pairs in equal.values() for ratio in pairs]
    process_effect = largest_process_bias(equal, family)
    visible = sees(ratios, family) if len(ratios) >= ENOUGH else 0.0
    if process_effect > max(floor, visible):
        return process_effect, (f"This machine can see ≥ {100 * process_effect:.2g} %: {len(equal)} A/A samples differ by between-process "
                                f"variance that lasts a night.")
    if len(ratios) < ENOUGH:
        return floor, (f"This machine is taken to see {100 * floor:g} % and more: {len(ratios)} A/A pairs are stored, "
                       f"{ENOUGH} are needed to say it from them.")
    if math.isinf(visible):
        return MOST_EFFECT, f"This machine sees no change below 50 %: {len(ratios)} A/A pairs differ too much."
    return max(floor, visible), f"This machine can see ≥ {100 * max(floor, visible):g} % ({len(ratios)} A/A pairs)."


def largest_process_bias(equal: Mapping[tuple[int, str], Sequence[float]], family: int) -> float:
    """Return the minimum effect that the process bias of A/A tests requires, else 0.

    See :func:`unchanged` and :func:`cachemark.stats.process_bias.process_bias`."""
    return min(process_bias(list(equal.values()), family, list(equal)), MOST_EFFECT)


def shown_process_bias(store: Store, machine_class: str) -> ProcessBias | None:
    """Return the process-to-process variation that A/A pairs of a machine class have shown, None for too few pairs."""
    runs = [run for run in store.runs() if run.is_comparison and run.environment.machine_class == machine_class][:WATCHED]
    ratios = [*chain.from_iterable(unchanged(outcome for run in runs for outcome in store.outcomes(run.id)).values())]
    return ProcessBias(deviation=process_deviation(ratios), pairs=len(ratios)) if len(ratios) >= ENOUGH else None


# -- how often the gate was wrong ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GateStanding:
    """Alarms of A/A tests in recent nights.

    ``nights``: nights with A/A tests; ``alarms``: those with an alarm; ``configs``: their A/A tests; ``wrong``: those that raised an
    alarm. ``rate`` is the probability of a false alarm in a night of ``family`` configurations, with the exact 95 % interval (Clopper and
    Pearson) from ``low`` to ``high``. ``advisory``: the gate does not fail by times."""

    nights: int
    alarms: int
    configs: int
    wrong: int
    family: int
    low: float
    high: float
    advisory: bool

    @property
    def rate(self) -> float:
        """The probability of an alarm in a night of ``family`` unchanged configurations."""
        return of_a_night(self.wrong / self.configs, self.family) if self.configs else math.nan

    @property
    def sentence(self) -> str:
        """The rate in one sentence."""
        last = "night" if self.nights == 1 else count(self.nights, "night")
        return (f"A/A tests raised an alarm in {self.alarms} of the last {last} ({self.wrong} of {count(self.configs, 'A/A test')}): for "
                f"a night of {count(self.family, 'configuration')} a realised false-alarm rate of {percent(self.rate)} "
                f"({percent(self.low)} to {percent(self.high)}).")

    def __str__(self) -> str:
        if not self.nights:
            return "No A/A test is stored yet: the realised false-alarm rate is unknown."
        noisy = f" {MOST_ALARMS} such nights or more in {WATCHED}: the gate is advisory and fails nothing by times."
        return self.sentence + (noisy if self.advisory else "")


def standing(earlier: Sequence[Night]) -> GateStanding:
    """Return the false-alarm record of the gate after nights, oldest first.

    An improvement in an A/A test is also an alarm."""
    watched = [(configs, night) for night in earlier if (configs := night.equal_configs)][-WATCHED:]
    alarms = sum(any(configs.values()) for configs, _ in watched)
    verdicts = [wrong for configs, _ in watched for wrong in configs.values()]
    family = max(1, int(watched[-1][1].stated.get("configurations", 1))) if watched else 1
    low, high = scipy.stats.binomtest(sum(verdicts), len(verdicts)).proportion_ci(0.95, method="exact") if verdicts else (0.0, 1.0)
    return GateStanding(len(watched), alarms, len(verdicts), sum(verdicts), family, of_a_night(float(low), family),
                        of_a_night(float(high), family), alarms >= MOST_ALARMS)


def of_a_night(rate: float, family: int) -> float:
    """Return the rate of any alarm among ``family`` configurations, from the rate of one."""
    return 1.0 - (1.0 - rate) ** family


# -- history ------------------------------------------------------------------------------------------------------------
def series(earlier: Sequence[Night], config: str) -> tuple[list[float], list[str]]:
    """Return the nightly log cost ratios to the canary, and the environment fingerprints.

    The ratio is NaN if the configuration was not measured."""
    changes = [next((row.change for row in night.rows if row.label == config and row.metric == TIME), None) for night in earlier]
    ratios = [metric(TIME).cost_ratio(1.0, change) if change else 0.0 for change in changes]
    return [math.log(ratio) if ratio > 0 else math.nan for ratio in ratios], [night.run.environment.fingerprint for night in earlier]


def history_lines(earlier: Sequence[Night], config: str, delta: float) -> list[str]:
    """Return sentences about the newest baseline series of a configuration.

    They state regressions with the commit of their first night, and whether the nights could not show a change of ``delta``."""
    if not earlier:
        return []
    segment = history.changes(*series(earlier, config), delta, [night.run.day for night in earlier])[-1]
    worse = [change for change in segment.changes if change.size > 0]
    ends = "" if segment.stationary else ", on nights that follow no level: reported only"
    lines = [f"History of {config}: a {c.kind} of {percent(c.size, '+')} since {_when(earlier[c.first].run)}{ends}." for c in worse]
    return lines if lines or not segment.shows > delta else [f"History of {config}: {segment.blind}."]


def _when(run: RunRecord) -> str:
    commit = str(run.code.get("commit") or "")[:12]
    return f"commit {commit} ({run.started[:10]})" if commit else run.started[:10]
