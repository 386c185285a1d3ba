"""Replacement of an accepted baseline: by promotion in the same environment, by a new epoch in another one; and its expiry.

Either needs a reason, which stands in the file beside what it replaces, so that a reviewer sees both in the diff.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..core.errors import BadBaseline, NothingMeasured
from ..store.db import Store
from ..store.exchange import Exchange
from ..store.rows import RunRecord
from . import baselines

DAYS = 180  # for which a baseline holds unless told otherwise


def promote(
    store: Store, run_id: int | None, root: Path | str = baselines.ROOT, name: str | None = None, *, reason: str, days: int = DAYS,
) -> Path:
    """Put a finished run in the place of an accepted baseline of the same plan and environment. Raises BadBaseline without a reason,
    without a baseline to replace, for another plan, and for another numerics fingerprint, which asks for :func:`rebase`."""
    run = store.run(run_id)
    baseline = _replaced(run, root, name, reason)
    if baseline.environment.fingerprint != run.environment.fingerprint:
        raise BadBaseline(f"Run {run.id} was measured with other numerics than {baseline.source}: {_both(baseline, run)}.",
                          remedy="An upgrade begins a new epoch: cachemark baseline rebase --reason …")
    return baselines.save(store, run.id, root, name, reason=reason, days=days, epoch=epoch_of(baseline), replaces=_told(baseline))


def rebase(
    store: Store, run_id: int | None, root: Path | str = baselines.ROOT, name: str | None = None, *, reason: str, days: int = DAYS,
) -> Path:
    """Begin a new epoch with a finished run in another environment. Raises BadBaseline as :func:`promote` does, and where the numerics
    are the same: then it would hide a regression as an upgrade."""
    run = store.run(run_id)
    baseline = _replaced(run, root, name, reason)
    if baseline.environment.fingerprint == run.environment.fingerprint:
        raise BadBaseline(f"Run {run.id} has the numerics of {baseline.source}: nothing was upgraded.",
                          remedy="Accept changed figures with: cachemark baseline promote --reason …")
    return baselines.save(store, run.id, root, name, reason=reason, days=days, epoch=epoch_of(baseline) + 1, replaces=_told(baseline))


def epoch_of(baseline: Exchange) -> int:
    """The number of a baseline's epoch, from 1."""
    return int(baseline.meta.get("epoch", 1))


def refuse_expired(baseline: Exchange, now: datetime | None = None) -> None:
    """Raise NothingMeasured for a baseline whose time is over: what was accepted so long ago judges nothing."""
    expires = baseline.meta.get("expires")
    if expires is None:
        return
    try:
        when = datetime.fromisoformat(str(expires))
    except ValueError as error:
        raise BadBaseline(f"{baseline.source} expires {expires!r}, which is no date.",
                          remedy="Take the file from version control.") from error
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    if when < (now or datetime.now(UTC)):
        raise NothingMeasured(f"{baseline.source} expired on {when.date()}.",
                              remedy="Accept a fresh run: cachemark baseline promote --reason …")


def _replaced(run: RunRecord, root: Path | str, name: str | None, reason: str) -> Exchange:
    if not reason.strip():
        raise BadBaseline("A baseline is accepted for a reason.", remedy="Say it: --reason \"faster attention since 1a2b3c\"")
    baseline = baselines.load(baselines.path_of(root, run.environment.machine_class, name or run.plan))
    if baseline.meta.get("plan") != run.plan:
        raise BadBaseline(f"{baseline.source} is of plan {baseline.meta.get('plan')!r}, run {run.id} of {run.plan!r}.",
                          remedy="Name a run of that plan, or save it under another --name.")
    return baseline


def _both(baseline: Exchange, run: RunRecord) -> str:
    return f"{baseline.environment.fingerprint} then, {run.environment.fingerprint} now"


def _told(baseline: Exchange) -> dict[str, Any]:
    """The facts that are kept of a baseline that is replaced."""
    known = ("run", "saved", "reason", "epoch")
    return {"digest": baseline.digest, "fingerprint": baseline.environment.fingerprint, "commit": baseline.code.get("commit"),
            **{key: baseline.meta[key] for key in known if key in baseline.meta}}
