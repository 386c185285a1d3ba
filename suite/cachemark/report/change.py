"""The comparison with a stored baseline, as the page shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..units import is_metric, metric
from . import words

# Verdicts in the order of the table, with how they look. What is quiet is folded away.
_TONES = {
    "regressed": "bad", "missing": "warn", "changed": "warn", "inconclusive": "warn", "improved": "good",
    "not_compared": "calm", "new": "calm", "equivalent": "calm",
}
_EXITS = {0: "good", 1: "bad"}


@dataclass(frozen=True)
class Conclusion:
    """The whole comparison: its summary lines, the verdict first, and how that looks (``tone``: good, warn, bad)."""

    tone: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """One metric of one case, then and now. ``ratio`` is now / then, None where it has no meaning.

    Speed is given as a ratio to the full cache of the same run.
    """

    label: str
    metric: str
    then: float | None
    now: float | None
    ratio: float | None
    verdict: str
    reason: str

    @property
    def title(self) -> str:
        """The metric's title; what is no metric (``status``, ``output_hash``) stands for itself."""
        return metric(self.metric).title if is_metric(self.metric) else self.metric.replace("_", " ")

    @property
    def tone(self) -> str:
        return _TONES.get(self.verdict, "warn")

    @property
    def loud(self) -> bool:
        """Whether a reader must see this row without asking for it."""
        return self.tone != "calm"

    @property
    def texts(self) -> tuple[str, str]:
        """Then and now in words."""
        return self._text(self.then), self._text(self.now)

    def _text(self, value: float | None) -> str:
        if value is None:
            return words.DASH
        if not is_metric(self.metric):
            return str(value)
        return words.of_full(value) if metric(self.metric).kind == "speed" else words.with_unit(value, self.metric)


def conclusion(comparison: Any) -> Conclusion | None:
    """What a ``regress.gate.Comparison`` (``exit_code``, ``summary()``) says as a whole, or None where there is none."""
    if comparison is None:
        return None
    return Conclusion(_EXITS.get(comparison.exit_code, "warn"), tuple(comparison.summary()))


def changes(comparison: Any) -> tuple[Change, ...]:
    """The rows of a comparison, regressions first, otherwise in the order given."""
    if comparison is None:
        return ()
    order = {verdict: k for k, verdict in enumerate(_TONES)}
    rows = [Change(r.label, r.metric, r.then, r.now, r.change, r.verdict, r.reason) for r in comparison.rows]
    return tuple(sorted(rows, key=lambda row: order.get(row.verdict, 1)))
