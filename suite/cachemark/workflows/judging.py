"""Judgement of a run, by the baseline, in pairs and by known incidents; and what a person accepts: baselines and incidents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal

from ..core.errors import NothingMeasured
from ..core.result import Status
from ..core.spec import Case
from ..core.verdicts import JUDGED, REGRESSED
from ..gate import baseline_check as gate
from ..gate import baselines, incidents, upgrade
from ..gate import nights as ledger
from ..gate.baselines import CaseDifference, ListedBaseline
from ..gate.comparison import COVERAGE
from ..gate.incidents import BASELINE, PAIRS, Finding, Incident, IncidentNight
from ..gate.nights import Night
from ..gate.upgrade import EnvironmentVerdict
from ..plans import schema as plans
from ..store.db import Store
from ..store.rows import RunRecord, Verdict
from .stores import DEFAULT_STORE, reading


@dataclass(frozen=True)
class RunJudgement:
    """Judgement by the baseline, in pairs, and about the environment; each may be missing. ``standing`` says how often the test on pairs
    was wrong, ``advisory`` whether too often; ``history``: what changed over the nights, and since when."""

    comparison: gate.Comparison | None
    night: Night | None
    environment: EnvironmentVerdict | None
    standing: str
    advisory: bool
    baseline: Path | None
    history: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Verdict, ...]:
        """Rows of the baseline."""
        return self.comparison.rows if self.comparison else ()

    @property
    def by_judge(self) -> dict[str, tuple[Sequence[Verdict], Sequence[Verdict]]]:
        """All rows and those that fail, of the baseline and of the pairs."""
        found: dict[str, tuple[Sequence[Verdict], Sequence[Verdict]]] = {}
        if self.comparison:
            found[BASELINE] = self.rows, self.comparison.of(REGRESSED)
        if self.night:
            found[PAIRS] = self.night.tally.rows, self.night.tally.regressed
        return found

    @property
    def all_rows(self) -> tuple[Verdict, ...]:
        """Rows of the baseline and of the pairs."""
        return tuple(row for rows, _ in self.by_judge.values() for row in rows)

    def findings(self, cases: Mapping[str, Case], onset: str = "") -> list[Finding]:
        """The rows that fail as cells that became worse, since the commit ``onset``. ``cases``: all cases by key."""
        return [found for judge, (_, failing) in self.by_judge.items() for found in incidents.findings(failing, cases, onset, judge)]

    @property
    def cases(self) -> tuple[int, int]:
        """Number of cases of the baseline that were judged, and of all it has."""
        return self.comparison.cases if self.comparison else (0, 0)

    @property
    def exit_code(self) -> int:
        """The gravest, too little before regressed before not resolved. An advisory gate on times fails nothing by them."""
        codes = [self.comparison.exit_code] if self.comparison else []
        if self.night:
            codes.append(self.night.tally.ended(self.advisory))
        return next((code for code in (5, 4, 1, 3) if code in codes), 0)

    def summary(self) -> list[str]:
        """Lines about all of it, the baseline's first."""
        return [*(self.comparison.summary() if self.comparison else ()), *self.remarks()]

    def remarks(self) -> list[str]:
        """Lines beside the baseline's own summary: pairs, the environment, and how far the test on pairs can be trusted."""
        lines = []
        if self.night is not None:
            arms, tally = " → ".join(map(str, self.night.stated.get("arms", ()))), self.night.tally
            lines.append(f"Comparison {self.night.run.id}, {arms}: {len(tally.regressed)} regressed, {len(tally.unresolved)} not resolved.")
        if self.environment is not None and self.environment.alert:
            lines.append(str(self.environment))
        lines += self.history
        return [*lines, self.standing] if self.standing else lines


def judge(
    store: Store, run: RunRecord, path: Path | None, threshold: float = 0.15, min_coverage: float | None = None, expired: bool = False,
) -> RunJudgement:
    """A run against the baseline in ``path`` (None: the accepted one), with the newest comparison of its code with another or in another
    environment; that of two methods says nothing of a change. ``min_coverage`` is asked of both. An expired baseline raises
    NothingMeasured, unless ``expired`` ones are good enough."""
    path = path or baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan)
    held, outcomes = baselines.load(path), store.outcomes(run.id)
    if not expired:
        baselines.refuse_expired(held)
    asked = COVERAGE if min_coverage is None else min_coverage
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
    nights = ledger.nights(store, run.plan.removeprefix(ledger.COMPARISON), run.environment.machine_class)
    mine = [night for night in nights if night.run.id == run.id]
    if not mine:
        raise NothingMeasured(f"Comparison {run.id} is {run.state}: nothing was judged.", remedy="Hold it again: cachemark compare PLAN …")
    until = [night for night in nights if night.run.started <= run.started]
    standing = ledger.standing(until)
    night = replace(mine[0], min_coverage=min_coverage)
    return RunJudgement(None, night, None, str(standing), standing.advisory, None, _history(until, night))


def _history(nights: list[Night], night: Night | None) -> tuple[str, ...]:
    """Changes of the cells of a comparison over the nights up to it."""
    if night is None:
        return ()
    cells, delta = [row.label for row in night.tally.rows if row.metric == ledger.TIMED], float(night.stated.get("delta", 0.1))
    return tuple(line for cell in cells for line in ledger.told(nights, cell, delta))


@dataclass(frozen=True)
class CheckResult:
    """Judgement of a run or a comparison, and tonight's incidents; None where no register was given. ``damage``: what the store no longer
    tells of what is judged."""

    run: RunRecord
    judgement: RunJudgement
    incidents: IncidentNight | None = None
    damage: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """That of the judgement, 5 of a store that is damaged there; regressions alone fail nothing where every one of them is acknowledged
        or accepted."""
        code = 5 if self.damage else self.judgement.exit_code
        return 0 if code == 1 and self.incidents is not None and not self.incidents.failing else code

    def pages(self, table: Path) -> list[str]:
        """Lines about each incident that pages tonight, with its owners by the file ``table`` and the command that looks into it: in pairs
        where pairs found it. The path of a plan is not stored, so only one that comes with the package is named there."""
        people, name = incidents.load_owners(table), self.run.plan.removeprefix(ledger.COMPARISON)
        plan, note = (name, "") if name in plans.names() else ("PLAN", f"  (PLAN: the file of plan {name})")
        lines = []
        for incident in self.incidents.pages if self.incidents else ():
            arms = self.judgement.night.arms if self.judgement.night and incident.found_by == PAIRS else ()
            lines += incidents.told(incident, people, incidents.command(plan, incident, arms) + note)
        return lines


def check(
    store: Store | str | Path = DEFAULT_STORE, *, run: int | None = None, baseline: str | Path | None = None, threshold: float = 0.15,
    min_coverage: float | None = None, register: str | Path | None = None,
) -> CheckResult:
    """Judge a run (None: the newest) against a baseline file (None: the accepted one of its plan and machine class), together with the
    newest comparison of the same plan and code; or a comparison on its own, where ``run`` is one.

    ``threshold`` is the share by which a time, as a ratio to the same run's full cache, may change; ``min_coverage`` the share of the
    cases that must be judged (None: the usual one). ``register`` is a file of incidents, which is carried on. Raises BadBaseline where
    there is no baseline, and NothingMeasured where it has expired or the comparison broke off."""
    with reading(store) as source:
        record = source.run(run)
        if record.is_comparison:
            found = judge_comparison(source, record, min_coverage)
        else:
            found = judge(source, record, None if baseline is None else Path(baseline), threshold, min_coverage)
        runs = {record.id: record} | ({found.night.run.id: source.run(found.night.run.id)} if found.night else {})
        outcomes = [o for number in sorted(runs) for o in source.outcomes(number)]
    damage = (*(said for one in runs.values() for said in one.damage), *(o.reason for o in outcomes if o.status is Status.DAMAGED))
    if register is None:
        return CheckResult(record, found, damage=damage)
    return CheckResult(record, found, _carried_on(found, {o.case.key: o.case for o in outcomes}, Path(register), record), damage)


def _carried_on(found: RunJudgement, cases: Mapping[str, Case], register: Path, run: RunRecord) -> IncidentNight:
    """Tonight's incidents, merged into the register, which is written."""
    covered = [cases[key] for key in {r.case_key for r in found.all_rows if r.verdict in JUDGED} if key in cases]
    tonight = incidents.fold(found.findings(cases, str(run.code.get("commit") or "")[:12]), covered)
    figures = [figure for judge, (rows, _) in found.by_judge.items() for figure in incidents.judged_figures(rows, cases, judge)]
    delta = float(found.night.stated.get("delta", 0.1)) if found.night else 0.1
    merged = incidents.merge(incidents.load(register), tonight, datetime.now(UTC).date(), delta, figures)
    incidents.save(register, merged.register)
    return merged


def accept(
    how: Literal["save", "promote", "rebase"], store: str | Path = DEFAULT_STORE, *, run: int | None = None,
    root: Path = baselines.ROOT, name: str | None = None, reason: str = "", days: int = baselines.DAYS,
) -> Path:
    """Make a finished run (None: the newest) an accepted baseline below ``root`` and return its file. ``save`` writes a new one,
    ``promote`` replaces one of the same environment, ``rebase`` one of another and begins a new epoch. It judges for ``days``, 0: for
    ever. Raises BadBaseline."""
    with Store.open(store, create=False) as target:
        if how == "save":
            return baselines.save(target, run, root, name, reason=reason, days=days)
        return baselines.promote(target, run, root, name, reason=reason, days=days, upgraded=how == "rebase")


def accepted(root: Path = baselines.ROOT) -> list[ListedBaseline]:
    """Every baseline below ``root``."""
    return baselines.list_(root)


def difference(baseline: Path, store: str | Path = DEFAULT_STORE, *, run: int | None = None) -> list[CaseDifference]:
    """Differences between a baseline and a run, case by case, not judged."""
    with reading(store) as source:
        return baselines.diff(baselines.load(baseline), source.outcomes(source.run(run).id))


def known_incidents(register: Path, *, fixed: bool = False) -> list[Incident]:
    """Incidents of a register, those that are ``fixed`` only where they are asked for."""
    return [incident for incident in incidents.load(register) if fixed or incident.state != incidents.FIXED]


def acknowledge_incident(register: Path, key: str, who: str, until: date, link: str = "") -> None:
    """Write down who looks after an incident, and until when."""
    incidents.save(register, incidents.acknowledge(incidents.load(register), key, who, until, link))


def accept_incident(register: Path, key: str, who: str, link: str = "") -> None:
    """Accept an incident as it is."""
    incidents.save(register, incidents.accept(incidents.load(register), key, who, link))
