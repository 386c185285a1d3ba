"""Comparison with a stored baseline, as the page shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core import formatting as fmt
from ..core.units import is_metric, metric
from ..core.verdicts import CHANGED, EQUIVALENT, IMPROVED, INCONCLUSIVE, MISSING, NEW, NOT_COMPARED, REGRESSED

if TYPE_CHECKING:  # a page is made without a store
    from ..gate.judgement import RunJudgement
    from ..gate.nights import GateStanding
    from ..store.rows import Verdict

# Verdicts in the order of the table, with how they look. What is quiet is folded away.
_TONES = {
    REGRESSED: "bad", MISSING: "warn", CHANGED: "warn", INCONCLUSIVE: "warn", IMPROVED: "good",
    NOT_COMPARED: "calm", NEW: "calm", EQUIVALENT: "calm",
}


@dataclass(frozen=True)
class Conclusion:
    """Result of a comparison.

    ``lines`` are its summary, the verdict first; ``tone`` is good, warn, bad or calm; ``against`` is the baseline's name, date and reason.
    """

    tone: str
    lines: tuple[str, ...]
    judged_cases: int = 0
    known_cases: int = 0
    against: str = ""


def alarms(standing: GateStanding | None) -> Conclusion | None:
    """Return the realized false-alarm rate of the gate, None without A/A comparisons."""
    if standing is None or not standing.nights:
        return None
    text = f"Paired test: {standing.sentence}"
    if standing.advisory:
        return Conclusion("bad", (f"{text} Too many: verdicts on times are advisory.",))
    return Conclusion("calm" if standing.alarms else "good", (text,))


@dataclass(frozen=True)
class BaselineComparison:
    """Verdict on one metric of one case."""

    entry: Verdict

    @property
    def title(self) -> str:
        name = self.entry.metric
        return metric(name).title if is_metric(name) else name.replace("_", " ")

    @property
    def tone(self) -> str:
        return _TONES.get(self.entry.verdict, "warn")

    @property
    def here(self) -> bool:
        """True if the case is in this run and can be linked."""
        return self.entry.verdict != MISSING or self.entry.metric != "status"

    @property
    def texts(self) -> tuple[str, str]:
        """Both values as text."""
        return self._value_text(self.entry.then), self._value_text(self.entry.now)

    @property
    def movement(self) -> str:
        """Both values, or one if the printed digits do not differ; empty without both."""
        if self.entry.then is None or self.entry.now is None:
            return ""
        then, now = self.texts
        return f"{then} → {now}" if then != now else now

    @property
    def sentence(self) -> str:
        entry = self.entry
        text = f"{fmt.name(fmt.display_name(entry.label))}: {self.title} {entry.verdict.replace('_', ' ')}"
        if entry.then is None or entry.now is None or entry.then == entry.now:
            return text + (f" ({entry.reason})." if entry.reason else ".")
        moved = "" if entry.change is None else f", {fmt.percent(abs(entry.change - 1))} {'more' if entry.change > 1 else 'less'}"
        then, now = self.texts
        if then == now:
            return f"{text}, by less than the printed digits show: {now}{moved}."
        return f"{text}, from {then} to {now}{moved}."

    def _value_text(self, value: float | None) -> str:
        name = self.entry.metric
        if value is None:
            return fmt.DASH
        if not is_metric(name):
            return str(value)
        return f"{value:.3f} × full" if metric(name).relative and not self.entry.absolute else fmt.with_unit(value, name)


def conclusion(comparison: RunJudgement | None, saved: Mapping[str, Any] | None = None) -> Conclusion | None:
    """Return the conclusion of a comparison, None without one.

    ``saved`` is the baseline's metadata (name, saved, reason).
    """
    if comparison is None:
        return None
    against = ""
    if saved:
        when, reason = str(saved.get("saved", "")), str(saved.get("reason", ""))
        against = f"Baseline {fmt.name(str(saved.get('name', 'without a name')))}{f', saved {when[:10]}' if when else ''}"
        against += f": {fmt.plain(reason, 300)}." if reason else "."
    tone = {0: "good", 1: "bad"}.get(comparison.exit_code, "warn")
    compared, total = comparison.cases
    return Conclusion(tone, tuple(comparison.summary()), compared, total, against)


def changes(comparison: RunJudgement | None) -> tuple[BaselineComparison, ...]:
    """Return the rows of a comparison, regressions first."""
    if comparison is None:
        return ()
    order = {verdict: k for k, verdict in enumerate(_TONES)}
    return tuple(BaselineComparison(row) for row in sorted(comparison.rows, key=lambda row: order.get(row.verdict, 1)))
