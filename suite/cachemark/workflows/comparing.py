"""Comparison of two arms, pair by pair: measured on one place of an executor, judged by a test, and stored with every pair."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import BadPlan, NothingMeasured
from ..core.result import Environment
from ..core.spec import digest
from ..gate import nights as ledger
from ..gate.comparison import (
    AA,
    COVERAGE,
    NOT_COMPARED,
    OTHER_METHODS,
    OTHER_NUMERICS,
    SAME,
    SAME_TOKENS,
    CellPairs,
    Tally,
    measure_until_decided,
    other_tokens,
    refuse_unequal,
    refuse_unfair,
    verdicts,
)
from ..gate.nights import GateStanding
from ..gate.seedwise import seedwise
from ..machine.environment import PACKAGE
from ..plans.schema import Plan, prepare
from ..stats.paired_test import Rule
from ..store.db import Store
from ..store.rows import Verdict
from ..trial.executors.local import Executor
from ..trial.request import Task, TrialRequest
from .arms import IMAGES, Cells, MakeArm, arms_of, cells_of, image_arm, timed_arm
from .commits import checkouts, code_of, repository_of
from .machines import Machine
from .pairs import Arm, Pair, PairRunner
from .stores import DEFAULT_STORE, new_run

OnPair = Callable[[Pair, str], None]  # called with each pair and with what was measured of it: ``times`` or ``images``


@dataclass(frozen=True)
class Terms:
    """Terms of a comparison: minimum effect (None: what the machine can see), minutes (None: no limit), equal arms, seed, and the
    share of its cells of which something must be said (None: the usual one)."""

    delta: float | None = None
    minutes: float | None = None
    aa: bool = True
    seed: int = 0
    min_coverage: float | None = None


@dataclass(frozen=True)
class PairedComparison:
    """A comparison that has ended: its number in the store, both arms' names, its rows as a tally, the rule by which times were judged, the
    smallest change that the machine can see, in words, and the standing of the gate."""

    run_id: int
    names: tuple[str, str]
    tally: Tally
    rule: Rule
    sees: str
    standing: GateStanding

    @property
    def exit_code(self) -> int:
        """That of the tally; an advisory gate fails nothing by times."""
        return self.tally.ended(self.standing.advisory)

    @property
    def same_tokens(self) -> int:
        """The number of cells whose images are equal because their tokens are."""
        return sum(row.reason == SAME_TOKENS for row in self.tally.rows)


def compare(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, arms: tuple[str, str] | None = None,
    commits: tuple[str, str] | None = None, environments: tuple[str, str] | None = None, cases: tuple[str, ...] = (),
    repository: Path | None = None, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (), images: int = IMAGES,
    samples: int | None = None, terms: Terms = Terms(), on_pair: OnPair | None = None,
) -> PairedComparison:
    """Compare two arms of a plan in pairs of fresh processes, and judge every cell by a test with a known false-alarm rate.

    ``arms`` are labels of two cases, ``commits`` two commits of ``repository`` (None: that around this package), ``environments`` two
    interpreters: one of the three. ``cases`` limits commits and environments to these labels. ``images`` generations count in a pair;
    images are compared at ``samples`` seeds where tokens differ (None: the plan's, 0: nowhere). Every pair and verdict is stored. Raises
    UnfairComparison for arms that differ in more than what is compared, NothingMeasured where the plan has no case, Unsupported for a
    commit of another trial protocol, and Infrastructure where the device is not to be had or is lost."""
    if sum(way is not None for way in (arms, commits, environments)) != 1:
        raise BadPlan("A comparison needs two arms.", remedy="Name two arms in one way: --arms A B, --commits A B or --env OLD NEW.")
    machine, (loaded, files) = Machine.of(machine), prepare(plan, plugins)
    machine.require()
    trial = TrialRequest(loaded.timeout, machine.threads, files, Task.TIMES, memory_cap=machine.memory_cap)
    request = ComparisonRequest(loaded, machine.device, trial, images, arms, commits, environments, cases, repository, samples)
    with Store.open(store) as sink, machine.places(sink) as places, compared_arms(request, places) as both:
        return _run(request, both, sink, terms, places, on_pair)


@dataclass(frozen=True)
class ComparisonRequest:
    """A plan, one way to name two arms (labels of cases, commits, or interpreters), the cells (none: all), and how they are run.
    ``images``: counted generations of an arm in a pair; ``samples``: number of seeds at which images are compared where tokens differ
    (None: as many as the plan says; 0: nowhere)."""

    plan: Plan
    device: str
    trial: TrialRequest
    images: int
    arms: tuple[str, str] | None = None
    commits: tuple[str, str] | None = None
    environments: tuple[str, str] | None = None
    cases: tuple[str, ...] = ()
    repository: Path | None = None
    samples: int | None = None


@dataclass(frozen=True)
class ComparedArms:
    """Both arms, what they share (see :func:`cachemark.gate.comparison.verdicts`), and where and by which code each runs. ``images``: both
    arms once more, to judge images; None where that is not asked."""

    before: Arm
    after: Arm
    alike: str
    where: tuple[Environment, Environment]
    code: tuple[dict[str, Any], dict[str, Any]]
    images: tuple[Arm, Arm] | None = None

    @property
    def names(self) -> tuple[str, str]:
        return self.before.name, self.after.name


@contextmanager
def compared_arms(request: ComparisonRequest, executor: Executor) -> Iterator[ComparedArms]:
    """The two arms, as long as the block lasts. Raises what cannot be compared before anything is measured."""
    if request.commits:
        with checkouts(repository_of(request.repository), request.commits) as folders:
            one, two = (replace(request.trial, code=code_of(folder, name)) for folder, name in zip(folders, request.commits, strict=True))
            yield _identified(request, request.commits, (one, two), SAME, executor)
    elif request.environments:
        one, two = (replace(request.trial, python=python, code=str(PACKAGE.parent)) for python in request.environments)
        yield _identified(request, request.environments, (one, two), OTHER_NUMERICS, executor)
    elif request.arms:
        yield _identified(request, request.arms, (request.trial, request.trial), OTHER_METHODS, executor)


def _cells(request: ComparisonRequest, count: int, arm: MakeArm) -> tuple[Cells, Cells]:
    """Cells of both arms; with cases as arms those of two labels, else the same ones twice."""
    if request.arms:
        return arms_of(request.plan, request.device, request.arms, count, arm)
    cells = cells_of(request.plan, request.device, request.cases, count, arm)
    return cells, cells


def _identified(
    request: ComparisonRequest, names: Sequence[str], trials: tuple[TrialRequest, TrialRequest], alike: str, executor: Executor,
) -> ComparedArms:
    """With the environments that the arms themselves report. Equal fingerprints make two environments one. What is known to make a
    comparison unfair is refused here, before the first pair."""
    cells = _cells(request, request.images, timed_arm)
    images = None if request.samples == 0 else _cells(request, request.samples or 0, image_arm)
    one = executor.identify(trials[0], request.device)
    two = one if trials[1] == trials[0] else executor.identify(trials[1], request.device)
    where = (one[0], two[0])
    for name, planned in cells[0].items():
        refuse_unequal(planned.case, cells[1][name].case, where)
    if alike == OTHER_NUMERICS and one[0].fingerprint == two[0].fingerprint:
        alike = SAME
    before, after = (Arm(names[n], cells[n], trials[n]) for n in (0, 1))
    judging = tuple(Arm(names[n], images[n], replace(trials[n], task=Task.IMAGES)) for n in (0, 1)) if images else ()
    return ComparedArms(before, after, alike, where, (one[1], two[1]), (judging[0], judging[1]) if judging else None)


def _run(
    request: ComparisonRequest, both: ComparedArms, store: Store, terms: Terms, executor: Executor, on_pair: OnPair | None,
) -> PairedComparison:
    machine, cells = both.where[1].machine_class, list(both.after.cells)
    if not cells:
        raise NothingMeasured(f"Plan {request.plan.name} has no case to compare.", remedy="See: cachemark run PLAN --explain")
    earlier = ledger.nights(store, request.plan.name, machine)
    equal = ledger.unchanged(o for night in earlier[-ledger.WATCHED:] for o in store.outcomes(night.run.id))
    least, told = ledger.least_effect(equal, len(cells), request.device)
    rule = Rule(terms.delta or least, len(cells))
    stated = {"arms": list(both.names), "alike": both.alike, "delta": rule.delta, "cells": rule.family, "seed": terms.seed,
              "min_coverage": COVERAGE if terms.min_coverage is None else terms.min_coverage,
              "code": [dict(code) for code in both.code], "plan": request.plan.model_dump(mode="json")}
    with new_run(store, ledger.COMPARISON + request.plan.name, stated, both.where[1], both.code[1]) as run_id:
        _measure_and_judge(_Session(request, both, store, run_id, executor, on_pair), terms, rule)
    ours = ledger.nights(store, request.plan.name, machine)
    (mine,) = (night for night in ours if night.run.id == run_id)
    return PairedComparison(run_id, both.names, mine.tally, rule, told, ledger.standing(ours))


@dataclass(frozen=True)
class _Session:
    """A comparison under way."""

    request: ComparisonRequest
    both: ComparedArms
    store: Store
    run_id: int
    executor: Executor
    on_pair: OnPair | None

    def keep(self, pair: Pair, names: tuple[str, str], what: str = "times") -> None:
        """Store both arms of a pair, each under the name of its process, and tell of it."""
        told = {"run": self.run_id, "cell": pair.cell, "number": pair.number, "swapped": pair.swapped, "redone": pair.redone, "what": what}
        trial = f"{pair.cell}, {'pair' if what == 'times' else what} {pair.number}"
        for arm, outcome, name in (("before", pair.before, names[0]), ("after", pair.after, names[1])):
            facts = {**outcome.facts, "pair": {**told, "arm": arm, "name": name}}
            self.store.save(self.run_id, replace(outcome, facts=facts), trial=f"{trial}, {arm}")
        if self.on_pair is not None:
            self.on_pair(pair, what)

    def file(self, rows: list[Verdict]) -> None:
        """File the verdicts. A comparison is judged against its first arm, so that stands where a baseline would."""
        both, plan = self.both, self.request.plan.name
        about = {"run": self.run_id, "arm": both.names[0], "plan": plan, "code": dict(both.code[0])}
        number = self.store.note_baseline(digest(about, 64), name=both.names[0], plan=plan, machine_class=both.where[0].machine_class,
                                          reason="first arm of a comparison", run_id=self.run_id)
        self.store.save_verdicts(self.run_id, number, rows)


def _measure_and_judge(session: _Session, terms: Terms, rule: Rule) -> None:
    """Measure as many pairs as the test asks for, and file what is said of every cell."""
    both, cells = session.both, list(session.both.after.cells)
    measure = _measurer(session, terms)
    end = time.monotonic() + 60 * terms.minutes if terms.minutes is not None else math.inf
    pairs = measure_until_decided([*cells, *measure.extra], measure, rule, lambda: time.monotonic() < end)
    rows = [*verdicts({c: pairs[c] for c in cells}, rule, both.alike), *verdicts({c: pairs[c] for c in measure.extra}, rule)]
    session.file(rows)  # the images may take long, and may fail
    if images := _images(session, {c: pairs[c] for c in cells}, end):
        session.file([*rows, *images])


def _images(session: _Session, pairs: dict[str, CellPairs], end: float) -> list[Verdict]:
    """Rows about the images of cells whose arms gave other tokens: one pair tells, because nothing of it is a time."""
    both = session.both
    if both.images is None or not (cells := other_tokens(pairs)):
        return []
    if time.monotonic() >= end:
        return [Verdict("", cell, "status", NOT_COMPARED, "time was up before its images were compared") for cell in cells]
    runner = PairRunner(*both.images, session.executor, on_pair=lambda pair: session.keep(pair, both.names, "images"))
    return seedwise({pair.cell: pair for pair in runner.round(cells)}, alike=both.alike)


@dataclass
class _Measurer:
    """Asks for pairs of the two arms, and of the equal arms."""

    runner: PairRunner
    equal: PairRunner | None
    extra: tuple[str, ...]
    refuse: Callable[[Pair], None]

    def __call__(self, names: list[str]) -> list[Pair]:
        real = [name for name in names if name not in self.extra]
        found = self.runner.round(real) if real else []
        for pair in found:
            self.refuse(pair)
        if self.equal is not None and (rest := [name for name in names if name in self.extra]):
            found += self.equal.round(rest)
        return found


def _measurer(session: _Session, terms: Terms) -> _Measurer:
    both, first = session.both, session.both.before

    def refuse(pair: Pair) -> None:
        refuse_unfair(pair.before, pair.after, both.where)

    runner = PairRunner(first, both.after, session.executor, terms.seed, lambda pair: session.keep(pair, both.names))
    if not terms.aa:
        return _Measurer(runner, None, (), refuse)
    cell, planned = next(iter(first.cells.items()))
    same = replace(first, cells={AA + cell: planned})
    equal = PairRunner(same, same, session.executor, terms.seed + 1, lambda pair: session.keep(pair, (first.name, first.name)))
    return _Measurer(runner, equal, (AA + cell,), refuse)
