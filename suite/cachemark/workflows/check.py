"""Check a run against its baseline, pairs and known incidents, and record decisions of reviewers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import dropwhile
from pathlib import Path
from typing import Literal

from ..analysis.baseline_comparison import BaselineComparison
from ..core.calls import strict
from ..core.edited import REMEDY
from ..core.errors import BadBaseline, NothingMeasured
from ..core.facts import PluginSource
from ..core.spec import Case
from ..core.threads import default_threads
from ..core.units import TIME
from ..core.verdicts import MISSING
from ..core.wording import count, percent, shown
from ..gate import baseline_check as gate, baselines, incidents, nights as ledger
from ..gate.baselines import ListedBaseline
from ..gate.comparison import COVERAGE, OTHER_METHODS
from ..gate.incidents import PAIRS, GateRow, Incident, IncidentNight
from ..gate.judgement import RunJudgement
from ..gate.nights import Night
from ..plans import schema as plans
from ..store.db import Store
from ..store.exchange import Exchange
from ..store.rows import COMPARISON, RunRecord
from .git import suspects
from .session import DEFAULT_STORE, reading

MOST_COMMITS = 8  # subjects of commits in a notification


def judge(
    store: Store, run: RunRecord, path: Path | None = None, threshold: float | None = None, min_coverage: float | None = None, *,
    expired: bool = False, register: Path | None = None,
) -> RunJudgement:
    """Compare a run with the baseline at ``path``, if any, and with the newest comparison of its code.

    A comparison without a baseline is checked by its own verdicts; a comparison of two methods does not count for a run. ``min_coverage``
    applies to both (None: 0.95, and the comparison's own setting). Times are tested against a ``threshold`` if one is given or pairs cannot
    test them. ``register``: file of incidents, whose decisions about failing rows are added. Raises NothingMeasured for an incomplete
    comparison, and for an expired baseline unless ``expired`` ones are allowed.
    """
    judgement = _in_pairs(store, run, min_coverage, own=run.is_comparison and path is None)
    if path is not None:
        baseline = baselines.load(path)
        if not expired:
            baselines.refuse_expired(baseline)
        outcomes = store.outcomes(run.id)
        then, now = ({each.case.key: each.facts.plugin for each in side} for side in (baseline.outcomes, outcomes))
        comparison = gate.compare(
            baseline, outcomes, run.environment, threshold=gate.THRESHOLD if threshold is None else threshold,
            min_coverage=COVERAGE if min_coverage is None else min_coverage, plan=run.plan,
            in_pairs=lambda case: "" if threshold is not None else _better(
                case, baseline, run, judgement.night, (then.get(case.key), now.get(case.key))))
        judgement = replace(judgement, comparison=comparison, baseline=path)
    if register is None:
        return judgement
    rows = judgement.gate_rows(_cases(store, run, judgement))
    return _with_incidents(judgement, rows, register, run, nights_before(store, run))


def _with_incidents(
    judgement: RunJudgement, rows: Sequence[GateRow], file: Path, run: RunRecord, nights: Sequence[RunRecord],
) -> RunJudgement:
    """Return the judgement with decisions about failing rows, and with lines about the other incidents. ``file``: their register."""
    today, register = datetime.now(UTC).date(), incidents.load(file)
    undecided = incidents.undecided(rows, register, today)
    lines = [line for incident in undecided for line in incident_lines(incident, run, judgement, nights)]
    to_accept = {(row.case.key, row.row.metric): shlex.join(["cachemark", "incident", "acknowledge", incident.key, "--register", str(file)])
                 for incident in undecided for row in rows if row.fails and incident.covers(row)}
    return replace(judgement, decided=incidents.decisions(rows, register, today), open_incidents=tuple(lines), to_accept=to_accept)


def incident_lines(incident: Incident, run: RunRecord, judgement: RunJudgement, nights: Sequence[RunRecord] = ()) -> Iterator[str]:
    """Yield lines about an incident: cause, change, onset, owner, suspect commits, and commands.

    It is measured again in pairs if pairs found it or there are two commits to compare, else by a run of the plan. ``nights``: finished
    runs of the plan on this machine class up to ``run``, newest first.
    """
    plan, note = _as_commands_name(run)
    config, origin = incident.configurations[0], suspects(incident, nights)
    change = f"{percent(incident.change - 1, '+')} cost (median). " if incident.change is not None else ""
    on = _device(run)
    again = ["run", plan, "--fresh", *on]
    yield (f"{incident.key}: {incident.metric} regressed: {incident.factor} {incident.value}, "
           f"{count(len(incident.configurations), 'configuration')}.")
    yield f"  change: {change}{incident.reason}".rstrip()
    yield f"  since: {incident.since}{f', commit {incident.onset}' if incident.onset else ''}"
    yield f"  owner: {incident.who or 'nobody'}{f' ({incident.link})' if incident.link else ''}"
    if origin is not None:
        more = len(origin.commits) - MOST_COMMITS
        again = ["compare", plan, "--commits", origin.good, origin.bad, "--only", config, *on, *judgement.store_option]
        yield f"  suspects: commits after {origin.good}, up to {origin.bad}"
        yield from (f"    {commit}" for commit in origin.commits[:MOST_COMMITS])
        if more > 0:
            yield f"    and {more} more"
        find = ["cachemark", "bisect", config, "--plan", plan, "--good", origin.good, "--bad", origin.bad, *on]
        yield f"  find: {shlex.join(find)}{note}"
    if judgement.night and incident.found_by == PAIRS:
        sides = judgement.night.sides
        again = ["compare", plan, *sides, *(() if sides[0] == "--cases" else ("--only", config)), *judgement.store_option]
    yield f"  again: {shlex.join(['cachemark', *again])}{note}"


def _in_pairs(store: Store, run: RunRecord, min_coverage: float | None, own: bool) -> RunJudgement:
    """Judge a run by the newest comparison of its code, or a comparison by its ``own`` verdicts."""
    nights = ledger.nights(store, run.plan.removeprefix(COMPARISON) if own else run.plan, run.environment.machine_class)
    if own:
        nights = [night for night in nights if night.run.started <= run.started]
        mine = [night for night in nights if night.run.id == run.id]
        if not mine:
            raise NothingMeasured(f"Comparison {run.id} is {run.state} and has no verdicts.", remedy="Rerun it: cachemark compare PLAN …")
    else:
        code = run.code.get("hash")
        mine = [night for night in nights if night.run.code.get("hash") == code and night.stated.get("alike") != OTHER_METHODS]
    night = replace(mine[-1], min_coverage=min_coverage) if mine else None
    history: list[str] = []
    sees = ""
    if night is not None:
        sees = _sees(store, nights[: nights.index(mine[-1]) + 1], night.tally.configs)
        delta = float(night.stated.get("delta", 0.1))
        for config in [row.label for row in night.tally.rows if row.metric == TIME]:
            history += ledger.history_lines(nights, config, delta)
    return RunJudgement(None, night, ledger.standing(nights) if nights else None, history=tuple(history), sees=sees,
                        store="" if store.where == DEFAULT_STORE or "***" in store.where else store.where)


def _sees(store: Store, nights: Sequence[Night], family: int) -> str:
    """Return a sentence on the resolution of the machine, from A/A pairs of these nights, oldest first."""
    outcomes = [outcome for night in nights[-ledger.WATCHED:] for outcome in store.outcomes(night.run.id)]
    device = outcomes[-1].case.device_class if outcomes else ""
    return ledger.least_effect(ledger.unchanged(outcomes), max(1, family), device)[1]


def accepted_path(run: RunRecord) -> Path:
    """Return the path of the accepted baseline of a run's plan and machine class, which need not exist."""
    return baselines.path_of(baselines.ROOT, run.environment.machine_class, run.plan)


def _better(
    case: Case, baseline: Exchange, run: RunRecord, night: Night | None, plugins: tuple[PluginSource | None, PluginSource | None],
) -> str:
    """Return which pairs tested or can test the times of a case, or nothing.

    Pairs need two clean commits, of the repository of a plug-in (then, now) if its code changed. Under other numerics than the baseline's,
    times are not compared at all.
    """
    if night is not None and night.holds(case):
        return f"comparison {night.run.id} tests them in pairs"
    before, after = plugins
    if before and after and before.digest != after.digest:
        if not (before.commit and after.commit) or before.edited or after.edited:
            return ""
        plan, note = _as_commands_name(run)
        files = [path for path, digest in run.stored_plan.get(plans.PLUGIN_FILES, {}).items() if digest == after.digest]
        compare = ["cachemark", "compare", plan, "--plugin", files[0] if files else after.file,
                   "--versions", before.commit[:12], after.commit[:12], *_device(run)]
        return f"test them in pairs with: {shlex.join(compare)}{note}"
    commits = [code.get("commit") for code in (baseline.code, run.code) if not code.get("dirty")]
    if len(commits) < 2 or not all(commits):
        return ""
    then, now = (str(commit)[:12] for commit in commits)
    if then == now:
        return f"the run and the baseline are of one commit, {now}"
    plan, note = _as_commands_name(run)
    return f"test them in pairs with: {shlex.join(['cachemark', 'compare', plan, '--commits', then, now, *_device(run)])}{note}"


def _device(run: RunRecord) -> list[str]:
    """Return the options for the device of a run and its threads, unless they are the defaults here."""
    threads = run.environment.facts.get("threads")
    return [*(["--device", "cuda"] if run.environment.facts.get("cuda") else []),
            *(["--threads", str(threads)] if threads and threads != default_threads() else [])]


def _as_commands_name(run: RunRecord) -> tuple[str, str]:
    """Return a run's plan as a command takes it, file or name; else a placeholder and a note."""
    name, file = run.plan.removeprefix(COMPARISON), str(run.stored_plan.get(plans.FILE) or "")
    if file or name in plans.names():
        return file or name, ""
    return "PLAN", f"  (PLAN: the file of plan {name})"


@dataclass(frozen=True)
class CheckResult:
    """Verdicts on a run or a comparison, its incidents, and the ``proposed`` baseline, if any.

    ``incidents``: None without a register.
    """

    run: RunRecord
    judgement: RunJudgement
    incidents: IncidentNight | None = None
    proposed: Path | None = None

    @property
    def exit_code(self) -> int:
        """The code of the verdicts, 0 if every regression is acknowledged or accepted."""
        return self.judgement.exit_code

    def failing_lines(self) -> list[str]:
        """Return a line for each failing row and each missing one, with both values as tables print them."""
        comparison = self.judgement.comparison
        rows = [*self.judgement.failing, *(comparison.with_verdict(MISSING) if comparison else ())]
        texts = [". ".join(filter(None, (BaselineComparison(row).movement, row.reason))) for row in rows]
        return [f"{self.judgement.word(row)}: {row.label}, {row.metric}: {text}" for row, text in zip(rows, texts, strict=True)]


def chosen(store: Store, number: int | None) -> RunRecord:
    """Return the run of that number, or the newest run of a plan. Raises NothingMeasured without one."""
    if number is None and (runs := store.runs()) and all(run.is_comparison for run in runs):
        newest, many = runs[0], count(len(runs), "comparison")
        raise NothingMeasured(f"{store.where} holds {many} and no run of a plan. The newest is {newest.id}, of {newest.plan}.",
                              remedy=f"Name it with --run: cachemark show --run {newest.id}, cachemark check --run {newest.id} or "
                                     f"cachemark report --run {newest.id}. A plan is measured with: cachemark run PLAN")
    return store.run(number)


@strict("check")
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
        path = None if record.is_comparison else accepted_path(record) if baseline is None else Path(baseline)
        if propose is not None and baseline is None and path is not None and not path.exists():
            proposed, path = baselines.propose(source, record.id, Path(propose)), None
        judgement = judge(source, record, path, threshold, min_coverage)
        cases, nights = _cases(source, record, judgement), nights_before(source, record)
    if register is None:
        return CheckResult(record, judgement, None, proposed)
    rows, today = judgement.gate_rows(cases), datetime.now(UTC).date()
    delta = float(judgement.night.stated.get("delta", 0.1)) if judgement.night else 0.1
    onset = str(record.code.get("commit") or "")[:12]
    tonight = incidents.merge(incidents.load(Path(register)), rows, today, delta, onset)
    incidents.save(Path(register), tonight.register)
    return CheckResult(record, _with_incidents(judgement, rows, Path(register), record, nights), tonight, proposed)


def _cases(store: Store, run: RunRecord, judgement: RunJudgement) -> dict[str, Case]:
    """Return the cases of a run and of the comparison of its code by key."""
    runs = {run.id, *([judgement.night.run.id] if judgement.night else [])}
    return {o.case.key: o.case for number in sorted(runs) for o in store.outcomes(number)}


def nights_before(store: Store, run: RunRecord) -> tuple[RunRecord, ...]:
    """Return the finished runs of a run's plan and class of machine, up to it, newest first."""
    series = run.plan, run.environment.machine_class
    until = dropwhile(lambda night: night.id != run.id, store.runs())
    return tuple(night for night in until if (night.plan, night.environment.machine_class) == series and night.state == "finished")


# -- decisions of reviewers ---------------------------------------------------------------------------------------------
def accept(
    how: Literal["save", "promote", "rebase"], store: str | Path = DEFAULT_STORE, *, run: int | None = None,
    root: Path = baselines.ROOT, name: str | None = None, reason: str = "", days: int = baselines.DAYS,
) -> Path:
    """Make a finished run (None: the newest) an accepted baseline below ``root`` and return its file.

    ``save`` writes the first of its name and machine, ``promote`` replaces one of the same environment, ``rebase`` one of another and
    starts a new series. It expires after ``days``, 0: never. Raises BadBaseline.
    """
    with Store.open(store, create=False) as target:
        record = chosen(target, run)
        if how == "save":
            baselines.refuse_present(record, root, name)
            return baselines.save(target, record.id, root, name, reason=reason, days=days)
        return baselines.promote(target, record.id, root, name, reason=reason, days=days, upgraded=how == "rebase")


def accepted(root: Path = baselines.ROOT) -> list[ListedBaseline]:
    """List every baseline below ``root``."""
    return baselines.list_(root)


def known_incidents(register: Path) -> list[Incident]:
    """List the incidents of a register."""
    return incidents.load(register)


def acknowledge_incident(register: Path, key: str, who: str, until: date | None, link: str = "") -> None:
    """Record who decided on an incident, and until when; without ``until`` it is accepted as it is."""
    incidents.save(register, incidents.acknowledge(incidents.load(register), key, who, until, link))


def baseline_commit(
    store: Store | str | Path = DEFAULT_STORE, *, run: int | None = None, baseline: str | Path | None = None, plugin: bool = False,
) -> str:
    """Return the commit of a run's baseline (None: the newest), with ``plugin`` that plug-in's.

    Raises BadBaseline without a baseline, and NothingMeasured if it was not measured at a clean commit.
    """
    with reading(store) as source:
        accepted_baseline = baselines.load(baseline or accepted_path(chosen(source, run)))
    if plugin:
        commits = {used.commit for outcome in accepted_baseline.outcomes if (used := outcome.facts.plugin) and not used.edited} - {None}
        if len(commits) == 1:
            return str(commits.pop())
        raise NothingMeasured(f"{accepted_baseline.source} was measured with plug-ins of {len(commits)} commits, and one is needed.",
                              remedy="Commit the plug-in, measure it, and promote the run: cachemark baseline promote --reason …")
    if accepted_baseline.code.get("dirty") or not (commit := str(accepted_baseline.code.get("commit") or "")):
        raise NothingMeasured(f"{accepted_baseline.source} was measured in no commit, or in a changed working tree: there is nothing to "
                              "compare with.", remedy="Promote a run of a commit: cachemark baseline promote --reason …")
    if not re.fullmatch("[0-9a-f]{7,64}", commit):  # a script passes it on to git
        raise BadBaseline(f"{accepted_baseline.source} has code.commit = {shown(commit)}, which is no commit.", remedy=REMEDY)
    return commit
