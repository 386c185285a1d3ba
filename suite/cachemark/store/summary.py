"""Every figure of a store at a glance: medians of all metrics of all runs, without building an object for each outcome."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from sqlalchemy import select

from .db import Store
from .rows import unpack
from .schema import CaseRow, EnvironmentRow, MembershipRow, OutcomeRow, RunRow, SampleRow


class StoredFigure(NamedTuple):
    """The median of one metric of one case in one run, ``values`` says of how many; of a pruned outcome, of how many quantiles."""

    run: int
    started: str
    machine_class: str
    case_key: str
    model: str
    method: str
    budget: str
    metric: str
    values: int
    median: float


def summary(store: Store, *metrics: str) -> list[StoredFigure]:
    """Figures of these metrics, of all where none is named, in the order of runs and outcomes. Carried outcomes count in every run."""
    wanted = (
        select(RunRow.id, RunRow.started, EnvironmentRow.machine_class, CaseRow.key, CaseRow.model, CaseRow.method, CaseRow.budget,
               SampleRow.metric, SampleRow.count, SampleRow.packed)
        .join(MembershipRow, MembershipRow.run_id == RunRow.id)
        .join(EnvironmentRow, EnvironmentRow.id == RunRow.environment_id)
        .join(OutcomeRow, OutcomeRow.id == MembershipRow.outcome_id)
        .join(CaseRow, CaseRow.key == OutcomeRow.case_key)
        .join(SampleRow, SampleRow.outcome_id == OutcomeRow.id)
        .order_by(MembershipRow.id, SampleRow.metric)
    )
    if metrics:
        wanted = wanted.where(SampleRow.metric.in_(metrics))
    with store._reading() as session:
        return [StoredFigure._make((*row[:-1], statistics.median(unpack(row[-1])))) for row in session.execute(wanted)]
