"""How an accepted baseline gives way to another: by promotion in the same environment, by a new epoch in another one; and how it expires.

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

DAYS = 180  # a baseline stands so long unless told otherwise


def promote(
    store: Store, run_id: int | None, root: Path | str = baselines.ROOT, name: str | None = None, *, reason: str, days: int = DAYS,
) -> Path:
    """Put a finished run in the place of an accepted baseline of the same plan and environment. Raises BadBaseline without a reason,
    without a baseline to replace, for another plan, and for another numerics fingerprint, which asks for :func:`rebase`."""
    run = store.run(run_id)
    held = _replaced(run, root, name, reason)
    if held.environment.fingerprint != run.environment.fingerprint:
        raise BadBaseline(f"Run {run.id} was measured with other numerics than {held.source}: {_both(held, run)}.",
                          remedy="An upgrade begins a new epoch: cachemark baseline rebase --reason …")
    return baselines.save(store, run.id, root, name, reason=reason, days=days, epoch=epoch_of(held), replaces=_told(held))


def rebase(
    store: Store, run_id: int | None, root: Path | str = baselines.ROOT, name: str | None = None, *, reason: str, days: int = DAYS,
) -> Path:
    """Begin a new epoch with a finished run in another environment. Raises BadBaseline as :func:`promote` does, and where the numerics
    are the same: then it would hide a regression as an upgrade."""
    run = store.run(run_id)
    held = _replaced(run, root, name, reason)
    if held.environment.fingerprint == run.environment.fingerprint:
        raise BadBaseline(f"Run {run.id} has the numerics of {held.source}: nothing was upgraded.",
                          remedy="Accept changed figures with: cachemark baseline promote --reason …")
    return baselines.save(store, run.id, root, name, reason=reason, days=days, epoch=epoch_of(held) + 1, replaces=_told(held))


def epoch_of(held: Exchange) -> int:
    """The number of a baseline's epoch, from 1."""
    return int(held.meta.get("epoch", 1))


def refuse_expired(held: Exchange, now: datetime | None = None) -> None:
    """Raise NothingMeasured for a baseline whose time is over: what was accepted so long ago judges nothing."""
    expires = held.meta.get("expires")
    if expires is None:
        return
    try:
        when = datetime.fromisoformat(str(expires))
    except ValueError as error:
        raise BadBaseline(f"{held.source} expires {expires!r}, which is no date.", remedy="Take the file from version control.") from error
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    if when < (now or datetime.now(UTC)):
        raise NothingMeasured(f"{held.source} expired on {when.date()}.",
                              remedy="Accept a fresh run: cachemark baseline promote --reason …")


def _replaced(run: RunRecord, root: Path | str, name: str | None, reason: str) -> Exchange:
    if not reason.strip():
        raise BadBaseline("A baseline is accepted for a reason.", remedy="Say it: --reason \"faster attention since 1a2b3c\"")
    held = baselines.load(baselines.path_of(root, run.environment.machine_class, name or run.plan))
    if held.meta.get("plan") != run.plan:
        raise BadBaseline(f"{held.source} is of plan {held.meta.get('plan')!r}, run {run.id} of {run.plan!r}.",
                          remedy="Name a run of that plan, or save it under another --name.")
    return held


def _both(held: Exchange, run: RunRecord) -> str:
    return f"{held.environment.fingerprint} then, {run.environment.fingerprint} now"


def _told(held: Exchange) -> dict[str, Any]:
    """What is kept of a baseline that is replaced."""
    known = ("run", "saved", "reason", "epoch")
    return {"digest": held.digest, "fingerprint": held.environment.fingerprint, "commit": held.code.get("commit"),
            **{key: held.meta[key] for key in known if key in held.meta}}
