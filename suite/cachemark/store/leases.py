"""Leases on runs, so that a run whose process was killed is recognized.

On its own machine, the system knows whether a process has ended. Elsewhere its heartbeats decide, one per :data:`BEAT` seconds: after
:data:`LAPSE` seconds without one a run counts as interrupted, and as running again with the next; its row stays as it is. Times are those
of the server's clock, or for a file those of the writers' clocks.
"""

from __future__ import annotations

import time

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from ..core.processes import LAPSE, ended, holder
from .schema import RunRow


def hold(session: Session, run_id: int) -> None:
    """Lease a running run to this process, or renew the lease."""
    running = update(RunRow).where(RunRow.id == run_id, RunRow.state == "running")
    session.execute(running.values(holder=holder(), beat=_now(session)))


def state(session: Session, run: RunRow) -> str:
    """Return the state of a run: ``interrupted`` for a running one without a valid lease, else its row's."""
    return "interrupted" if run.state == "running" and _lapsed(run, _now(session)) else run.state


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
