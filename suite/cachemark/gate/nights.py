"""Earlier comparisons in the store: their nights, the alarms of equal arms in them, and the standing of the gate that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import binomtest

from ..core.result import Outcome
from ..core.units import metric
from ..core.verdicts import IMPROVED, REGRESSED
from ..core.wording import count, percent
from ..stats import changepoints as history
from ..stats.paired_test import log_ratios, sees
from ..store.db import Store
from ..store.rows import COMPARISON, RunRecord, Verdict
from .comparison import AA, COVERAGE, OTHER_METHODS, TIMED, Tally

ENOUGH = 30  # pairs of equal arms from which a machine's least effect is taken
WATCHED, MOST_ALARMS = 30, 3  # nights that are looked back at, and alarms in them that demote the gate
FLOOR = {"cpu": 0.10, "cuda": 0.02}  # least minimum effect of a device class


@dataclass(frozen=True)
class Night:
    """One finished comparison: its run, its verdicts, and the coverage that is asked now, if it is not the one asked then."""

    run: RunRecord
    rows: tuple[Verdict, ...]
    min_coverage: float | None = None

    @property
    def stated(self) -> Mapping[str, Any]:
        """Its settings: arms, minimum effect, cells."""
        return self.run.plan_json

    @property
    def arms(self) -> list[str]:
        """The options of `cachemark compare` that name its arms; of two commits those that they were then."""
        names, commits = map(str, self.stated["arms"]), [str(code.get("commit") or "")[:12] for code in self.stated.get("code", ())]
        if self.stated.get("alike") == OTHER_METHODS:
            return ["--arms", *names]
        return ["--commits", *commits] if all(commits) and len(set(commits)) == 2 else ["--env", *names]

    @property
    def tally(self) -> Tally:
        """Its rows without the equal arms, and how they end."""
        rows = tuple(r for r in self.rows if not r.label.startswith(AA))
        asked = self.stated.get("min_coverage", COVERAGE) if self.min_coverage is None else self.min_coverage
        return Tally(rows, int(self.stated.get("cells", 0)), float(asked), fail_on_change=self.stated.get("alike") == "same")

    @property
    def equal_arms(self) -> Verdict | None:
        """The row of its equal arms, if it had any that were timed."""
        return next((r for r in self.rows if r.label.startswith(AA) and r.metric == TIMED), None)


def nights(store: Store, plan: str, machine_class: str) -> list[Night]:
    """Finished comparisons of a plan on a machine class with their verdicts, the oldest first, wherever they were merged from."""
    wanted = (COMPARISON + plan, "finished", machine_class)
    runs = [run for run in store.runs() if (run.plan, run.state, run.environment.machine_class) == wanted]
    found = (Night(run, tuple(store.verdicts(run.id))) for run in sorted(runs, key=lambda r: (r.started, r.id)))
    return [night for night in found if night.rows]


def unchanged(outcomes: Iterable[Outcome]) -> list[float]:
    """Log ratios of the pairs of equal arms among the outcomes of comparisons."""
    pairs: dict[tuple[int, str, int], dict[str, Outcome]] = {}
    for outcome in outcomes:
        told = outcome.facts.get("pair", {})
        if outcome.ok and str(told.get("cell", "")).startswith(AA):
            pairs.setdefault((told["run"], told["cell"], told["number"]), {})[told["arm"]] = outcome
    whole = [p for p in pairs.values() if {"before", "after"} <= p.keys()]
    return [float(log_ratios([p["before"].samples[TIMED]], [p["after"].samples[TIMED]])[0]) for p in whole]


def least_effect(ratios: Sequence[float], family: int, device_class: str) -> tuple[float, str]:
    """The minimum effect for a family of cells on a machine, and the sentence that says where it comes from."""
    floor = FLOOR.get(device_class, max(FLOOR.values()))
    if len(ratios) < ENOUGH:
        return floor, (f"This machine is taken to see {100 * floor:g} % and more: {len(ratios)} pairs of equal arms are stored, "
                       f"{ENOUGH} are needed to say it from them.")
    seen = sees(ratios, family)
    if math.isinf(seen):
        return 0.5, f"This machine sees no change below 50 %: {len(ratios)} pairs of equal arms differ too much."
    return max(floor, seen), f"This machine can see ≥ {100 * max(floor, seen):g} % ({len(ratios)} pairs of equal arms)."


# -- how often the gate was wrong ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GateStanding:
    """Alarms of equal arms in the last nights. ``low`` and ``high`` are the ends of the exact 95 % interval of the rate
    (Clopper and Pearson); ``advisory``: the gate is not to be trusted, and fails nothing by times."""

    nights: int
    alarms: int
    low: float
    high: float
    advisory: bool

    def __str__(self) -> str:
        if not self.nights:
            return "Equal arms have not been compared yet: the realised false-alarm rate is unknown."
        last = "night" if self.nights == 1 else count(self.nights, "night")
        said = (f"Equal arms raised {count(self.alarms, 'alarm')} in the last {last}: a realised false-alarm rate of "
                f"{percent(self.alarms / self.nights)} ({percent(self.low)} to {percent(self.high)}).")
        noisy = f" That is {MOST_ALARMS} or more in {WATCHED}: the gate is advisory and fails nothing by times."
        return said + (noisy if self.advisory else "")


def standing(earlier: Sequence[Night]) -> GateStanding:
    """The standing of the gate after nights, the oldest first. An improvement of equal arms is an alarm as much as a regression."""
    rows = [row for night in earlier if (row := night.equal_arms) is not None][-WATCHED:]
    n, k = len(rows), sum(row.verdict in (REGRESSED, IMPROVED) for row in rows)
    low, high = binomtest(k, n).proportion_ci(0.95, method="exact") if n else (0.0, 1.0)
    return GateStanding(n, k, float(low), float(high), k >= MOST_ALARMS)


# -- history ------------------------------------------------------------------------------------------------------------
def series(earlier: Sequence[Night], cell: str, name: str = TIMED) -> tuple[list[float], list[str]]:
    """A cell night by night: log ratio of cost to the canary, NaN where it was not measured, and the environment's fingerprint."""
    found = {id(night): row.change for night in earlier for row in night.rows if row.label == cell and row.metric == name}
    ratios = (metric(name).cost_ratio(1.0, change) if (change := found.get(id(night))) else math.nan for night in earlier)
    return [math.log(ratio) if ratio > 0 else math.nan for ratio in ratios], [night.run.environment.fingerprint for night in earlier]


def told(earlier: Sequence[Night], cell: str, delta: float) -> list[str]:
    """The changes of a cell in the newest epoch that count, as sentences with the commit of the night on which each began."""
    epochs = history.changes(*series(earlier, cell), delta) if earlier else ()
    found = [change for change in (epochs[-1].changes if epochs else ()) if change.gates]
    return [f"History of {cell}: a {c.kind} of {percent(c.size, '+')} since {_when(earlier[c.first].run)}." for c in found]


def _when(run: RunRecord) -> str:
    commit = str(run.code.get("commit") or "")[:12]
    return f"commit {commit} ({run.started[:10]})" if commit else run.started[:10]
