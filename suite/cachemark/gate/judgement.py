"""The verdicts on a run: by its baseline, by pairs, and the decisions of reviewers about them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.spec import Case
from ..core.units import is_metric, metric
from ..core.verdicts import ENDED, REGRESSED
from ..core.wording import count, short_commits
from ..store.rows import COMPARISON, Verdict
from .baseline_check import Comparison
from .incidents import BASELINE, PAIRS, GateRow, Incident
from .nights import GateStanding, Night

ACCEPT = "cachemark incident acknowledge KEY"  # of an incident that no register has


@dataclass(frozen=True)
class RunJudgement:
    """Verdicts by the baseline and by pairs; each may be missing.

    ``standing``: false-alarm record of the paired test; if it is too bad, times do not fail a run. ``baseline``: file of the baseline.
    ``history``: changes over the nights. ``sees``: a sentence about the smallest change of a time that the machine can resolve.
    ``decided``: acknowledged or accepted incidents by case and metric; if they cover all failing rows, the run passes. ``open_incidents``:
    lines about the others: cause, owner, suspects and commands; ``to_accept`` is the command that accepts one, by case and metric.
    ``store``: where the pairs are stored, for commands; empty for the default.
    """

    comparison: Comparison | None = None
    night: Night | None = None
    standing: GateStanding | None = None
    baseline: Path | None = None
    history: tuple[str, ...] = ()
    sees: str = ""
    decided: Mapping[tuple[str, str], Incident] = field(default_factory=dict)
    open_incidents: tuple[str, ...] = ()
    to_accept: Mapping[tuple[str, str], str] = field(default_factory=dict)
    store: str = ""

    @property
    def by_judge(self) -> dict[str, tuple[Sequence[Verdict], Sequence[Verdict]]]:
        """All rows and the failing ones, of the baseline and of the pairs."""
        rows: dict[str, tuple[Sequence[Verdict], Sequence[Verdict]]] = {}
        if self.comparison:
            rows[BASELINE] = self.comparison.rows, self.comparison.with_verdict(REGRESSED)
        if self.night:
            rows[PAIRS] = self.night.tally.rows, self.night.tally.regressed
        return rows

    @property
    def all_rows(self) -> tuple[Verdict, ...]:
        """The rows of the baseline and of the pairs."""
        return tuple(row for rows, _ in self.by_judge.values() for row in rows)

    @property
    def rows(self) -> tuple[Verdict, ...]:
        """The rows of the baseline; without one, the rows of the pairs."""
        return self.comparison.rows if self.comparison else self.all_rows

    @property
    def failing(self) -> tuple[Verdict, ...]:
        """The failing rows of the baseline and of the pairs, whatever people decided about them."""
        return tuple(row for _, rows in self.by_judge.values() for row in rows)

    @property
    def cases(self) -> tuple[int, int]:
        """The numbers of cases with a verdict and of all cases; without a baseline, of configurations."""
        if self.comparison or not self.night:
            return self.comparison.cases if self.comparison else (0, 0)
        return len(self.night.tally.covered), self.night.tally.configs

    @property
    def sides(self) -> tuple[str, ...] | None:
        """The names of the sides of the pairs; None if the rows come from a baseline."""
        return None if self.comparison or not self.night else tuple(map(str, self.night.stated.get("sides", ())))

    @property
    def command(self) -> str:
        """The command that measures the pairs again, or an empty text."""
        if self.night is None:
            return ""
        run = self.night.run
        plan = str(run.stored_plan.get("file") or run.plan.removeprefix(COMPARISON))
        only = [word for label in self.night.stated.get("only", ()) for word in ("--only", str(label))]
        return shlex.join(["cachemark", "compare", plan, *self.night.sides, *only, *self.store_option])

    @property
    def store_option(self) -> tuple[str, ...]:
        """The option that names the store, unless it is the default."""
        return ("--store", self.store) if self.store else ()

    @property
    def exit_code(self) -> int:
        """The gravest code: too little measured, regressed, not resolved (times unless the gate is advisory)."""
        codes = [self.comparison.exit_code] if self.comparison else []
        if self.night:
            codes.append(self.night.tally.ended(self.standing is not None and self.standing.advisory))
        code = next((code for code in (5, 4, 1, 3) if code in codes), 0)
        return 0 if code == 1 and all((row.case_key, row.metric) in self.decided for row in self.failing) else code

    def word(self, row: Verdict) -> str:
        """Return the verdict of a row in words; a failing row of the pairs uses the words of ``compare``."""
        return self.night.tally.word(row) if self.night and row in self.night.tally.rows else row.verdict

    def decision_on(self, row: Verdict) -> str:
        """Return the decision about a failing row in words, or nothing."""
        incident = self.decided.get((row.case_key, row.metric))
        return f"incident {incident.key}, {incident.decision}" if incident else ""

    def gate_rows(self, cases: Mapping[str, Case]) -> list[GateRow]:
        """Return all rows with their tests and cases. ``cases``: all cases by key."""
        return [GateRow(cases[row.case_key], row, judge, row in fails)
                for judge, (rows, failing) in self.by_judge.items() for fails in [set(failing)] for row in rows if row.case_key in cases]

    @property
    def headline(self) -> str:
        """The verdict, as the exit code states it, and the number of rows with it."""
        parts = [self.comparison.counts] if self.comparison else []
        if self.night:
            tally = self.night.tally
            parts.append(f"in pairs {len(tally.regressed)} regressed, {len(tally.unresolved)} not resolved")
        return f"{ENDED[self.exit_code]}: {'; '.join(parts)}."

    @property
    def in_words(self) -> str:
        """One line for a colleague: what became worse and by how much, who decided on it, and what to do."""
        failing = sorted(self.failing, key=lambda row: row.change or 0.0, reverse=True)
        if not failing and self.exit_code == 3 and self.night and (unresolved := self.night.tally.unresolved):
            return _undecided(unresolved)
        if not failing:
            return {0: "Nothing became worse.", 3: "Nothing is known to be worse, but not every value could be decided.",
                    4: "Too little was measured to decide. Measure the missing cases."}.get(
                self.exit_code, "The measurement failed. See the log of the night.")
        worst, more = failing[0], len(failing) - 1
        title = metric(worst.metric).title.lower() if is_metric(worst.metric) else worst.metric
        change = f": {title} × {worst.change:.2f}" if worst.change is not None else f" ({title})"
        incident = self.decided.get((worst.case_key, worst.metric))
        told = f"{incident.who} decided on it ({incident.decision})" if incident and incident.who else "nobody has decided on it yet"
        others = f" {count(more, 'other value')} became worse too." if more else ""
        return (f"{worst.label} became worse{change}.{others} Owner: {told}. To do: find the commit (commands below) and fix it, or "
                f"accept it with `{self.to_accept.get((worst.case_key, worst.metric), ACCEPT)} --who NAME`.")

    def summary(self) -> list[str]:
        """Return lines: verdict, resolution of the machine, open and known incidents, baseline and remarks."""
        rows_of: dict[str, list[tuple[str, str]]] = {}
        for (case, name), incident in self.decided.items():
            rows_of.setdefault(f"{incident.key}, {incident.factor} {incident.value}: {incident.decision}", []).append((case, name))
        known_lines = [f"Known incident {title} ({count(len(rows), 'row')})." for title, rows in rows_of.items()]
        if known_lines and not self.exit_code:
            known_lines.insert(0, "Every regression is acknowledged or accepted.")
        details = self.comparison.details() if self.comparison else ()
        return [self.headline, *filter(None, [self.sees]), *self.open_incidents, *known_lines, *details, *self.remarks()]

    def remarks(self) -> list[str]:
        """Return lines about pairs and the false-alarm record of their test."""
        lines = []
        if self.night is not None:
            lines.append(f"Pairs: comparison {self.night.run.id}, {' → '.join(map(short_commits, self.night.stated.get('sides', ())))}.")
        if self.night is not None and self.night.unchanged:
            lines.append("Nothing of cachemark changed between the sides: both are the same commit. Times of plug-ins are not tested; use "
                         "--versions.")
        elif self.exit_code == 3:
            lines.append(f"To decide: rerun on a quieter machine, or with a larger --minutes or --delta: {self.command}")
        return [*lines, *self.history, *([str(self.standing)] if self.standing else [])]


def _undecided(rows: Sequence[Verdict]) -> str:
    """Return one line about times without a verdict: the one that grew most so far, and what to do."""
    worst = max(rows, key=lambda row: row.change or 0.0)
    change = f" × {worst.change:.2f} so far" if worst.change is not None else ""
    name = metric(worst.metric).title.lower() if is_metric(worst.metric) else worst.metric
    others = f" {count(len(rows) - 1, 'other case')} undecided too." if len(rows) > 1 else ""
    return (f"{worst.label} is undecided: {name}{change} ({worst.reason or 'too few pairs'}).{others} Nothing is known to be worse. "
            "To do: measure more pairs (command below).")
