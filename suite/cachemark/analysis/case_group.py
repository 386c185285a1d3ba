"""One model under one set of conditions: the full cache, its arms, and the two reference rows of fidelity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..core.differences import differences
from ..core.result import Outcome
from ..core.spec import OWN, Case, digest
from ..stats.intervals import Interval
from .limit_flags import flagged
from .report_row import FORCED, MASKED, Mark, ReportRow, derive, figures, is_random, means, share_of_full

_REFERENCES = ("floor", "numerics")
_OF_THE_BATCH = ("batch", "seeds", "samples", "evaluation", "warmup", "repeats")  # what blocks that are compared over batches may differ in
COLLAPSED = 0.1  # precision below which images are no longer compared
SAME_LAW = "Its decoder draws other images by the same law: they are judged by their quality, and not compared seed by seed."
OTHER_SEEDS = "Not shown to agree with the full cache better than the full cache at other seeds does."


@dataclass(frozen=True)
class CaseGroup:
    """A cell of the plan. ``arms`` stand in table order: larger budgets first, then place."""

    model: str
    case: Case
    full: ReportRow | None
    arms: tuple[ReportRow, ...]
    references: tuple[ReportRow, ...]

    @cached_property
    def rows(self) -> tuple[ReportRow, ...]:
        return (*((self.full,) if self.full else ()), *self.arms, *self.references)

    @cached_property
    def budgets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.case.budget for row in self.arms))

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """Every method of the arms, in a stable order that does not depend on the figures."""
        return tuple(sorted({row.method for row in self.arms}))

    @cached_property
    def paradigm(self) -> str:
        """That of the model."""
        return next((row.paradigm for row in self.rows if row.ok), "next-token")

    @cached_property
    def ranked_by(self) -> str:
        """The metric by which places are given: the name of the FID that was measured, or empty, which means speed-up."""
        return next((found[0] for row in self.arms if (found := row.of_set("fid"))), "")

    @property
    def random(self) -> bool:
        return is_random(self.case)

    @cached_property
    def but_batch(self) -> str:
        """Names what figures over batches depend on besides the batch: not the seeds, the evaluation, the warm-up or the repeats."""
        return digest({name: value for name, value in self.case.to_json().items() if name not in (*OWN, *_OF_THE_BATCH)})

    @property
    def searched(self) -> bool:
        """True where its largest batch was searched for: the batch of its case is only the start of the search."""
        return "max_batch" in self.case.evaluation

    def arms_at(self, budget: str) -> tuple[ReportRow, ...]:
        return self._by_budget.get(budget, ())

    @cached_property
    def _by_budget(self) -> dict[str, tuple[ReportRow, ...]]:
        held: dict[str, list[ReportRow]] = {}
        for row in self.arms:
            held.setdefault(row.case.budget, []).append(row)
        return {budget: tuple(rows) for budget, rows in held.items()}

    def reference(self, role: str) -> ReportRow | None:
        """The reference row of that role if it has figures."""
        return _reference(self.references, role)


def case_groups(outcomes: Sequence[Outcome]) -> tuple[CaseGroup, ...]:
    """Outcomes grouped by model and cell, in order of appearance; reference rows join the cell they differ least from."""
    cells: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.case.role not in _REFERENCES:
            cells.setdefault((outcome.case.model, outcome.case.cell), []).append(outcome)
    joined: dict[tuple[str, str], list[Outcome]] = {key: [] for key in cells}
    for outcome in outcomes:
        if outcome.case.role in _REFERENCES:
            for key in _nearest(outcome.case, cells):
                joined.setdefault(key, []).append(outcome)
    return tuple(_section(key[0], cells.get(key, []), joined[key]) for key in joined)


def over_batches(groups: Iterable[CaseGroup]) -> list[list[CaseGroup]]:
    """Groups that differ in nothing but the batch, together."""
    families: dict[str, list[CaseGroup]] = {}
    for group in groups:
        families.setdefault(group.but_batch, []).append(group)
    return list(families.values())


def _nearest(case: Case, cells: dict[tuple[str, str], list[Outcome]]) -> list[tuple[str, str]]:
    """The cells of the same model with the fewest other fields: a reference differs in seeds, batch or dtype by its nature."""
    distance = {key: len(_other_fields(case, held[0].case)) for key, held in cells.items() if key[0] == case.model}
    if not distance:
        return [(case.model, case.cell)]
    return [key for key, far in distance.items() if far == min(distance.values())]


def _other_fields(one: Case, other: Case) -> set[str]:
    return {name.partition(".")[0] for name in differences(one.to_json(), other.to_json())} - set(OWN)


def _section(model: str, measured: list[Outcome], references: list[Outcome]) -> CaseGroup:
    baseline = next((o for o in measured if o.case.role == "baseline"), None)
    full = baseline if baseline is not None and baseline.ok else None
    order = {"floor": 0, "numerics": 1}
    held = tuple(derive(o, None) for o in sorted(references, key=lambda o: order[o.case.role]))
    named = {(k, name): values for k, o in enumerate(measured) if o.ok for name, values in figures(o, full).items()}
    known: list[dict[str, Interval]] = [{} for _ in measured]
    for (k, name), found in means(named, lambda key: key[1]).items():
        known[k][name] = found
    rows = flagged([derive(o, full, its) for o, its in zip(measured, known, strict=True)])
    arms = [_stand(row, held) for row in rows if row.outcome is not baseline]
    own = next((row for row in rows if row.outcome is baseline), None)
    first = (measured or references)[0].case
    return CaseGroup(model, baseline.case if baseline else first, own, ordered(arms), held)


def _reference(rows: Sequence[ReportRow], role: str) -> ReportRow | None:
    return next((row for row in rows if row.case.role == role and row.ok), None)


def _stand(row: ReportRow, references: Sequence[ReportRow]) -> ReportRow:
    """Set a row against floor and numerics: may it be ranked, and is it lossless?"""
    if not row.ok:
        return row
    why = _unranked(row, _reference(references, "floor"))
    lossless = why != OTHER_SEEDS and _lossless(row, _reference(references, "numerics"))  # so few seeds show no agreement at all
    told = Mark("same law, other images", "calm", why) if row.same_law else Mark("not ranked", "warn", why)
    marks = (told, *row.marks) if why and row.fidelity else row.marks
    if lossless:
        marks = (Mark("lossless on this device", "good", "Differs from the full cache no more than the full cache differs "
                      "from itself at half the batch."), *marks)
    return replace(row, unranked=why, lossless=lossless, marks=marks)


def nearness(row: ReportRow) -> Interval | None:
    """Closeness of the row's own generations to the full cache's, more being closer: agreement, or a distance with its sign turned.
    Where it has no interval its values are the ends."""
    name = "token_distance" if row.paradigm == MASKED else "token_agreement"
    found, values = row.fidelity.get(name), row.outcome.raw(name)
    if found is not None and not found.stated and values:
        found = replace(found, low=min(values), high=max(values))
    return replace(found, value=-found.value, low=-found.high, high=-found.low) if found and row.paradigm == MASKED else found


def _unranked(row: ReportRow, floor: ReportRow | None) -> str:
    """The reason not to rank a row, or empty. Its interval must lie on the better side of that of the full cache with other seeds."""
    mine = nearness(row)
    if row.same_law:
        return SAME_LAW
    if mine is None:
        return row.no_judgement or "Fidelity was not measured."
    other = nearness(floor) if floor else None
    if other is not None and mine.low <= other.high:
        return OTHER_SEEDS
    precision = row.of_set("precision")
    if precision is not None and precision[1].value < COLLAPSED:
        return f"Its images have collapsed: only {100 * precision[1].value:.0f} % resemble real ones."
    return ""


def _lossless(row: ReportRow, numerics: ReportRow | None) -> bool:
    if numerics is None:
        return False
    mine, its = nearness(row), nearness(numerics)
    if mine is None or its is None or mine.value < its.value:
        return False
    forced = FORCED[row.paradigm == MASKED]
    far, limit = row.fidelity.get(forced), numerics.fidelity.get(forced)
    return far is None or limit is None or far.value <= limit.value


def ordered(rows: list[ReportRow]) -> tuple[ReportRow, ...]:
    """Larger budgets first; in a budget: ranked (by FID where it was measured, else by speed-up), ranked without a figure, unranked, then
    without figures."""
    by_quality = any(row.of_set("fid") for row in rows)

    def rank(row: ReportRow) -> float | None:
        if by_quality:
            found = row.of_set("fid")
            return found[1].value if found else None
        return -row.speed_up.value if row.speed_up else None

    def key(row: ReportRow) -> tuple[float, bool, bool, bool, float, str]:
        place = rank(row)
        return (-share_of_full(row.case.budget), not row.ok, bool(row.unranked), place is None, place or 0.0, row.method)

    placed: list[ReportRow] = []
    before: Counter[str] = Counter()
    for row in sorted(rows, key=key):
        ranked = row.ok and not row.unranked and rank(row) is not None
        before[row.case.budget] += ranked
        placed.append(replace(row, place=before[row.case.budget] if ranked else None))
    return tuple(placed)
