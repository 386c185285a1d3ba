"""Check of a run: against its baseline, by pairs, and by known incidents."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ..core.errors import CachemarkError, NothingMeasured, Unsupported
from ..core.spec import Case
from ..core.units import TIME
from ..core.verdicts import ENDED, JUDGED, REGRESSED
from ..core.wording import count, on_one_line
from ..gate import baseline_check as gate
from ..gate import baselines, incidents
from ..gate import nights as ledger
from ..gate.comparison import COVERAGE, OTHER_METHODS
from ..gate.incidents import BASELINE, PAIRS, Finding, Incident, IncidentNight
from ..gate.nights import Night
from ..plans import schema as plans
from ..store import exchange
from ..store.db import Store
from ..store.exchange import Exchange
from ..store.rows import RunRecord, Verdict
from .git import commit_of, git, repository_of
from .session import DEFAULT_STORE, reading

MOST_COMMITS = 8  # subjects of commits in a report of an incident
TWO_MOMENTS = "two runs saw the machine at two moments; `cachemark compare` tests times in pairs"


@dataclass(frozen=True)
class RunJudgement:
    """Verdicts by the baseline and by pairs; each may be missing.

    ``standing``: false-alarm record of the paired test; ``advisory``: whether it is too bad to fail a run. ``history``: changes over the
    nights. ``decided``: acknowledged or accepted incidents by case and metric; if they cover all failing rows, the run passes.
    """

    comparison: gate.Comparison | None
    night: Night | None
    standing: str
    advisory: bool
    baseline: Path | None
    history: tuple[str, ...] = ()
    decided: Mapping[tuple[str, str], Incident] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Verdict, ...]:
        """Return the rows of the baseline."""
        return self.comparison.rows if self.comparison else ()

    @property
    def by_judge(self) -> dict[str, tuple[Sequence[Verdict], Sequence[Verdict]]]:
        """Return all rows and the failing ones, of the baseline and of the pairs."""
        rows: dict[str, tuple[Sequence[Verdict], Sequence[Verdict]]] = {}
        if self.comparison:
            rows[BASELINE] = self.rows, self.comparison.of(REGRESSED)
        if self.night:
            rows[PAIRS] = self.night.tally.rows, self.night.tally.regressed
        return rows

    @property
    def all_rows(self) -> tuple[Verdict, ...]:
        """Return the rows of the baseline and of the pairs."""
        return tuple(row for rows, _ in self.by_judge.values() for row in rows)

    @property
    def failing(self) -> tuple[Verdict, ...]:
        """Return the failing rows of the baseline and of the pairs."""
        return tuple(row for _, rows in self.by_judge.values() for row in rows)

    def decision_on(self, row: Verdict) -> str:
        """Return the decision about a failing row in words, or nothing."""
        incident = self.decided.get((row.case_key, row.metric))
        return f"incident {incident.key}, {incident.decided}" if incident else ""

    def findings(self, cases: Mapping[str, Case], onset: str = "") -> list[Finding]:
        """Return the failing rows as findings since the commit ``onset``. ``cases``: all cases by key."""
        return [finding for judge, (_, failing) in self.by_judge.items() for finding in incidents.findings(failing, cases, onset, judge)]

    @property
    def cases(self) -> tuple[int, int]:
        """Return the number of compared cases of the baseline, and of all its cases."""
        return self.comparison.cases if self.comparison else (0, 0)

    @property
    def exit_code(self) -> int:
        """Return the gravest code: too little measured, regressed, not resolved (times unless advisory)."""
        codes = [self.comparison.exit_code] if self.comparison else []
        if self.night:
            codes.append(self.night.tally.ended(self.advisory))
        code = next((code for code in (5, 4, 1, 3) if code in codes), 0)
        return 0 if code == 1 and all((row.case_key, row.metric) in self.decided for row in self.failing) else code

    def summary(self) -> list[str]:
        """Return lines about known incidents, then about the baseline and the remarks."""
        rows_of: dict[str, list[tuple[str, str]]] = {}
        for (case, name), incident in self.decided.items():
            rows_of.setdefault(f"{incident.key}, {incident.factor} {incident.value}: {incident.decided}", []).append((case, name))
        lines = [f"Known incident {title} ({count(len(rows), 'row')})." for title, rows in rows_of.items()]
        if lines and not self.exit_code:
            lines.insert(0, f"{ENDED[0]}: every regression is acknowledged or accepted.")
        return [*lines, *(self.comparison.summary() if self.comparison else ()), *self.remarks()]

    def remarks(self) -> list[str]:
        """Return lines about pairs and the false-alarm record of their test."""
        lines = []
        if self.night is not None:
            sides, tally = " → ".join(map(str, self.night.stated.get("sides", ()))), self.night.tally
            lines.append(f"Comparison {self.night.run.id}, {sides}: {len(tally.regressed)} regressed, "
                         f"{len(tally.unresolved)} not resolved.")
        lines += self.history
        return [*lines, self.standing] if self.standing else lines


def judge(
    store: Store, run: RunRecord, path: Path | None, threshold: float | None = None, min_coverage: float | None = None,
    expired: bool = False,
) -> RunJudgement:
    """Compare a run with a baseline (None: the accepted one) and with the newest comparison of its code.

    A comparison of two methods does not count. ``min_coverage`` applies to both. Times are tested against a ``threshold`` if one is given
    or pairs cannot test them. Raises NothingMeasured for an expired baseline unless ``expired`` ones are allowed.
    """
    path = path or accepted_path(run)
    baseline, outcomes = baselines.load(path), store.outcomes(run.id)
    if not expired:
        baselines.refuse_expired(baseline)
    paired = judge_in_pairs(store, run, min_coverage)
    limit, coverage = gate.THRESHOLD if threshold is None else threshold, COVERAGE if min_coverage is None else min_coverage
    comparison = gate.compare(baseline, outcomes, run.environment, threshold=limit, min_coverage=coverage, plan=run.plan,
                              in_pairs=lambda case: "" if threshold is not None else _better(case, baseline, run, paired.night))
    return replace(paired, comparison=comparison, baseline=path)


def judge_against(store: Store, run: RunRecord, other: RunRecord) -> tuple[RunJudgement, Exchange]:
    """Compare a run with another run by their common cases; return the other run as an exchange file, too.

    Bytes, tokens and metrics of images are compared as with a baseline; times are not, since the runs measured at different moments. Raises
    NothingMeasured without common cases, and Unsupported for a comparison, or for a run and itself.
    """
    if other.id == run.id:
        raise Unsupported(f"Run {run.id} does not differ from itself.", remedy="Name another run.")
    if run.is_comparison or other.is_comparison:
        raise Unsupported("A comparison in pairs has two sides of its own.", remedy="Name runs of plans.")
    facts = {"name": f"run {other.id}", "run": other.id, "plan": other.plan, "saved": other.started}
    baseline = exchange.load(exchange.dump(store.outcomes(other.id), other.environment, other.code, **facts), f"Run {other.id}")
    outcomes = store.outcomes(run.id)
    comparison = gate.compare(baseline, outcomes, run.environment, in_pairs=lambda case: _better(case, baseline, run, None) or TWO_MOMENTS)
    return RunJudgement(comparison, None, "", False, None), baseline


def judge_in_pairs(store: Store, run: RunRecord, min_coverage: float | None = None) -> RunJudgement:
    """Judge a run by the newest comparison of its code, if there is one, and by no baseline."""
    nights = ledger.nights(store, run.plan, run.environment.machine_class)
    mine = [night for night in nights if night.run.code.get("hash") == run.code.get("hash") and night.stated.get("alike") != OTHER_METHODS]
    standing = ledger.standing(nights)
    newest, record = replace(mine[-1], min_coverage=min_coverage) if mine else None, str(standing) if nights else ""
    return RunJudgement(None, newest, record, standing.advisory, None, _history(nights, newest))


def accepted_path(run: RunRecord) -> Path:
    """Return the path of the accepted baseline of a run's plan and machine class, which need not exist."""
    return baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan)


def _better(case: Case, baseline: Exchange, run: RunRecord, night: Night | None) -> str:
    """Return which pairs tested or can test the times of a case, or nothing.

    Pairs need two clean commits under one numerics fingerprint, or two environments that both still exist.
    """
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
    """Return a run's plan as a command takes it, file or name; else a placeholder and a note."""
    name, file = run.plan.removeprefix(ledger.COMPARISON), str(run.stored_plan.get(plans.FILE) or "")
    if file or name in plans.names():
        return file or name, ""
    return "PLAN", f"  (PLAN: the file of plan {name})"


def judge_comparison(store: Store, run: RunRecord, min_coverage: float | None = None) -> RunJudgement:
    """Evaluate a comparison on its own; ``min_coverage`` None is its own setting.

    Raises NothingMeasured for an incomplete comparison.
    """
    nights = ledger.nights(store, run.plan.removeprefix(ledger.COMPARISON), run.environment.machine_class)
    mine = [night for night in nights if night.run.id == run.id]
    if not mine:
        raise NothingMeasured(f"Comparison {run.id} is {run.state} and has no verdicts.", remedy="Rerun it: cachemark compare PLAN …")
    earlier = [night for night in nights if night.run.started <= run.started]
    standing = ledger.standing(earlier)
    night = replace(mine[0], min_coverage=min_coverage)
    return RunJudgement(None, night, str(standing), standing.advisory, None, _history(earlier, night))


def _history(nights: list[Night], night: Night | None) -> tuple[str, ...]:
    """Return lines about changes over the nights up to a comparison."""
    if night is None:
        return ()
    configs, delta = [row.label for row in night.tally.rows if row.metric == TIME], float(night.stated.get("delta", 0.1))
    return tuple(line for config in configs for line in ledger.history_lines(nights, config, delta))


@dataclass(frozen=True)
class Suspects:
    """Commits after ``good``, the last good night, up to ``bad``: short name and subject, newest first.

    Empty if the repository does not have them.
    """

    good: str
    bad: str
    commits: tuple[str, ...] = ()

    @property
    def range(self) -> str:
        """The range in words."""
        many = f" ({count(len(self.commits), 'commit')})" if self.commits else ""
        return f"after {self.good}, up to {self.bad}{many}"

    @property
    def newest(self) -> list[str]:
        """One line for each of the newest commits, and the number of others."""
        more = [f"and {len(self.commits) - MOST_COMMITS} more"] if len(self.commits) > MOST_COMMITS else []
        return [*self.commits[:MOST_COMMITS], *more]

    def bisect(self, plan: str, case: str) -> str:
        """Return the command that finds the commit."""
        return shlex.join(["cachemark", "bisect", case, "--plan", plan, "--good", self.good, "--bad", self.bad])


def suspects(incident: Incident, nights: Sequence[RunRecord], repository: Path | None = None) -> Suspects | None:
    """Return the suspect commits of an incident among ``nights`` (newest first), or None.

    Subjects come from ``repository`` (None: the one around this package).
    """
    since = next((k for k, night in enumerate(nights) if incident.since and night.started[:10] < incident.since), 1)
    commits = [str(night.code.get("commit") or "")[:12] for night in nights]
    bad = incident.onset or next(iter(commits), "")
    good = next((commit for commit in commits[since:] if commit and commit != bad), "")
    return Suspects(good, bad, _subjects(repository, good, bad)) if good and bad else None


def _subjects(repository: Path | None, good: str, bad: str) -> tuple[str, ...]:
    try:
        folder = repository_of(repository)
        first, last = (commit_of(folder, name) for name in (good, bad))
        lines = git(folder, "log", "--format=%h %s", f"{first}..{last}").splitlines()
    except CachemarkError:  # an installed copy, or commits of another repository
        return ()
    return tuple(on_one_line(text, 100) for text in lines)


@dataclass(frozen=True)
class CheckResult:
    """Verdicts on a run or a comparison, its incidents, and the ``proposed`` baseline, if any.

    ``incidents``: None without a register. ``nights``: finished runs of the plan on this machine class up to this one, newest first.
    """

    run: RunRecord
    judgement: RunJudgement
    incidents: IncidentNight | None = None
    proposed: Path | None = None
    nights: tuple[RunRecord, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return the code of the verdicts, or 0 if every regression is acknowledged or accepted."""
        code = self.judgement.exit_code
        return 0 if code == 1 and self.incidents is not None and not self.incidents.failing else code

    def notifications(self) -> list[str]:
        """Return lines about each incident to notify about: suspect commits, and commands to investigate.

        The commands compare in pairs if pairs found the incident, or if there are two commits to compare.
        """
        plan, note = _as_commands_name(self.run)
        lines = []
        for incident in self.incidents.notify if self.incidents else ():
            sides = self.judgement.night.sides if self.judgement.night and incident.found_by == PAIRS else ()
            among = suspects(incident, self.nights)
            if among is None:
                lines += incidents.described(incident, incidents.command(plan, incident, sides) + note)
                continue
            again = incidents.command(plan, incident, sides or ("--commits", among.good, among.bad))
            find = among.bisect(plan, incident.configurations[0])
            lines += incidents.described(incident, again + note, among.range, among.newest, find + note)
        return lines


def chosen(store: Store, number: int | None) -> RunRecord:
    """Return the run of that number, or the newest run of a plan. Raises NothingMeasured without one."""
    if number is None and (runs := store.runs()) and all(run.is_comparison for run in runs):
        newest, many = runs[0], count(len(runs), "comparison")
        raise NothingMeasured(f"{store.where} holds {many} and no run of a plan. The newest is {newest.id}, of {newest.plan}.",
                              remedy=f"Name it with --run: cachemark show --run {newest.id}, cachemark check --run {newest.id} or "
                                     f"cachemark report --run {newest.id}. A plan is measured with: cachemark run PLAN")
    return store.run(number)


def check(
    store: Store | str | Path = DEFAULT_STORE, *, run: int | None = None, baseline: str | Path | None = None,
    threshold: float | None = None, min_coverage: float | None = None, register: str | Path | None = None,
    propose: str | Path | None = None,
) -> CheckResult:
    """Compare a run (None: the newest) with a baseline (None: the accepted one) and evaluate its pairs.

    If ``run`` is a comparison, it is evaluated on its own. ``threshold``: relative change of a time over the same run's full cache that is
    allowed (None: 0.15, and only if pairs cannot test times). ``min_coverage``: fraction of the configurations that must be compared.
    ``register``: file of incidents, which is updated. ``propose``: folder for a run without a baseline, as a baseline to accept.

    Raises BadBaseline without a baseline and ``propose``, and NothingMeasured for an expired baseline or an incomplete comparison.
    """
    with reading(store) as source:
        record, proposed = chosen(source, run), None
        if record.is_comparison:
            judgement = judge_comparison(source, record, min_coverage)
        elif propose is not None and baseline is None and not accepted_path(record).exists():
            proposed = baselines.propose(source, record.id, Path(propose))
            judgement = judge_in_pairs(source, record, min_coverage)
        else:
            judgement = judge(source, record, None if baseline is None else Path(baseline), threshold, min_coverage)
        outcomes = [o for run_record in _records(source, record, judgement) for o in source.outcomes(run_record.id)]
        nights = _nights(source, record)
    cases = {o.case.key: o.case for o in outcomes}
    tonight = None if register is None else _updated(judgement, cases, Path(register), record)
    return CheckResult(record, judgement, tonight, proposed, nights)


def with_decisions(judgement: RunJudgement, store: Store, run: RunRecord, register: Path | None) -> RunJudgement:
    """Add the register's decisions about failing rows to the verdicts; the register is not changed."""
    if register is None:
        return judgement
    cases = {o.case.key: o.case for record in _records(store, run, judgement) for o in store.outcomes(record.id)}
    decisions = incidents.decisions(judgement.findings(cases), incidents.load(register), datetime.now(UTC).date())
    return replace(judgement, decided=decisions)


def _records(store: Store, run: RunRecord, judgement: RunJudgement) -> list[RunRecord]:
    """Return a run and the comparison of its code, the older first."""
    night = judgement.night
    records = {run.id: run} | ({night.run.id: store.run(night.run.id)} if night else {})
    return [records[number] for number in sorted(records)]


def _nights(store: Store, run: RunRecord) -> tuple[RunRecord, ...]:
    """Return the finished runs of a run's plan and class of machine, up to it, newest first."""
    series = run.plan, run.environment.machine_class
    return tuple(night for night in store.runs()
                 if night.id <= run.id and (night.plan, night.environment.machine_class) == series and night.state == "finished")


def _updated(judgement: RunJudgement, cases: Mapping[str, Case], register: Path, run: RunRecord) -> IncidentNight:
    """Merge tonight's incidents into the register and write it."""
    covered = [cases[key] for key in {r.case_key for r in judgement.all_rows if r.verdict in JUDGED} if key in cases]
    tonight = incidents.fold(judgement.findings(cases, str(run.code.get("commit") or "")[:12]), covered)
    rows = incidents.rows_by_config({judge: rows for judge, (rows, _) in judgement.by_judge.items()}, cases)
    delta = float(judgement.night.stated.get("delta", 0.1)) if judgement.night else 0.1
    merged = incidents.merge(incidents.load(register), tonight, datetime.now(UTC).date(), delta, rows)
    incidents.save(register, merged.register)
    return merged
