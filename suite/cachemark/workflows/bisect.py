"""Bisection for the commit that made a case worse, comparing each commit with the good end in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.errors import BadPlan, Unsupported
from ..core.units import PEAK, TIME, is_metric, metric
from ..core.verdicts import CHANGED, EQUIVALENT, INCONCLUSIVE, REGRESSED
from ..gate.baseline_check import HASHES
from ..gate.comparison import PairOfOutcomes, measure_until_decided, verdicts
from ..plans.planned import Prepared
from ..plans.schema import Plan, prepare
from ..stats.paired_test import FLOOR, Rule
from ..store.rows import Verdict
from ..trial.executors.local import Executor
from ..trial.request import Task, TrialRequest
from .git import BAD, GOOD, SKIP, checkouts, code_of, repository_of, search
from .pairs import IMAGES, PairRunner, Side, configs_of
from .session import Machine

OnRow = Callable[[str, Verdict], None]  # called with a commit and each row about it


@dataclass(frozen=True)
class BisectResult:
    """The first bad commit of a case, its effect in words, and the number of pairs measured.

    ``commit`` is empty where the ends do not differ, or where skipped commits leave several, which ``candidates`` names.
    """

    case: str
    commit: str
    candidates: tuple[str, ...]
    effect: str
    pairs: int


def bisect(
    plan: Plan | str | Path, case: str, good: str, bad: str, *, repository: Path | None = None, machine: Machine | str = "cpu",
    plugins: Sequence[str | Path] = (), delta: float | None = None, images: int = IMAGES, on_row: OnRow | None = None,
) -> BisectResult:
    """Find the commit between ``good`` and ``bad`` that made the case of this label worse.

    The ends are compared first. ``delta``: minimum effect (None: 0.1 on a CPU, 0.02 on a GPU; half of the effect between the ends once it
    is known). ``images``: generations per pair that count. A commit that does not run, or whose result is inconclusive, is skipped. Raises
    BadPlan for an ambiguous label, Unsupported if an end has another trial protocol, and Infrastructure if the device is unavailable or
    lost.
    """
    machine, (loaded, files) = Machine.parse(machine), prepare(plan, plugins)
    machine.require()
    (name, planned), *namesakes = configs_of(loaded, machine.device, [case], images).items()
    if namesakes:
        raise BadPlan(f"{case!r} names several cases: {', '.join([name, *(other for other, _ in namesakes)])}.",
                      remedy="Use the full title of one.")
    request = TrialRequest(loaded.timeout, machine.threads, files, Task.TIMES, memory_cap=machine.memory_cap)
    where, least = repository_of(repository), delta or FLOOR[machine.device]
    with machine.places() as places, checkouts(where, [good, bad]) as (old, new):
        return _Hunt(name, planned, request, code_of(old, good), least, places, on_row).run(where, good, bad, new)


@dataclass
class _Hunt:
    """One case, compared with the good end's code commit after commit. ``pairs`` are those that it took."""

    name: str
    planned: Prepared
    request: TrialRequest
    good: str
    delta: float
    executor: Executor
    on_row: OnRow | None
    pairs: list[PairOfOutcomes] = field(default_factory=list)
    rows: dict[str, Sequence[Verdict]] = field(default_factory=dict)

    def run(self, repository: Path, good: str, bad: str, new: Path) -> BisectResult:
        rule, code = Rule(self.delta, 1), code_of(new, bad)
        rows = self.compared(code, bad, rule, once=True)  # exact metrics differ in a single pair, times do not
        rows = rows if _culprit(rows) else self.compared(code, bad, rule)
        if (culprit := _culprit(rows)) is None:
            failed = [r.reason for r in _failed(rows)]
            reason = "The ends cannot be compared" if failed else "The ends do not differ"
            effect = f"{reason}: {'; '.join(failed or [r.reason for r in rows if r.metric == TIME])}"
            return BisectResult(self.name, "", (), effect, len(self.pairs))
        half = abs((culprit.change or 1) - 1) / 2
        rule = Rule(min(max(self.delta, half), 0.9) if culprit.metric == TIME else 0.9, 1)
        commit, candidates = search(repository, good, bad, lambda folder, commit: self._answer(culprit, folder, commit, rule))
        last_row = next((row for row in self.rows.get(commit, ()) if row.metric == culprit.metric), culprit)
        effect = f"{last_row.metric}: {last_row.reason or last_row.verdict}"
        return BisectResult(self.name, commit, candidates, effect, len(self.pairs))

    def compared(self, code: str, commit: str, rule: Rule, once: bool = False) -> Sequence[Verdict]:
        """Compare the case at a commit with the good end; with ``once`` until a first pair has succeeded."""
        configs, so_far = {self.name: self.planned}, len(self.pairs)
        before, after = (Side(each, configs, replace(self.request, code=each)) for each in (self.good, code))
        runner = PairRunner(before, after, self.executor, on_pair=self.pairs.append)
        go_on = (lambda: not any(pair.ok for pair in self.pairs[so_far:])) if once else (lambda: True)
        rows = verdicts(measure_until_decided(configs, runner.round, rule, go_on), rule)
        self.rows[commit] = rows
        for row in rows:
            if self.on_row is not None:
                self.on_row(commit, row)
        return rows

    def _answer(self, culprit: Verdict, folder: Path, commit: str, rule: Rule) -> str:
        try:
            code = code_of(folder, commit[:12])
        except Unsupported:
            return SKIP
        return _answer(culprit, self.compared(code, commit, rule, once=culprit.metric not in (TIME, PEAK)))


def _culprit(rows: Sequence[Verdict]) -> Verdict | None:
    """Return a row that is worse at the bad end: an exact metric if there is one, else the latency.

    Other wall times, such as the time of graph capture, are ignored: one pair of them is not enough.
    """
    worse = [r for r in rows if (r.verdict == CHANGED and r.metric in HASHES) or (
        r.verdict == REGRESSED and (r.metric == TIME or not is_metric(r.metric) or metric(r.metric).unit != "s"))]
    return min(worse, key=lambda r: (r.metric == TIME, r.metric != "status"), default=None)


def _failed(rows: Sequence[Verdict]) -> list[Verdict]:
    """Return the rows of a side that keeps failing; empty if it failed once and then succeeded."""
    return [row for row in rows if row.metric == "status" and row.verdict not in (EQUIVALENT, INCONCLUSIVE)]


def _answer(culprit: Verdict, rows: Sequence[Verdict]) -> str:
    """The answer to git about a commit."""
    if failed := _failed(rows):
        return BAD if culprit.metric == "status" and failed[0].verdict == culprit.verdict else SKIP
    if culprit.metric == "status":
        return GOOD
    own_row = next((row for row in rows if row.metric == culprit.metric), None)
    if own_row is None or own_row.verdict == INCONCLUSIVE:
        return SKIP
    return BAD if own_row.verdict == culprit.verdict else GOOD
