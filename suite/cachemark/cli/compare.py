"""``cachemark compare``: two arms, pair by pair, judged by a test."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import coverage_option, echo_json, json_option, plugin_option, store_option

if TYPE_CHECKING:
    from ..gate.comparison import CellPairs, Tally
    from ..gate.nights import GateStanding
    from ..stats.paired_test import Rule
    from ..store.db import Store
    from ..store.rows import Verdict
    from ..workflows.contestants import Contest, Contestants
    from ..workflows.pairs import Pair, PairRunner


LEAST, MOST = 5, 2_000  # seeds at which images are compared: fewer say nothing, and all their images are held at once


def _samples(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    """0, or enough that something can be found in them."""
    if value is not None and 0 < value < LEAST:
        raise click.BadParameter(f"{value} images can show nothing; give {LEAST} to {MOST}, or 0 for none.")
    return value


@click.command()
@click.argument("plan")
@click.option("--arms", nargs=2, metavar="A B", help="Two cases of the plan, by label, such as \"window 1/2\" \"linear 1/2\".")
@click.option("--commits", nargs=2, metavar="A B", help="Two commits; every case of the plan runs at both.")
@click.option("--env", "environments", nargs=2, metavar="OLD NEW", help="Two Python interpreters; every case runs in both.")
@click.option("--case", "cases", multiple=True, help="Only this case of the plan, by label; repeatable. Not with --arms.")
@click.option("--repository", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Where the commits are.  [default: the checkout around this package]")
@store_option
@plugin_option
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to measure.")
@click.option("--threads", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default="all", help="CPU threads of an arm.")
@click.option("--delta", type=click.FloatRange(0, 1, min_open=True, max_open=True),
              help="Minimum effect, a share.  [default: what this machine can see]")
@click.option("--images", type=click.IntRange(min=3), default=8, show_default=True, help="Counted generations of an arm in a pair.")
@click.option("--samples", type=click.IntRange(0, MOST), callback=_samples,
              help=f"Seeds at which images are compared where tokens differ: 0 for none, or {LEAST} and more.  [default: the plan's]")
@click.option("--minutes", type=click.FloatRange(min=0), help="Begin no pair after so many minutes.  [default: no limit]")
@click.option("--aa/--no-aa", default=True, show_default=True, help="Also compare one cell with itself, to know the false-alarm rate.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order of the arms.")
@coverage_option
@json_option
def compare(
    plan: str, arms: tuple[str, str] | None, commits: tuple[str, str] | None, environments: tuple[str, str] | None, cases: tuple[str, ...],
    repository: Path | None, store_url: str, plugin_files: tuple[str, ...], device: str, threads: int, delta: float | None, images: int,
    samples: int | None, minutes: float | None, aa: bool, seed: int, min_coverage: float | None, as_json: bool,
) -> None:
    """Compare two arms of PLAN in pairs of fresh processes, and judge every cell by a test with a known false-alarm rate. Where the arms
    give other tokens, their images are compared too, seed by seed.

    Exit codes: 0 nothing regressed, 1 regressed, 2 usage, 3 more than a tenth of the cells not resolved, 4 nothing or too little
    measured, 5 infrastructure.
    """
    from ..core import plugins
    from ..plan import schema as plans
    from ..store.db import Store
    from ..trial.request import Task, TrialRequest
    from ..workflows.contestants import Contest, contestants

    added = [name for file in plugin_files for name in plugins.load(file)]
    loaded = plans.load(plan).joined(added)
    options = TrialRequest(loaded.timeout, threads, tuple(str(Path(file).resolve()) for file in plugin_files), task=Task.TIMES)
    wanted = Contest(loaded, device, options, images, arms, commits, environments, cases, repository, samples)
    with contestants(wanted) as sides, Store.open(store_url) as store:
        found = hold(wanted, sides, store, Terms(delta, minutes, aa, seed, min_coverage))
    if as_json:
        echo_json({"exit_code": found.exit_code, "run": found.run_id, "delta": found.rule.delta, "sees": found.sees,
                   "standing": asdict(found.standing), "rows": [asdict(row) for row in found.tally.rows]})
    else:
        _print(found, sides)
    sys.exit(found.exit_code)


@dataclass(frozen=True)
class Terms:
    """How a comparison is held: minimum effect (None: what the machine can see), minutes (None: no limit), equal arms, seed, and the
    share of its cells of which something must be said (None: the usual one)."""

    delta: float | None = None
    minutes: float | None = None
    aa: bool = True
    seed: int = 0
    min_coverage: float | None = None


@dataclass(frozen=True)
class Ended:
    """A comparison that has ended."""

    run_id: int
    tally: Tally
    rule: Rule
    sees: str
    standing: GateStanding
    held: dict[str, CellPairs]

    @property
    def exit_code(self) -> int:
        """That of the tally; an advisory gate fails nothing by times."""
        return self.tally.ended(self.standing.advisory)


def hold(wanted: Contest, sides: Contestants, store: Store, terms: Terms) -> Ended:
    """Measure and judge; every pair and every verdict is in the store."""
    from ..core.errors import NothingMeasured
    from ..gate import nights as ledger
    from ..gate.comparison import COVERAGE, measure_until_decided, verdicts
    from ..stats.paired_test import Rule

    machine, cells = sides.where[1].machine_class, list(sides.after.cells)
    if not cells:
        raise NothingMeasured(f"Plan {wanted.plan.name} has no case to compare.", remedy="See: cachemark run PLAN --explain")
    earlier = ledger.nights(store, wanted.plan.name, machine)
    equal = ledger.unchanged(o for night in earlier[-ledger.WATCHED:] for o in store.outcomes(night.run.id))
    least, told = ledger.least_effect(equal, len(cells), wanted.device)
    rule = Rule(terms.delta or least, len(cells))
    stated = {"arms": list(sides.names), "alike": sides.alike, "delta": rule.delta, "cells": len(cells), "seed": terms.seed,
              "min_coverage": COVERAGE if terms.min_coverage is None else terms.min_coverage,
              "code": [dict(code) for code in sides.code], "plan": wanted.plan.model_dump(mode="json")}
    run_id = store.begin_run(ledger.PREFIX + wanted.plan.name, stated, sides.where[1], sides.code[1])
    state = "interrupted"
    try:
        measure = _measurer(sides, terms, lambda couple, names: _keep(store, run_id, couple, names), refuse=_refuser(sides))
        names = [*cells, *measure.extra]
        end = time.monotonic() + 60 * terms.minutes if terms.minutes is not None else math.inf
        held = measure_until_decided(names, measure, rule, lambda: time.monotonic() < end)
        rows = [*verdicts({c: held[c] for c in cells}, rule, sides.alike), *verdicts({c: held[c] for c in measure.extra}, rule)]
        _file(store, run_id, wanted, sides, rows)  # the images may take long, and may fail
        if seen := _images(sides, store, run_id, {c: held[c] for c in cells}, end):
            rows += seen
            _file(store, run_id, wanted, sides, rows)
        state = "finished"
    except Exception:
        state = "failed"
        raise
    finally:
        store.finish_run(run_id, state)
    ours = ledger.nights(store, wanted.plan.name, machine)
    (mine,) = (night for night in ours if night.run.id == run_id)
    return Ended(run_id, mine.tally, rule, told, ledger.standing(ours), held)


def _images(sides: Contestants, store: Store, run_id: int, held: dict[str, CellPairs], end: float) -> list[Verdict]:
    """Rows about the images of cells whose arms gave other tokens: one pair tells, because nothing of it is a time."""
    from ..gate.comparison import NOT_COMPARED, other_tokens
    from ..gate.seedwise import seedwise
    from ..store.rows import Verdict
    from ..workflows.pairs import PairRunner

    if sides.seen is None or not (cells := other_tokens(held)):
        return []
    if time.monotonic() >= end:
        return [Verdict("", cell, "status", NOT_COMPARED, "time was up before its images were compared") for cell in cells]
    course = PairRunner(*sides.seen, watcher=_Each(lambda couple: _keep(store, run_id, couple, sides.names, "images"), ", images"))
    return seedwise({couple.cell: couple for couple in course.round(cells)}, alike=sides.alike)


@dataclass
class _Measurer:
    """Asks the courses for pairs: that of the two sides, and that of the equal arms."""

    course: PairRunner
    equal: PairRunner | None
    extra: tuple[str, ...]
    refuse: Callable[[Pair], None]

    def __call__(self, names: list[str]) -> list[Pair]:
        real = [name for name in names if name not in self.extra]
        found = self.course.round(real) if real else []
        for couple in found:
            self.refuse(couple)
        if self.equal is not None and (rest := [name for name in names if name in self.extra]):
            found += self.equal.round(rest)
        return found


def _measurer(
    sides: Contestants, terms: Terms, keep: Callable[[Pair, tuple[str, str]], None], refuse: Callable[[Pair], None],
) -> _Measurer:
    from ..gate.comparison import AA
    from ..workflows.pairs import PairRunner

    course = PairRunner(sides.before, sides.after, terms.seed, _Each(lambda couple: keep(couple, sides.names)))
    if not terms.aa:
        return _Measurer(course, None, (), refuse)
    first, planned = next(iter(sides.before.cells.items()))
    name = AA + first
    same = replace(sides.before, cells={name: planned})
    equal = PairRunner(same, same, terms.seed + 1, _Each(lambda couple: keep(couple, (sides.before.name, sides.before.name))))
    return _Measurer(course, equal, (name,), refuse)


@dataclass(frozen=True)
class _Each:
    """Hands on each pair, and says on standard error that it was measured."""

    keep: Callable[[Pair], None]
    what: str = ""

    def paired(self, couple: Pair) -> None:
        self.keep(couple)
        said = "" if couple.ok else f": {couple.before.status}, {couple.after.status}"
        click.echo(f"[{couple.number}] {couple.cell}{self.what}{said}", err=True)


def _refuser(sides: Contestants) -> Callable[[Pair], None]:
    from ..gate.comparison import refuse_unfair

    return lambda couple: refuse_unfair(couple.before, couple.after, sides.where)


def _keep(store: Store, run_id: int, couple: Pair, names: tuple[str, str], what: str = "times") -> None:
    """Store both arms of a pair, each under the name of its process. ``what`` was measured: ``times`` or ``images``."""
    told = {"run": run_id, "cell": couple.cell, "number": couple.number, "swapped": couple.swapped, "redone": couple.redone, "what": what}
    trial = f"{couple.cell}, {'pair' if what == 'times' else what} {couple.number}"
    for arm, outcome, name in (("before", couple.before, names[0]), ("after", couple.after, names[1])):
        facts = {**outcome.facts, "pair": {**told, "arm": arm, "name": name}}
        store.save(run_id, replace(outcome, facts=facts), trial=f"{trial}, {arm}")


def _file(store: Store, run_id: int, wanted: Contest, sides: Contestants, rows: list[Any]) -> None:
    """File the verdicts. What a comparison is judged against is its first arm, so that stands where a baseline would."""
    from ..core.spec import digest

    about = {"run": run_id, "arm": sides.names[0], "plan": wanted.plan.name, "code": dict(sides.code[0])}
    number = store.note_baseline(digest(about, 64), name=sides.names[0], plan=wanted.plan.name,
                                 machine_class=sides.where[0].machine_class, reason="first arm of a comparison", run_id=run_id)
    store.save_verdicts(run_id, number, rows)


def _print(found: Ended, sides: Contestants) -> None:
    from ..gate.comparison import SAME_TOKENS

    word = {0: "Passed", 1: "Regressed", 3: "Not resolved", 4: "Too little was measured", 5: "Infrastructure"}[found.exit_code]
    click.echo(f"{word}: {sides.names[0]} → {sides.names[1]}, comparison {found.run_id}. {found.sees}")
    for row in found.tally.rows:
        if row.metric in ("latency", "status") or row.verdict not in ("equivalent", "not_compared"):
            click.echo(f"  {row.verdict}: {row.label}, {row.metric}: {row.reason}")
    if same := sum(row.reason == SAME_TOKENS for row in found.tally.rows):
        click.echo(f"Images of {same} cells: {SAME_TOKENS}.")
    click.echo(str(found.standing))
