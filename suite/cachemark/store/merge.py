"""Merging of stores from machines that could not write into a common store."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from sqlalchemy import select, update

from ..core.result import Outcome
from ..core.spec import canonical, digest
from . import leases
from .db import Store, _whole_outcomes
from .rows import RunRecord, insert_once, outcome_of, verdict_of
from .schema import BaselineRow, MembershipRow, RunRow, TrialRow, VerdictRow

CONTENT = "merged_from"  # in a run's code: its origin, so that merging again adds nothing


@dataclass(frozen=True)
class Merged:
    """Numbers of added runs and outcomes, and of runs that were present already."""

    runs: int
    outcomes: int
    known: int


class Member(NamedTuple):
    """Outcome of a run: number, trial name (or empty), measuring run, and whether another run reused it."""

    number: int
    outcome: Outcome
    trial: str
    run: int
    reused: bool


def merge(target: Store, source: Store) -> Merged:
    """Add every run of ``source`` that ``target`` lacks, with outcomes, artifacts, trials and reused outcomes.

    Runs get new numbers. Two runs are the same if plan, start, numerics and code are equal; a repeated merge adds only what is missing and
    updates a run that continued meanwhile. A run is ``running`` until all of it is present. Verdicts of comparisons are copied; those
    against baselines are not, because `check` makes them anew.
    """
    existing = {_origin(run): run.id for run in target.runs()}
    numbers: dict[int, int] = {}  # of the source's runs in the target
    outcomes = 0
    runs = sorted(source.runs(), key=lambda r: r.id)
    for run in runs:
        origin = _origin(run)
        number = existing.get(origin)
        if number is None:
            number = target.begin_run(run.plan, run.plan_json, run.environment, {**run.code, CONTENT: origin})
            _date(target, number, replace(run, state="running", finished=None))
        numbers[run.id] = number
        with target.alive(number) if origin not in existing else nullcontext():
            outcomes += _add_outcomes(target, source, run.id, numbers)
        here = target.run(number)
        unfinished = here.state in ("running", "interrupted") and (here.state, here.finished) != (run.state, run.finished)
        if run.is_comparison and (unfinished or not target.verdicts(number)):
            _add_verdicts(target, source, run, number)
        if unfinished:
            _date(target, number, run)
    added = len(numbers.keys() - {run.id for run in runs if _origin(run) in existing})
    return Merged(added, outcomes, len(runs) - added)


def _origin(run: RunRecord) -> str:
    return str(run.code.get(CONTENT) or f"{run.plan} {run.started} {run.environment.fingerprint} {run.code.get('hash')}")


def _date(target: Store, number: int, run: RunRecord) -> None:
    """Set the times and state of a merged run to those of its origin."""
    with target._writing() as session:
        values = {"started": run.started, "finished": run.finished, "state": run.state}
        session.execute(update(RunRow).where(RunRow.id == number).values(**values))
        if run.state != "running":
            leases.release(session, number)


def _members(store: Store, run_id: int) -> list[Member]:
    """Return the outcomes of a run in the order in which they were added."""
    query = _whole_outcomes().join(TrialRow).join(MembershipRow).add_columns(TrialRow.name, TrialRow.run_id, MembershipRow.reused)
    with store._reading() as session:
        rows = session.execute(query.where(MembershipRow.run_id == run_id).order_by(MembershipRow.id))
        return [Member(row.id, outcome_of(row), name or "", run, reused) for row, name, run, reused in rows]


def _identity(outcome: Outcome) -> tuple[object, ...]:
    """Return the fields that tell an outcome from the others of its run, including other pairs of its cell."""
    pair = {name: value for name, value in outcome.facts.get("pair", {}).items() if name != "run"}
    return outcome.case.key, outcome.result_key, outcome.status, outcome.output_hash, outcome.seconds, canonical(pair)


def _add_outcomes(target: Store, source: Store, run_id: int, numbers: dict[int, int]) -> int:
    """Add missing outcomes of a run, link reused ones, and return the number added."""
    members, number = _members(target, numbers[run_id]), numbers[run_id]
    present = Counter(_identity(m.outcome) for m in members)
    linked, added = {m.outcome.case.key for m in members if m.reused}, 0
    earlier: dict[int, dict[tuple[object, ...], int]] = {}
    for member in _members(source, run_id):
        identity = _identity(member.outcome)
        if present[identity] > 0:
            present[identity] -= 1
            continue
        if not member.reused:
            _copy(target, source, member, number)
            added += 1
        elif member.outcome.case.key not in linked:
            if member.run not in earlier:
                earlier[member.run] = {_identity(m.outcome): m.number for m in _members(target, numbers[member.run])}
            with target._writing() as session:
                insert_once(session, MembershipRow, {"run_id": number, "outcome_id": earlier[member.run][identity], "reused": True})
    return added


def _copy(target: Store, source: Store, member: Member, number: int) -> None:
    """Save an outcome of the source in a run of the target, and update the run in its pair."""
    outcome = member.outcome
    if pair := outcome.facts.get("pair"):
        outcome = replace(outcome, facts={**outcome.facts, "pair": {**pair, "run": number}})
    files = {name: source.artifacts.read(file) for name, file in outcome.artifacts.items()}
    target.save(number, outcome, files, trial=member.trial)


def _add_verdicts(target: Store, source: Store, run: RunRecord, number: int) -> None:
    """Copy the verdicts of a comparison, and replace existing ones."""
    with source._reading() as session:
        query = select(VerdictRow, BaselineRow).join_from(VerdictRow, BaselineRow)
        rows = session.execute(query.where(VerdictRow.run_id == run.id).order_by(VerdictRow.id)).all()
    for baseline in dict.fromkeys(row for _, row in rows):
        mine = target.note_baseline(digest([_origin(run), baseline.digest], 64), name=baseline.name, plan=baseline.plan,
                                    machine_class=baseline.machine_class, reason=baseline.reason, run_id=number)
        target.save_verdicts(number, mine, [verdict_of(row) for row, of in rows if of is baseline])
