"""Takes what other stores hold into one: results that come back from machines that could not write into it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import update

from .db import Store
from .rows import RunRecord
from .schema import RunRow

CONTENT = "merged_from"  # in a run's code: where it comes from, so that merging again adds nothing


@dataclass(frozen=True)
class Merged:
    """How much was taken over, and how many runs were here already."""

    runs: int
    outcomes: int
    known: int


def merge(target: Store, source: Store) -> Merged:
    """Add every run of ``source`` that ``target`` does not have, with outcomes, artifacts and which were carried. Runs get new numbers.

    A run is the same where plan, start, numerics and code are: after an interruption, or a second time, only what is missing is added.
    Baselines and verdicts are not taken over: they are judgements, and made anew where they are wanted.
    """
    runs = outcomes = known = 0
    for run in sorted(source.runs(), key=lambda r: r.id):
        origin = _origin(run)
        number = _number(target, origin)
        known += number is not None
        if number is None:
            runs += 1
            number = target.begin_run(run.plan, run.plan_json, run.environment, {**run.code, CONTENT: origin})
            _as_it_was(target, number, run)
        outcomes += _outcomes(target, source, run.id, number)
    return Merged(runs, outcomes, known)


def _origin(run: RunRecord) -> str:
    return str(run.code.get(CONTENT) or f"{run.plan} {run.started} {run.environment.fingerprint} {run.code.get('hash')}")


def _as_it_was(target: Store, number: int, run: RunRecord) -> None:
    """A run that was taken over began and ended when it did, not now."""
    with target._writing() as session:
        values = {"started": run.started, "finished": run.finished, "state": run.state}
        session.execute(update(RunRow).where(RunRow.id == number).values(**values))


def _number(target: Store, origin: str) -> int | None:
    """The run of the target that came from there, or is it."""
    for run in target.runs():
        if origin == _origin(run):
            return run.id
    return None


def _outcomes(target: Store, source: Store, from_run: int, to_run: int) -> int:
    """Add the outcomes of a run that the target's run lacks; one that was carried is linked where the target has it."""
    there = {(o.case.key, o.skip_key, str(o.status)) for o in target.outcomes(to_run)}
    carried, added = source.carried(from_run), 0
    for outcome in source.outcomes(from_run):
        if (outcome.case.key, outcome.skip_key, str(outcome.status)) in there:
            continue
        if outcome.case.key in carried and target.carry(to_run, outcome.skip_key) is not None:
            continue
        files = {name: source.artifact(file) for name, file in outcome.artifacts.items()}
        target.save(to_run, outcome, files)
        added += 1
    return added
