"""Paired placing of every method in words: ``4th of 5 at 1/2 in color consistency, behind R-KV``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import formatting as fmt
from ..core.spec import shown_share
from ..core.units import compared_tokens, metric, scores
from ..core.wording import count
from ..stats.placings import Placing, Ranking, placings
from .answers import gain_in_words, named, saving_in_words
from .case_group import CaseGroup
from .report_row import MASKED, ReportRow

MOST_PLACED = 64  # methods of a budget: more have no places, since all pairs are tested and each row names all others
_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}


@dataclass(frozen=True)
class MethodPlacing:
    """Placing of a row among the methods of its budget in one metric, with all names by row."""

    row: ReportRow
    metric: str
    seeds: int
    placing: Placing
    names: dict[str, str]

    @property
    def place(self) -> str:
        """The place, such as ``2``, or ``1=`` if another method is not separable; empty if none is."""
        placing = self.placing
        if not (placing.behind or placing.ahead):
            return ""
        return f"{placing.place}{'=' if placing.tied else ''}"

    @property
    def text(self) -> str:
        """The placing as a sentence without its subject."""
        placing, budget = self.placing, shown_share(self.row.case.stated_budget)
        where = f"at {budget} in {_title(self.metric)}"
        if not self.place:
            others = "the other one" if placing.of == 2 else f"any of the other {placing.of - 1}"
            return f"not separable from {others} {where} ({count(self.seeds, 'seed')})"
        relations = (("behind", placing.behind), ("not separable from", placing.tied), ("ahead of", placing.ahead))
        stated = [f"{relation} {self._listed(keys)}" for relation, keys in relations if keys]
        return f"{_ordinal(placing.place)} of {placing.of} {where}, {'; '.join(stated)}"

    def _listed(self, keys: Sequence[str]) -> str:
        names = [self.names[key] for key in keys]
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def method_placings(groups: Sequence[CaseGroup]) -> tuple[tuple[MethodPlacing, ...], ...]:
    """Return the placings of each group's methods by budget, all from one family of tests.

    Budgets with a single method or more than ``MOST_PLACED``, and groups with random weights have none."""
    rankings = {(number, budget, name): rows for number, group in enumerate(groups) for budget in group.budgets
                for name in _compared(group) if 1 < len(rows := _rows(group, budget, name)) <= MOST_PLACED}
    placed = placings({key: _ranking(rows, key[2]) for key, rows in rankings.items()})
    by_group: list[list[MethodPlacing]] = [[] for _ in groups]
    for key, rows in rankings.items():
        names = {row.case.key: row.name for row in rows}
        by_group[key[0]] += [MethodPlacing(row, key[2], len(row.outcome.raw(key[2])), placed[key][row.case.key], names) for row in rows]
    return tuple(map(tuple, by_group))


def placing_lines(placed: Sequence[MethodPlacing]) -> list[str]:
    """Return one line per budget and metric with the places of all methods, best mean first."""
    lines: dict[str, list[str]] = {}
    for each in placed:
        where = f"{shown_share(each.row.case.stated_budget)} in {_title(each.metric)}"
        lines.setdefault(where, []).append(f"{each.row.name} {each.place or fmt.DASH}")
    return [f"Paired placing at {where}: {', '.join(places)}." for where, places in lines.items()]


def plugin_lines(group: CaseGroup, placed: Sequence[MethodPlacing]) -> tuple[tuple[str, str], ...]:
    """Return name, and speed, saving, quality and placings in words, per plug-in method and budget."""
    lines = []
    for row in group.candidates:
        if row.outcome.facts.plugin is None:
            continue
        if not row.ok:
            lines.append((named(row), f"{row.outcome.status}: {row.outcome.reason}"))
            continue
        costs = f"{gain_in_words(row.speedup) if row.speedup else 'no speedup measured'}{saving_in_words(row.saving, row.paradigm)}"
        places = "; ".join(each.text for each in placed if each.row.case.key == row.case.key) or "no other method has this budget"
        standing = fmt.plain(row.unranked) or "Quality is non-inferior to the full cache's."
        lines.append((named(row), f"{costs}. {standing} {places[:1].upper()}{places[1:]}."))
    return tuple(lines)


def _compared(group: CaseGroup) -> list[str]:
    """Return the score of single images, if any, and the comparison of tokens with the full cache."""
    if group.random or group.searched:
        return []
    scored = [name for name in scores() if any(name in row.quality for row in group.candidates)]
    return [*scored[:1], compared_tokens(masked=group.paradigm == MASKED)]


def _rows(group: CaseGroup, budget: str, name: str) -> list[ReportRow]:
    """Return the rows with the most values, best mean first."""
    fidelity = metric(name).kind == "fidelity"
    rows = [row for row in group.candidates_at(budget) if row.ok and row.outcome.raw(name) and not (fidelity and row.same_distribution)]
    seeds = max((len(row.outcome.raw(name)) for row in rows), default=0)
    lower = metric(name).better == "lower"
    return sorted((row for row in rows if len(row.outcome.raw(name)) == seeds),
                  key=lambda row: (1 if lower else -1) * (row.outcome.mean(name) or 0.0))


def _ranking(rows: Sequence[ReportRow], name: str) -> Ranking:
    """Return values, higher is better; differences of quality are bounded, fidelity counts seeds won."""
    about = metric(name)
    sign = -1.0 if about.better == "lower" else 1.0
    values = {row.case.key: [sign * value for value in row.outcome.raw(name)] for row in rows}
    return Ranking(values) if about.kind == "fidelity" else Ranking(values, about.apart[1])


def _title(name: str) -> str:
    return metric(name).title.partition(",")[0].lower()


def _ordinal(number: int) -> str:
    return f"{number}{'th' if 10 <= number % 100 <= 20 else _SUFFIXES.get(number % 10, 'th')}"
