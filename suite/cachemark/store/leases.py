"""Leases in the store: who measures on a device, and which process a run belongs to, so that one whose process was killed is known.

A run has ended where its process has. On the machine of that process the system knows. Everywhere else its signs of life say so, one each
:data:`BEAT` seconds: after :data:`LAPSE` seconds without one the run counts as interrupted, and as running again with the next. On a
server the times are those of the server's clock, on a file those of the clocks of its writers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from ..core.processes import LAPSE, ended, holder
from .rows import insert_once
from .schema import LeaseRow, RunRow

_RUN = "run "  # before the number, where the lease is of a run and not of a device


def take(session: Session, device: str, us: str) -> str:
    """Enter a holder for a device, or again as a sign of life. Returns who holds it then: the caller, or another one whose lease holds."""
    insert_once(session, LeaseRow, {"device": device, "holder": us, "beat": _now(session)})
    row = session.scalars(select(LeaseRow).filter_by(device=device).with_for_update()).one()
    if row.holder != us and not _lapsed(row, _now(session)):
        return row.holder
    row.holder, row.beat = us, _now(session)
    return us


def give(session: Session, device: str, us: str) -> None:
    """Delete the lease of a holder on a device; another one's is left alone."""
    session.execute(delete(LeaseRow).filter_by(device=device, holder=us))


def hold(session: Session, run_id: int) -> None:
    """Enter this process as the one that a run belongs to, or give a sign of its life: a run that was called interrupted meanwhile, after
    a night's sleep of the machine say, is running again."""
    values = {"device": f"{_RUN}{run_id}", "holder": holder(), "beat": _now(session)}
    insert_once(session, LeaseRow, values)
    session.execute(update(LeaseRow).where(LeaseRow.device == values["device"]).values(holder=values["holder"], beat=values["beat"]))
    session.execute(update(RunRow).where(RunRow.id == run_id, RunRow.state == "interrupted").values(state="running"))


def release(session: Session, run_id: int) -> None:
    """Delete the lease of a run that has ended."""
    session.execute(delete(LeaseRow).where(LeaseRow.device == f"{_RUN}{run_id}"))


def abandoned(session: Session, among: Iterable[RunRow]) -> set[int]:
    """Numbers of those runs that are stored as running and belong to no process any more."""
    running = {row.id for row in among if row.state == "running"}
    if not running:
        return set()
    leases = session.scalars(select(LeaseRow).where(LeaseRow.device.in_([f"{_RUN}{number}" for number in running])))
    now = _now(session)
    return running - {int(lease.device.removeprefix(_RUN)) for lease in leases if not _lapsed(lease, now)}


def _now(session: Session) -> float:
    """Seconds since 1970 by the clock that all who use the database share, if there is one."""
    if session.get_bind().dialect.name == "postgresql":
        return float(session.scalar(select(func.extract("epoch", func.clock_timestamp()))) or 0.0)
    return time.time()


def _lapsed(lease: LeaseRow, now: float) -> bool:
    """Return whether a lease no longer holds. Clocks that differ are trusted to a minute or two: a sign of life from the future counts as
    one equally far in the past."""
    has_ended = ended(lease.holder)
    return abs(now - lease.beat) > LAPSE if has_ended is None else has_ended
