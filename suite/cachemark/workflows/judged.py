"""What is said of a run by everything that judges it: the baseline, pairs, and what happened to all cells at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..gate.baseline_check import Comparison
    from ..gate.nights import Night
    from ..gate.upgrade import EnvironmentVerdict
    from ..store.db import Store
    from ..store.rows import RunRecord, Verdict


@dataclass(frozen=True)
class RunJudgement:
    """By the baseline, in pairs, and about the environment; each may be missing. ``standing`` says how often the test on pairs was wrong,
    ``advisory`` whether too often; ``history``: what changed over the nights, and since when."""

    comparison: Comparison | None
    night: Night | None
    environment: EnvironmentVerdict | None
    standing: str
    advisory: bool
    baseline: Path | None
    history: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Verdict, ...]:
        """Rows of both."""
        return (*(self.comparison.rows if self.comparison else ()), *(self.night.tally.rows if self.night else ()))

    @property
    def exit_code(self) -> int:
        """The gravest, too little before regressed before not resolved. An advisory gate on times fails nothing by them."""
        codes = [self.comparison.exit_code] if self.comparison else []
        if self.night:
            codes.append(self.night.tally.ended(self.advisory))
        return next((code for code in (5, 4, 1, 3) if code in codes), 0)

    def beside(self) -> list[str]:
        """What the baseline's own summary does not say: pairs, the environment, and how far the test on pairs can be trusted."""
        lines = []
        if self.night is not None:
            arms, tally = " → ".join(map(str, self.night.stated.get("arms", ()))), self.night.tally
            lines.append(f"Comparison {self.night.run.id}, {arms}: {len(tally.regressed)} regressed, {len(tally.unresolved)} not resolved.")
        if self.environment is not None and self.environment.alert:
            lines.append(str(self.environment))
        lines += self.history
        return [*lines, self.standing] if self.standing else lines


@dataclass(frozen=True)
class Shown:
    """A judgement as the report takes it: the rows of the baseline, and all that is said."""

    judged: RunJudgement

    @property
    def rows(self) -> tuple[Verdict, ...]:
        return self.judged.comparison.rows if self.judged.comparison else ()

    @property
    def cases(self) -> tuple[int, int]:
        """How many cases of the baseline were judged, and how many it has."""
        return self.judged.comparison.cases if self.judged.comparison else (0, 0)

    @property
    def exit_code(self) -> int:
        return self.judged.exit_code

    def summary(self) -> list[str]:
        """The baseline's lines first."""
        return [*(self.judged.comparison.summary() if self.judged.comparison else ()), *self.judged.beside()]


def judge(
    store: Store, run: RunRecord, path: Path | None, threshold: float = 0.15, min_coverage: float | None = None, expired: bool = False,
) -> RunJudgement:
    """A run against the baseline in ``path`` (None: the accepted one), with the newest comparison of its code with another or in another
    environment; that of two methods says nothing of a change. ``min_coverage`` is asked of both. An expired baseline raises
    NothingMeasured, unless ``expired`` ones are good enough."""
    from ..gate import acceptance, baselines, upgrade
    from ..gate import baseline_check as gate
    from ..gate import comparison as contest
    from ..gate import nights as ledger

    path = path or baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan)
    held, outcomes = baselines.load(path), store.outcomes(run.id)
    if not expired:
        acceptance.refuse_expired(held)
    asked = contest.COVERAGE if min_coverage is None else min_coverage
    comparison = gate.compare(held, outcomes, run.environment, threshold=threshold, min_coverage=asked, plan=run.plan)
    environment = upgrade.environment_verdict(held, outcomes, run.environment, threshold)
    nights = ledger.nights(store, run.plan, run.environment.machine_class)
    mine = [night for night in nights if night.run.code.get("hash") == run.code.get("hash") and night.stated.get("alike") != "methods"]
    standing = ledger.standing(nights)
    newest, said = replace(mine[-1], min_coverage=min_coverage) if mine else None, str(standing) if nights else ""
    return RunJudgement(comparison, newest, environment, said, standing.advisory, path, _history(nights, newest))


def judge_comparison(store: Store, run: RunRecord, min_coverage: float | None = None) -> RunJudgement:
    """A comparison on its own, of whose cells ``min_coverage`` (None: what it was held with) must be judged. Raises NothingMeasured for one
    that broke off."""
    from ..core.errors import NothingMeasured
    from ..gate import nights as ledger

    nights = ledger.nights(store, run.plan.removeprefix(ledger.PREFIX), run.environment.machine_class)
    mine = [night for night in nights if night.run.id == run.id]
    if not mine:
        raise NothingMeasured(f"Comparison {run.id} is {run.state}: nothing was judged.", remedy="Hold it again: cachemark compare PLAN …")
    until = [night for night in nights if night.run.started <= run.started]
    standing = ledger.standing(until)
    night = replace(mine[0], min_coverage=min_coverage)
    return RunJudgement(None, night, None, str(standing), standing.advisory, None, _history(until, night))


def _history(nights: list[Night], night: Night | None) -> tuple[str, ...]:
    """What the cells of a comparison went through on the nights up to it."""
    from ..gate import nights as ledger

    if night is None:
        return ()
    cells, delta = [row.label for row in night.tally.rows if row.metric == ledger.TIMED], float(night.stated.get("delta", 0.1))
    return tuple(line for cell in cells for line in ledger.told(nights, cell, delta))
