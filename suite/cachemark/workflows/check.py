"""Judgement of a run, by the baseline, in pairs and by known incidents; and what a person accepts: baselines and incidents."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Literal

from ..core.errors import NothingMeasured, Unsupported
from ..core.spec import Case
from ..core.verdicts import ENDED, JUDGED, REGRESSED
from ..core.wording import count
from ..gate import baseline_check as gate
from ..gate import baselines, incidents, upgrade
from ..gate import nights as ledger
from ..gate.baselines import CaseDifference, ListedBaseline
from ..gate.comparison import COVERAGE, OTHER_METHODS
from ..gate.incidents import BASELINE, PAIRS, Finding, Incident, IncidentNight
from ..gate.nights import Night
from ..gate.upgrade import EnvironmentVerdict
from ..plans import schema as plans
from ..store import exchange
from ..store.db import Store
from ..store.exchange import Exchange
from ..store.rows import RunRecord, Verdict
from .stores import DEFAULT_STORE, reading
from .suspects import suspects

TWO_MOMENTS = "two runs saw the machine at two moments; `cachemark compare` tests times in pairs"


@dataclass(frozen=True)
class RunJudgement:
    """Judgement by the baseline, in pairs, and about the environment; each may be missing. ``standing`` says how often the test on pairs
    was wrong, ``advisory`` whether too often; ``history``: what changed over the nights, and since when; ``decided``: the incidents that
    somebody acknowledged or accepted, by the case and the metric of rows that fail. Where those are all of them, nothing fails."""

    comparison: gate.Comparison | None
    night: Night | None
    environment: EnvironmentVerdict | None
    standing: str
    advisory: bool
    baseline: Path | None
    history: tuple[str, ...] = ()
    decided: Mapping[tuple[str, str], Incident] = field(default_factory=dict)

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

    @property
    def failing(self) -> tuple[Verdict, ...]:
        """The rows that fail, of the baseline and of the pairs."""
        return tuple(row for _, rows in self.by_judge.values() for row in rows)

    def said(self, row: Verdict) -> str:
        """Words about what somebody decided of a row that fails; empty where nobody has."""
        incident = self.decided.get((row.case_key, row.metric))
        return f"incident {incident.key}, {incident.decided}" if incident else ""

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
        code = next((code for code in (5, 4, 1, 3) if code in codes), 0)
        return 0 if code == 1 and all((row.case_key, row.metric) in self.decided for row in self.failing) else code

    def summary(self) -> list[str]:
        """Lines about all of it: what was decided about what fails, then the baseline's."""
        told: dict[str, list[tuple[str, str]]] = {}
        for (case, name), incident in self.decided.items():
            told.setdefault(f"{incident.key}, {incident.factor} {incident.value}: {incident.decided}", []).append((case, name))
        lines = [f"Known incident {said} ({count(len(rows), 'row')})." for said, rows in told.items()]
        if lines and not self.exit_code:
            lines.insert(0, f"{ENDED[0]}: every regression is acknowledged or accepted.")
        return [*lines, *(self.comparison.summary() if self.comparison else ()), *self.remarks()]

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
    store: Store, run: RunRecord, path: Path | None, threshold: float | None = None, min_coverage: float | None = None,
    expired: bool = False,
) -> RunJudgement:
    """A run against the baseline in ``path`` (None: the accepted one), with the newest comparison of its code with another or in another
    environment; that of two methods says nothing of a change. ``min_coverage`` is asked of both. Times are judged against a
    ``threshold`` where one is given or pairs cannot test them. An expired baseline raises NothingMeasured, unless ``expired`` ones are
    good enough."""
    path = path or _accepted_path(run)
    held, outcomes = baselines.load(path), store.outcomes(run.id)
    if not expired:
        baselines.refuse_expired(held)
    paired = judge_in_pairs(store, run, min_coverage)
    limit, asked = gate.THRESHOLD if threshold is None else threshold, COVERAGE if min_coverage is None else min_coverage
    comparison = gate.compare(held, outcomes, run.environment, threshold=limit, min_coverage=asked, plan=run.plan,
                              in_pairs=lambda case: "" if threshold is not None else _better(case, held, run, paired.night))
    environment = upgrade.environment_verdict(held, outcomes, run.environment, limit)
    return replace(paired, comparison=comparison, environment=environment, baseline=path)


def judge_against(store: Store, run: RunRecord, other: RunRecord) -> tuple[RunJudgement, Exchange]:
    """A run against another one of the store, of whatever plan, as far as they share cases, and that other one as the exchange file it
    would be. Bytes, tokens and figures of images are judged as against a baseline; times never are, since two runs see the machine at two
    moments. Raises NothingMeasured where they share no case, and Unsupported for a comparison, or for a run and itself."""
    if other.id == run.id:
        raise Unsupported(f"Run {run.id} does not differ from itself.", remedy="Name another run.")
    if run.is_comparison or other.is_comparison:
        raise Unsupported("A comparison in pairs has two arms of its own.", remedy="Name runs of plans.")
    stated = {"name": f"run {other.id}", "run": other.id, "plan": other.plan, "saved": other.started}
    held = exchange.load(exchange.dump(store.outcomes(other.id), other.environment, other.code, **stated), f"Run {other.id}")
    outcomes = store.outcomes(run.id)
    found = gate.compare(held, outcomes, run.environment, in_pairs=lambda case: _better(case, held, run, None) or TWO_MOMENTS)
    environment = upgrade.environment_verdict(held, outcomes, run.environment, gate.THRESHOLD)
    return RunJudgement(found, None, environment, "", False, None), held


def judge_in_pairs(store: Store, run: RunRecord, min_coverage: float | None = None) -> RunJudgement:
    """A run by the newest comparison of its code, if there is one, and by no baseline."""
    nights = ledger.nights(store, run.plan, run.environment.machine_class)
    mine = [night for night in nights if night.run.code.get("hash") == run.code.get("hash") and night.stated.get("alike") != OTHER_METHODS]
    standing = ledger.standing(nights)
    newest, said = replace(mine[-1], min_coverage=min_coverage) if mine else None, str(standing) if nights else ""
    return RunJudgement(None, newest, None, said, standing.advisory, None, _history(nights, newest))


def _accepted_path(run: RunRecord) -> Path:
    """The file of the accepted baseline of a run's plan and machine class, whether it is there or not."""
    return baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan)


def _better(case: Case, baseline: Exchange, run: RunRecord, night: Night | None) -> str:
    """By what pairs the times of a case were or can be tested; empty where there are none. Pairs take two commits, clean ones, under one
    numerics fingerprint, or two environments that are both still there."""
    if night is not None and night.holds(case):
        return f"comparison {night.run.id} tests them in pairs"
    commits = [code.get("commit") for code in (baseline.code, run.code) if not code.get("dirty")]
    if len(commits) < 2 or not all(commits) or baseline.environment.fingerprint != run.environment.fingerprint:
        return ""
    then, now = (str(commit)[:12] for commit in commits)
    if then == now:
        return f"the run and the baseline are of one commit, {now}"
    plan, note = _as_commands_name(run)
    return f"test them in pairs with: cachemark compare {shlex.quote(plan)} --commits {then} {now}{note}"


def _as_commands_name(run: RunRecord) -> tuple[str, str]:
    """The plan of a run as commands name it: its file where the store knows one, else its name if it comes with the package; else a
    stand-in and a note."""
    name, file = run.plan.removeprefix(ledger.COMPARISON), str(run.stored_plan.get(plans.FILE) or "")
    if file or name in plans.names():
        return file or name, ""
    return "PLAN", f"  (PLAN: the file of plan {name})"


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
    """Judgement of a run or a comparison, tonight's incidents, None where no register was given, and the baseline that was ``proposed``
    where there was none; ``nights``: finished runs of the plan on this class
    of machine up to this one, the newest first."""

    run: RunRecord
    judgement: RunJudgement
    incidents: IncidentNight | None = None
    proposed: Path | None = None
    nights: tuple[RunRecord, ...] = ()

    @property
    def exit_code(self) -> int:
        """That of the judgement; regressions alone fail nothing where every one of them is acknowledged
        or accepted."""
        code = self.judgement.exit_code
        return 0 if code == 1 and self.incidents is not None and not self.incidents.failing else code

    def pages(self, table: Path) -> list[str]:
        """Lines about each incident that pages tonight, with its owners by the file ``table``, the commits since the last night without it,
        and the commands that look into it: in pairs where pairs found it, or where there are two commits to compare."""
        people, (plan, note) = incidents.load_owners(table), _as_commands_name(self.run)
        lines = []
        for incident in self.incidents.pages if self.incidents else ():
            arms = self.judgement.night.arms if self.judgement.night and incident.found_by == PAIRS else ()
            among = suspects(incident, self.nights)
            if among is None:
                lines += incidents.told(incident, people, incidents.command(plan, incident, arms) + note)
                continue
            again = incidents.command(plan, incident, arms or ("--commits", among.good, among.bad))
            find = among.bisect(plan, incident.cells[0])
            lines += incidents.told(incident, people, again + note, among.said, among.shown, find + note)
        return lines


def chosen(store: Store, number: int | None) -> RunRecord:
    """The run of that number, or the newest that is no comparison. NothingMeasured where there is none, with what can be done with the
    comparisons that the store holds instead."""
    if number is None and (held := store.runs()) and all(run.is_comparison for run in held):
        newest, many = held[0], count(len(held), "comparison")
        raise NothingMeasured(f"{store.where} holds {many} and no run of a plan. The newest is {newest.id}, of {newest.plan}.",
                              remedy=f"Name it with --run: cachemark show --run {newest.id}, cachemark check --run {newest.id} or "
                                     f"cachemark report --run {newest.id}. A plan is measured with: cachemark run PLAN")
    return store.run(number)


def check(
    store: Store | str | Path = DEFAULT_STORE, *, run: int | None = None, baseline: str | Path | None = None,
    threshold: float | None = None, min_coverage: float | None = None, register: str | Path | None = None,
    propose: str | Path | None = None,
) -> CheckResult:
    """Judge a run (None: the newest) against a baseline file (None: the accepted one of its plan and machine class), together with the
    newest comparison of the same plan and code; or a comparison on its own, where ``run`` is one.

    ``threshold`` is the share by which a time, as a ratio to the same run's full cache, may change (None: the usual one, and only where
    pairs cannot test times); ``min_coverage`` the share of the cases that must be judged (None: the usual one). ``register`` is a file of
    incidents, which is carried on. Where there is no baseline, BadBaseline is raised or, with a folder to ``propose`` one in, the run is
    written there as a baseline for people to accept, and judged by a comparison of its code if there is one. Raises NothingMeasured where
    the baseline has expired or the comparison broke off."""
    with reading(store) as source:
        record, proposed = chosen(source, run), None
        if record.is_comparison:
            found = judge_comparison(source, record, min_coverage)
        elif propose is not None and baseline is None and not _accepted_path(record).exists():
            proposed = baselines.propose(source, record.id, Path(propose))
            found = judge_in_pairs(source, record, min_coverage)
        else:
            found = judge(source, record, None if baseline is None else Path(baseline), threshold, min_coverage)
        runs = _records(source, record, found)
        outcomes = [o for one in runs for o in source.outcomes(one.id)]
        nights = _nights(source, record)
    cases = {o.case.key: o.case for o in outcomes}
    tonight = None if register is None else _carried_on(found, cases, Path(register), record)
    return CheckResult(record, found, tonight, proposed, nights)


def with_decisions(found: RunJudgement, store: Store, run: RunRecord, register: Path | None) -> RunJudgement:
    """The judgement of a run with what the incidents of a register say about its rows that fail. The register is left as it is."""
    if register is None:
        return found
    told = incidents.decisions(found.findings(_cases(store, run, found)), incidents.load(register), datetime.now(UTC).date())
    return replace(found, decided=told)


def baseline_commit(store: Store | str | Path = DEFAULT_STORE, *, run: int | None = None, baseline: str | Path | None = None) -> str:
    """The commit at which the baseline of a run (None: the newest) was measured. Raises BadBaseline where there is none, and
    NothingMeasured where it was measured in no commit, or in a changed working tree."""
    with reading(store) as source:
        held = baselines.load(baseline or _accepted_path(chosen(source, run)))
    if held.code.get("dirty") or not (commit := str(held.code.get("commit") or "")):
        raise NothingMeasured(f"{held.source} was measured in no commit, or in a changed working tree: there is nothing to compare with.",
                              remedy="Promote a run of a commit: cachemark baseline promote --reason …")
    return commit


def _cases(store: Store, run: RunRecord, found: RunJudgement) -> dict[str, Case]:
    """All cases of a run and of the comparison beside it, by key."""
    return {o.case.key: o.case for record in _records(store, run, found) for o in store.outcomes(record.id)}


def _records(store: Store, run: RunRecord, found: RunJudgement) -> list[RunRecord]:
    """A run and the comparison beside it, the older first."""
    both = {run.id: run} | ({found.night.run.id: store.run(found.night.run.id)} if found.night else {})
    return [both[number] for number in sorted(both)]


def _nights(store: Store, run: RunRecord) -> tuple[RunRecord, ...]:
    """Finished runs of the plan of a run on its class of machine, up to it, the newest first."""
    mine = run.plan, run.environment.machine_class
    return tuple(one for one in store.runs()
                 if one.id <= run.id and (one.plan, one.environment.machine_class) == mine and one.state == "finished")


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
    """Make a finished run (None: the newest) an accepted baseline below ``root`` and return its file. ``save`` writes the first of its name
    and machine, ``promote`` replaces one of the same environment, ``rebase`` one of another and begins a new epoch. It judges for
    ``days``, 0: for ever. Raises BadBaseline."""
    with Store.open(store, create=False) as target:
        record = chosen(target, run)
        if how == "save":
            baselines.refuse_present(record, root, name)
            return baselines.save(target, record.id, root, name, reason=reason, days=days)
        return baselines.promote(target, record.id, root, name, reason=reason, days=days, upgraded=how == "rebase")


def accepted(root: Path = baselines.ROOT) -> list[ListedBaseline]:
    """Every baseline below ``root``."""
    return baselines.list_(root)


def difference(baseline: Path, store: str | Path = DEFAULT_STORE, *, run: int | None = None) -> list[CaseDifference]:
    """Differences between a baseline and a run, case by case, not judged."""
    with reading(store) as source:
        return baselines.diff(baselines.load(baseline), source.outcomes(chosen(source, run).id))


def known_incidents(register: Path, *, fixed: bool = False) -> list[Incident]:
    """Incidents of a register, those that are ``fixed`` only where they are asked for."""
    return [incident for incident in incidents.load(register) if fixed or incident.state != incidents.FIXED]


def acknowledge_incident(register: Path, key: str, who: str, until: date, link: str = "") -> None:
    """Write down who looks after an incident, and until when."""
    incidents.save(register, incidents.acknowledge(incidents.load(register), key, who, until, link))


def accept_incident(register: Path, key: str, who: str, link: str = "") -> None:
    """Accept an incident as it is."""
    incidents.save(register, incidents.accept(incidents.load(register), key, who, link))
