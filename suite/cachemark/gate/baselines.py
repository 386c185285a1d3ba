"""Accepted baselines: one text file per machine class and name, kept in version control.

The path is ``<root>/<machine class>/<name>.json``, by default below ``baselines/accepted`` and with the name of the plan. A baseline is
replaced by promotion in the same environment, or by a new baseline series in another one. Both need a reason, which the file records with
the replaced baseline, so that a reviewer sees both in the diff.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from ..core.edited import REMEDY, parsed, text_of, validating
from ..core.errors import BadBaseline, NothingMeasured
from ..core.files import NAME, refuse_other, replacing, writing
from ..core.units import is_finite
from ..store.db import Store
from ..store.exchange import Exchange, dump, load as load_text
from ..store.rows import RunRecord, utc_now

Content = TypeVar("Content")

ROOT = Path("baselines/accepted")
DAYS = 180  # default validity of a baseline


@dataclass(frozen=True)
class ListedBaseline:
    """One file under the root. ``problem`` is empty, or the reason why the file cannot be used."""

    path: Path
    machine_class: str
    name: str
    plan: str = ""
    outcomes: int = 0
    saved: str = ""
    reason: str = ""
    problem: str = ""
    expires: str = ""
    series: int = 1


def path_of(root: Path | str, machine_class: str, name: str) -> Path:
    """Return the file of a baseline. Raises BadBaseline for a name that would leave its folder."""
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", machine_class).strip(".-") or "unknown"
    return file_in(Path(root) / folder, name, "baseline")


def file_in(folder: Path | str, name: str, kind: str) -> Path:
    """Return the JSON file of a ``kind`` of thing in a folder. Raises BadBaseline for an invalid name."""
    if not re.fullmatch(NAME, name):
        raise BadBaseline(f"{name!r} is not a valid name of a {kind}.",
                          remedy="Use a-z, A-Z, digits, dots, underscores and dashes; start with a letter or digit.")
    return Path(folder) / f"{name}.json"


def save(
    store: Store, run_id: int | None, root: Path | str = ROOT, name: str | None = None, *, reason: str = "", days: int = 0, **meta: Any,
) -> Path:
    """Write a finished run (None: the newest) as a baseline, in one step, and keep the run in the store.

    It replaces one of that name. Raises BadBaseline for an unfinished run, whose missing cases would later count as new. The baseline
    expires after ``days`` (0: never). ``meta`` is stored in the file."""
    run = store.run(run_id)
    name = name or run.plan
    path = path_of(root, run.environment.machine_class, name)
    if days:
        meta["expires"] = (datetime.now(UTC) + timedelta(days=days)).date().isoformat()
    text = _baseline_text(store, run, name, reason=reason, **meta)
    write(path, text, remedy="Name another folder for baselines.")
    store.keep(run.id)
    return path


def refuse_present(run: RunRecord, root: Path | str, name: str | None = None) -> None:
    """Raise BadBaseline if a baseline of that name is accepted; replacing it needs a reason."""
    path = path_of(root, run.environment.machine_class, name or run.plan)
    if path.exists():
        raise BadBaseline(f"{path} is accepted already.",
                          remedy="Replace it with: cachemark baseline promote --reason … (after an upgrade: rebase), or give a --name.")


def propose(store: Store, run_id: int, root: Path) -> Path:
    """Write a finished run as a baseline into a folder of proposals, which are not used until accepted."""
    run = store.run(run_id)
    path = path_of(root, run.environment.machine_class, run.plan)
    refuse_other(path, "baseline")
    write(path, _baseline_text(store, run, run.plan, reason="proposed: there was no baseline"), remedy="Name another folder for proposals.")
    return path


def _baseline_text(store: Store, run: RunRecord, name: str, **meta: Any) -> str:
    """Return a run as the text of a baseline. Raises BadBaseline for a comparison or unfinished run."""
    if run.is_comparison:
        raise BadBaseline(f"Run {run.id} is a comparison, which has two sides of its own.", remedy="Name a run of a plan with --run.")
    if run.state != "finished":
        raise BadBaseline(f"Run {run.id} is {run.state}, so cases are missing from it.",
                          remedy="Run the plan again; completed cases are skipped.")
    outcomes = store.outcomes(run.id)
    if not any(o.ok for o in outcomes):
        raise NothingMeasured(f"Run {run.id} holds no ok outcome.", remedy=f"See what failed with: cachemark show --run {run.id}")
    return dump(outcomes, run.environment, run.code, plan=run.plan, name=name, run=run.id, saved=utc_now(), **meta)


def promote(
    store: Store, run_id: int | None, root: Path | str = ROOT, name: str | None = None, *, reason: str, days: int = DAYS,
    upgraded: bool = False,
) -> Path:
    """Replace an accepted baseline of the same plan and environment by a finished run.

    With ``upgraded``, the environment must differ, which starts a new series. Raises BadBaseline without a reason or a baseline to replace,
    for another plan, and if the numerics fingerprint differs (with ``upgraded``: if it is equal, which would hide a regression)."""
    run = store.run(run_id)
    if not reason.strip():
        raise BadBaseline("--reason is required.", remedy="Example: --reason \"faster attention since 1a2b3c\"")
    old = load(path_of(root, run.environment.machine_class, name or run.plan))
    if old.meta.get("plan") != run.plan:
        raise BadBaseline(f"{old.source} is of plan {old.meta.get('plan')!r}, run {run.id} of {run.plan!r}.",
                          remedy="Name a run of that plan, or save it under another --name.")
    then, now = old.environment.fingerprint, run.environment.fingerprint
    if then != now and not upgraded:
        raise BadBaseline(f"Run {run.id} was measured with other numerics than {old.source}: {then} then, {now} now.",
                          remedy="An upgrade starts a new series: cachemark baseline rebase --reason …")
    if then == now and upgraded:
        raise BadBaseline(f"Run {run.id} has the same numerics as {old.source}: nothing was upgraded.",
                          remedy="Accept changed values with: cachemark baseline promote --reason …")
    replaced = {key: old.meta[key] for key in ("run", "saved", "reason", "series") if key in old.meta}
    replaces = {"digest": old.digest, "fingerprint": then, "commit": old.code.get("commit"), **replaced}
    return save(store, run.id, root, name, reason=reason, days=days, series=old.meta.get("series", 1) + upgraded, replaces=replaces)


def refuse_expired(baseline: Exchange, now: datetime | None = None) -> None:
    """Raise NothingMeasured for an expired baseline."""
    expires = baseline.meta.get("expires")
    if expires is None:
        return
    when = datetime.fromisoformat(str(expires))  # a file that holds anything else was refused when it was read
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    if when < (now or datetime.now(UTC)):
        raise NothingMeasured(f"{baseline.source} expired on {when.date()}.",
                              remedy="Accept a fresh run: cachemark baseline promote --reason …")


def load(path: Path | str) -> Exchange:
    """Read a baseline. Raises BadBaseline for a missing, damaged or foreign file."""
    path = Path(path)
    try:
        text = text_of(path, BadBaseline)
    except BadBaseline as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise _missing(path) from error
        raise
    baseline = load_text(text, str(path))
    for outcome in baseline.outcomes:
        if endless := [name for name, values in outcome.samples.items() if not is_finite(sum(values))]:
            raise BadBaseline(f"{path} has values of {endless[0]} whose mean is no number, of {outcome.case.full_title}.", remedy=REMEDY)
    return baseline


def list_(root: Path | str = ROOT) -> list[ListedBaseline]:
    """List every baseline file under the root, damaged ones included, by machine class and name."""
    return [_listed(path) for path in sorted(Path(root).glob("*/*.json"))]


def _listed(path: Path) -> ListedBaseline:
    try:
        baseline = load(path)
    except BadBaseline as error:
        return ListedBaseline(path, path.parent.name, path.stem, problem=str(error))
    meta = {key: baseline.meta[key] for key in ("plan", "saved", "reason", "expires", "series") if key in baseline.meta}
    return ListedBaseline(path, path.parent.name, path.stem, outcomes=len(baseline.outcomes), **meta)


def _missing(path: Path) -> BadBaseline:
    """Return the error about a missing file, with a similar name of the same machine class.

    Baselines of other machine classes are only counted."""
    here = [str(p) for p in sorted(path.parent.glob("*.json")) if p != path]
    other_machines = sum(p.parent != path.parent for p in path.parent.parent.glob("*/*.json")) if path.parent.name else 0
    near = difflib.get_close_matches(str(path), here, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    elsewhere = f" ({other_machines} of other machines)" if other_machines else ""
    return BadBaseline(f"There is no baseline {path}.",
                       remedy=f"{hint}Known: {', '.join(here) or 'none'}{elsewhere}. Make one with: cachemark baseline save")


def read(path: Path, kind: type[Content], remedy: str = REMEDY) -> Content:
    """Read a JSON file that people may have edited. Raises BadBaseline with the first invalid key."""
    with validating(str(path), BadBaseline, remedy):
        text = text_of(path, BadBaseline)
        content = TypeAdapter(kind).validate_json(text)
        parsed(text)
        return content


def write(path: Path, text: str, *, remedy: str) -> None:
    """Write a file in one step. Raises Infrastructure with that remedy."""
    with writing(path, remedy), replacing(path) as part:
        part.write_text(text, encoding="utf-8")
