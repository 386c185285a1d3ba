"""Runs whose claims were looked at while seeds were added, because they carry outcomes of such a run."""

from __future__ import annotations

from sqlalchemy import Text, or_, select, type_coerce
from sqlalchemy.orm import Session

from .schema import MembershipRow, RunRow


def looked_at(session: Session) -> set[int]:
    """Numbers of the runs that carry an outcome which also belongs to a sequential run. A plain run that measures the plan at the
    number of seeds at which another one stopped has not chosen that number freely, so it is judged as that one is."""
    plan = type_coerce(RunRow.plan_json, Text)
    sequential = select(RunRow.id).where(or_(plan.like('%"sequential": true%'), plan.like('%"sequential":true%')))
    theirs = select(MembershipRow.outcome_id).where(MembershipRow.run_id.in_(sequential))
    return set(session.scalars(select(MembershipRow.run_id).where(MembershipRow.carried, MembershipRow.outcome_id.in_(theirs)).distinct()))
