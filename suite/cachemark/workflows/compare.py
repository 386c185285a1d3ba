"""Paired comparison of two sides on one device: measure, test, and store every pair."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.calls import TERMS, strict
from ..core.errors import BadPlan, NothingMeasured
from ..core.facts import PairFacts
from ..core.files import PACKAGE
from ..core.result import Environment, Outcome
from ..core.verdicts import NOT_COMPARED
from ..core.wording import short_commits
from ..gate import flakes, nights as ledger
from ..gate.comparison import (
    AA,
    COVERAGE,
    OTHER_METHODS,
    OTHER_NUMERICS,
    SAME,
    SAME_TOKENS,
    ConfigPairs,
    PairOfOutcomes,
    Tally,
    measure_until_decided,
    other_tokens,
    refuse_unequal,
    refuse_unfair,
    verdicts,
)
from ..gate.flakes import FlakeRule
from ..gate.nights import GateStanding
from ..gate.seedwise import seedwise
from ..plans.schema import Plan, prepare
from ..stats.paired_test import Rule
from ..store.db import Store
from ..store.rows import COMPARISON, Verdict
from ..trial.executors.local import Executor
from ..trial.request import Task, TrialRequest
from .git import checkouts, code_of, repository_of
from .pairs import IMAGES, Configs, MakeSide, PairRunner, Side, configs_of, image_side, sides_of, timed_side
from .plugin_versions import sides_of_versions, version_requests
from .progress import PairLines
from .session import DEFAULT_STORE, Machine


@dataclass(frozen=True)
class Terms:
    """Settings of a comparison.

    ``delta``: minimum effect (None: the smallest that the machine can resolve). ``minutes``: time limit, or None. ``aa``: also compare
    configurations with themselves. ``seed``: of the order of sides. ``min_coverage``: fraction of the configurations that must be tested
    (None: 0.95).
    """

    delta: float | None = None
    minutes: float | None = None
    aa: bool = True
    seed: int = 0
    min_coverage: float | None = None


@dataclass(frozen=True)
class PairedComparison:
    """A finished comparison: run number, names of both sides, rows, rule for times, and the gate's record.

    ``sees`` states the smallest change that the machine can resolve.
    """

    run_id: int
    names: tuple[str, str]
    tally: Tally
    rule: Rule
    sees: str
    standing: GateStanding

    def __repr__(self) -> str:
        tally, names = self.tally, " → ".join(map(short_commits, self.names))
        return f"<{names}: {len(tally.regressed)} regressed, {len(tally.unresolved)} undecided of {tally.configs} configurations>"

    @property
    def exit_code(self) -> int:
        """The exit code of the tally; an advisory gate ignores times."""
        return self.tally.ended(self.standing.advisory)

    @property
    def same_tokens(self) -> int:
        """The number of configurations whose images are equal because their tokens are."""
        return sum(row.reason == SAME_TOKENS for row in self.tally.rows)


@strict("compare", {**TERMS, "run": "cm.open(…).compare(a, b)"})
def compare(
    plan: Plan | str | Path, store: str | Path = DEFAULT_STORE, *, cases: tuple[str, str] | None = None,
    commits: tuple[str, str] | None = None, environments: tuple[str, str] | None = None, versions: tuple[str, str] | None = None,
    only: tuple[str, ...] = (),
    repository: Path | None = None, machine: Machine | str = "cpu", plugins: Sequence[str | Path] = (), images: int = IMAGES,
    samples: int | None = None, terms: Terms = Terms(), progress: bool = True,
) -> PairedComparison:
    """Compare two sides of a plan in pairs of fresh processes, at a known false-alarm rate.

    The sides are either ``cases`` (two labels), ``commits`` of ``repository`` (None: the one around this package), ``environments`` (two
    interpreters), or ``versions`` of the only plug-in (files, or commits of its own repository). ``only``: labels of the cases to compare.
    ``images``: generations per pair that count. Images are compared at ``samples`` seeds if tokens differ (None: the plan's seeds, 0:
    never). ``progress``: print each pair on standard error. Every pair and verdict is stored.

    Raises UnfairComparison for sides that differ in more than the compared setting, NothingMeasured for a plan without such a case,
    Unsupported for a commit of another trial protocol, and Infrastructure if the device is unavailable or lost.
    """
    ways = {"--cases": cases, "--commits": commits, "--env": environments, "--versions": versions}
    if len(way := [option for option, names in ways.items() if names is not None]) != 1:
        raise BadPlan("A comparison needs two sides.",
                      remedy="Use exactly one of --cases A B, --commits A B, --env OLD NEW, --versions OLD NEW; in Python of "
                      "cases=(a, b), commits=(a, b), environments=(old, new), versions=(old, new).")
    if cases and only:
        raise BadPlan("--cases names the two cases that are compared, so --only has no effect.", remedy="Leave out one of the two.")
    machine, (loaded, files) = Machine.parse(machine), prepare(plan, plugins)
    machine.require()
    trial = TrialRequest(loaded.timeout, machine.threads, files, Task.TIMES, memory_cap=machine.memory_cap)

    def configs(count: int, make: MakeSide) -> tuple[Configs, Configs]:
        """Return the configurations of both sides."""
        if cases:
            return sides_of(loaded, machine.device, cases, count, make)
        planned = configs_of(loaded, machine.device, only, count, make)
        return planned, planned

    timed, imaged = configs(images, timed_side), None if samples == 0 else configs(samples or 0, image_side)
    alike = SAME if commits or versions else OTHER_NUMERICS if environments else OTHER_METHODS
    names = commits or environments or cases or versions
    assert names is not None
    with Store.open(store) as target, machine.places() as places, _requests(trial, commits, environments, versions, repository) as requests:
        first = places.identify(requests[0], machine.device)
        second = first if requests[1] == requests[0] else places.identify(requests[1], machine.device)
        where, code = (first[0], second[0]), (first[1], second[1])
        if versions:
            timed = sides_of_versions(timed[0], files, requests)
            imaged = imaged and sides_of_versions(imaged[0], files, requests)
        for name, planned in timed[0].items():
            refuse_unequal(planned.case, timed[1][name].case, where)
        if alike == OTHER_NUMERICS and where[0].fingerprint == where[1].fingerprint:  # two names of one environment
            alike = SAME
        sides = [Side(names[n], timed[n], requests[n]) for n in (0, 1)]
        image_sides = None
        if imaged is not None:
            before, after = (Side(names[n], imaged[n], replace(requests[n], task=Task.IMAGES)) for n in (0, 1))
            image_sides = before, after
        lines = PairLines() if progress else None
        again = [way[0], *names, *(option for file in files for option in ("--plugin", file)), *machine.options()]
        again += ["--repository", str(repository)] if repository else []
        return _PairedRun(loaded, sides, image_sides, alike, where, code, target, terms, places, lines, again, only).run(machine.device)


@contextmanager
def _equal(side: Side, names: Sequence[str]) -> Iterator[tuple[Side, Side]]:
    """Yield one side twice, for the A/A tests.

    The second copy runs from another folder, as two sides do, so that a bias by folder shows up here too.
    """
    copy = replace(side, configs={AA + name: side.configs[name] for name in names})
    with tempfile.TemporaryDirectory(prefix="cachemark-equal-") as folder:
        if names:
            shutil.copytree(Path(side.request.code or PACKAGE.parent, PACKAGE.name), Path(folder, PACKAGE.name),
                            ignore=shutil.ignore_patterns("__pycache__"))
        yield copy, replace(copy, request=replace(side.request, code=folder))


@contextmanager
def _requests(
    trial: TrialRequest, commits: tuple[str, str] | None, environments: tuple[str, str] | None, versions: tuple[str, str] | None,
    repository: Path | None,
) -> Iterator[tuple[TrialRequest, TrialRequest]]:
    """Yield the requests of both sides; commits are checked out until the end of the block."""
    if commits:
        with checkouts(repository_of(repository), commits) as (old, new):
            yield replace(trial, code=code_of(old, commits[0])), replace(trial, code=code_of(new, commits[1]))
    elif versions:
        with version_requests(trial, versions) as requests:
            yield requests
    elif environments:
        old_python, new_python = (replace(trial, python=python, code=str(PACKAGE.parent)) for python in environments)
        yield old_python, new_python
    else:
        yield trial, trial


@dataclass
class _PairedRun:
    """A comparison in progress: measures pairs, tests them, and stores both.

    ``images``: both sides once more for comparing images, or None. ``alike``: the common properties of the sides; ``where`` and ``code``:
    the environment and the code of each; ``options``: of `cachemark compare`, which name the sides.
    """

    plan: Plan
    sides: Sequence[Side]
    images: tuple[Side, Side] | None
    alike: str
    where: tuple[Environment, Environment]
    code: tuple[dict[str, Any], dict[str, Any]]
    store: Store
    terms: Terms
    executor: Executor
    lines: PairLines | None
    options: Sequence[str]
    only: Sequence[str] = ()
    run_id: int = 0
    equal: list[Outcome] = field(default_factory=list)

    def run(self, device: str) -> PairedComparison:
        """Run the comparison as a run of the store."""
        plan, machine, family = self.plan, self.where[1].machine_class, len(self.sides[1].configs)
        if not family:
            raise NothingMeasured(f"Plan {plan.name} has no case to compare.", remedy="See: cachemark explain PLAN")
        earlier = ledger.nights(self.store, plan.name, machine)
        self.equal = ledger.aa_outcomes(o for night in earlier[-ledger.WATCHED:] for o in self.store.outcomes(night.run.id))
        names = self.sides[0].name, self.sides[1].name
        least, _ = ledger.least_effect(ledger.unchanged(self.equal), family, device)
        rule = Rule(self.terms.delta or least, family)
        record = {"sides": list(names), "alike": self.alike, "delta": rule.delta, "configurations": family, "seed": self.terms.seed,
                  "min_coverage": COVERAGE if self.terms.min_coverage is None else self.terms.min_coverage,
                  "code": [dict(code) for code in self.code], "options": list(self.options), "only": list(self.only),
                  "plan": plan.stored()}
        with self.store.new_run(COMPARISON + plan.name, record, self.where[1], self.code[1]) as self.run_id:
            rule = self._measure_and_judge(rule, len(earlier))
        _, sees = ledger.least_effect(ledger.unchanged(self.equal), family, device)
        nights = ledger.nights(self.store, plan.name, machine)
        (ours,) = (night for night in nights if night.run.id == self.run_id)
        return PairedComparison(self.run_id, names, ours.tally, rule, sees, ledger.standing(nights))

    def _measure_and_judge(self, rule: Rule, turn: int) -> Rule:
        """Measure as many pairs as the test needs and store the verdicts; return the rule for times.

        Tonight's A/A pairs may raise the minimum effect of the rule.
        """
        before, after = self.sides
        end = time.monotonic() + 60 * self.terms.minutes if self.terms.minutes is not None else math.inf
        configs, going = list(after.configs), lambda: time.monotonic() < end
        lines = self.lines or PairLines()  # without progress, nothing is printed
        with _equal(before, ledger.equal_configs(configs, turn) if self.terms.aa else []) as (original, other):
            runner, equal = self._runner(before, after, self.terms.seed), self._runner(original, other, self.terms.seed + 1)

            def measure(names: list[str]) -> list[PairOfOutcomes]:
                new_pairs = runner.round([name for name in names if name not in original.configs])
                for pair in new_pairs:
                    refuse_unfair(pair.before, pair.after, self.where)
                return new_pairs + equal.round([name for name in names if name in original.configs])

            pairs = measure_until_decided([*configs, *original.configs], measure, rule, going, alike=self.alike,
                                          flake_rate=flakes.observed_rate(self.equal), left=lines.left)
        self.equal += ledger.aa_outcomes(self.store.outcomes(self.run_id))
        rule = replace(rule, delta=max(rule.delta, ledger.largest_process_bias(ledger.unchanged(self.equal), rule.family)))
        rows = [*verdicts({c: pairs[c] for c in configs}, rule, self.alike), *verdicts({c: pairs[c] for c in original.configs}, rule)]
        self.store.save_verdicts(self.run_id, rows)  # the images may take long, and may fail
        if images := self._images({c: pairs[c] for c in configs}, end):
            self.store.save_verdicts(self.run_id, [*rows, *images])
        return rule

    def _images(self, pairs: dict[str, ConfigPairs], end: float) -> list[Verdict]:
        """Return verdicts on the images of configurations whose tokens differ, from one pair each.

        Failed pairs are repeated often enough to distinguish a flake from a cause.
        """
        if self.images is None or not (configs := other_tokens(pairs)):
            return []
        if time.monotonic() >= end:
            reason = "time was up before its images were compared"
            return [Verdict(pairs[config].measured[0].after.case.key, config, "status", NOT_COMPARED, reason) for config in configs]
        runner = self._runner(*self.images, what="images")
        image_pairs = {pair.config: pair for pair in runner.round(configs)}
        for _ in range(FlakeRule(len(pairs)).enough):
            again = [config for config, pair in image_pairs.items() if flakes.alone((pair.before, pair.after))]
            if not again or time.monotonic() >= end:
                break
            image_pairs |= {pair.config: pair for pair in runner.round(again)}
        return seedwise(image_pairs, alike=self.alike)

    def _runner(self, before: Side, after: Side, seed: int = 0, what: str = "times") -> PairRunner:
        return PairRunner(before, after, self.executor, seed, lambda pair: self._keep(pair, (before.name, after.name), what))

    def _keep(self, pair: PairOfOutcomes, names: tuple[str, str], what: str) -> None:
        """Store both sides of a pair and report it."""
        trial = f"{pair.config}, {'pair' if what == 'times' else what} {pair.number}"
        for side, outcome, name in (("before", pair.before, names[0]), ("after", pair.after, names[1])):
            facts = PairFacts(run=self.run_id, configuration=pair.config, number=pair.number, swapped=pair.swapped, redone=pair.redone,
                              what=what, side=side, name=name)
            self.store.save(self.run_id, replace(outcome, facts=replace(outcome.facts, pair=facts)), trial=f"{trial}, {side}")
        if self.lines is not None:
            self.lines.measured(pair, what)

