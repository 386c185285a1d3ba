"""Leases on runs, so that a run whose process was killed is recognized.

On its own machine, the system knows whether a process has ended. Elsewhere its heartbeats decide, one per :data:`BEAT` seconds: after
:data:`LAPSE` seconds without one a run counts as interrupted, and as running again with the next. Times are those of the server's clock,
or for a file those of the writers' clocks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from ..core.processes import LAPSE, ended, holder
from .schema import RunRow


def hold(session: Session, run_id: int) -> None:
    """Lease a run to this process, or renew the lease.

    A run that was marked as interrupted meanwhile, for example while the machine slept, is running again.
    """
    unfinished = update(RunRow).where(RunRow.id == run_id, RunRow.state.in_(["running", "interrupted"]))
    session.execute(unfinished.values(state="running", holder=holder(), beat=_now(session)))


def abandoned(session: Session, among: Iterable[RunRow]) -> set[int]:
    """Return the numbers of running runs without a valid lease."""
    running = [run for run in among if run.state == "running"]
    now = _now(session) if running else 0.0
    return {run.id for run in running if _lapsed(run, now)}


def _now(session: Session) -> float:
    """Return seconds since 1970 by the server's clock, or by this machine's for a file."""
    if session.get_bind().dialect.name == "postgresql":
        return float(session.scalar(select(func.extract("epoch", func.clock_timestamp()))) or 0.0)
    return time.time()


def _lapsed(run: RunRow, now: float) -> bool:
    """Return whether the lease of a run is no longer valid.

    Clocks may differ by a minute or two: a heartbeat from the future counts as equally far in the past.
    """
    has_ended = ended(run.holder)
    return abs(now - run.beat) > LAPSE if has_ended is None else has_ended
