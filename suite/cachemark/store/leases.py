"""Heartbeats of runs, so that a run whose process was killed is recognized.

After :data:`LAPSE` seconds without a heartbeat a run counts as interrupted, and as running again with the next; its row stays as it is.
Times are read from the server's clock, or for a file from the writers' clocks.
"""

from __future__ import annotations

import time

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from .schema import RunRow

BEAT = 15.0  # seconds between two heartbeats
LAPSE = 5 * BEAT


def beat(session: Session, run_id: int) -> None:
    """Store a heartbeat of a running run."""
    session.execute(update(RunRow).where(RunRow.id == run_id, RunRow.state == "running").values(beat=_now(session)))


def state(session: Session, run: RunRow) -> str:
    """Return the state of a run: ``interrupted`` for a running one without heartbeats, else its row's.

    Clocks may differ by a minute: a heartbeat from the future counts as equally far in the past.
    """
    return "interrupted" if run.state == "running" and abs(_now(session) - run.beat) > LAPSE else run.state


def _now(session: Session) -> float:
    """Return seconds since 1970 by the server's clock, or by this machine's for a file."""
    if session.get_bind().dialect.name == "postgresql":
        return float(session.scalar(select(func.extract("epoch", func.clock_timestamp()))) or 0.0)
    return time.time()
