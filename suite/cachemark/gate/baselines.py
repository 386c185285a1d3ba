"""Accepted baselines: one text file per machine class and name, kept in version control.

``<root>/<machine class>/<name>.json``; the root is ``baselines/accepted`` unless told, the name is the plan's unless told. One is replaced
by promotion in the same environment, by a new baseline series in another one. Either needs a reason, which the file
records with what it replaces, so that a reviewer sees both in the diff.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ..core.edited import text_of
from ..core.errors import BadBaseline, NothingMeasured
from ..core.files import NAME, replacing
from ..store.db import Store
from ..store.exchange import Exchange, dump
from ..store.exchange import load as load_text
from ..store.rows import RunRecord, utc_now

ROOT = Path("baselines/accepted")
DAYS = 180  # for which a baseline judges unless told otherwise


@dataclass(frozen=True)
class ListedBaseline:
    """One file under the root. ``problem`` says why it cannot be used, and is empty where it can."""

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
    """The file of the baseline of that name. A name that would leave its folder is refused."""
    folder = re.sub(r"[^A-Za-z0-9._-]+", "-", machine_class).strip(".-") or "unknown"
    return file_in(Path(root) / folder, name, "baseline")


def file_in(folder: Path | str, name: str, kind: str) -> Path:
    """The JSON file of that name in a folder. The name of a ``kind`` of thing that would leave it is refused."""
    if not re.fullmatch(NAME, name):
        raise BadBaseline(f"{name!r} is not a name of a {kind}.",
                          remedy="Use a-z, A-Z, digits, dots, underscores and dashes; begin with a letter or digit.")
    return Path(folder) / f"{name}.json"


def save(
    store: Store, run_id: int | None, root: Path | str = ROOT, name: str | None = None, *, reason: str = "", days: int = 0, **meta: Any,
) -> Path:
    """Write a finished run (None: the newest) as a baseline, in place of one of that name, and note it in the store. The file appears whole
    or not at all.

    A run that did not finish is refused: a case it lacks would later pass as new. After ``days`` it judges nothing any more (0: it
    always does). ``meta`` is kept in the file.
    """
    run = store.run(run_id)
    name = name or run.plan
    path = path_of(root, run.environment.machine_class, name)
    if days:
        meta["expires"] = (datetime.now(UTC) + timedelta(days=days)).date().isoformat()
    text = _baseline_text(store, run, name, reason=reason, **meta)
    write(path, text, remedy="Name another folder for baselines.")
    store.note_baseline(load_text(text, str(path)).digest, name=name, plan=run.plan, machine_class=run.environment.machine_class,
                        reason=reason, run_id=run.id)
    return path


def refuse_present(run: RunRecord, root: Path | str, name: str | None = None) -> None:
    """Raise BadBaseline where a baseline of that name is accepted already: only a stated reason replaces it."""
    path = path_of(root, run.environment.machine_class, name or run.plan)
    if path.exists():
        raise BadBaseline(f"{path} is accepted already.",
                          remedy="Replace it with: cachemark baseline promote --reason … (after an upgrade: rebase), or give a --name.")


def propose(store: Store, run_id: int, root: Path) -> Path:
    """Write a finished run as a baseline for people to look at, in a folder of proposals. It judges nothing before somebody accepts it."""
    run = store.run(run_id)
    path = path_of(root, run.environment.machine_class, run.plan)
    write(path, _baseline_text(store, run, run.plan, reason="proposed: there was no baseline"), remedy="Name another folder for proposals.")
    return path


def _baseline_text(store: Store, run: RunRecord, name: str, **meta: Any) -> str:
    """A finished run as the text of a baseline. BadBaseline where it is a comparison or did not finish."""
    if run.is_comparison:
        raise BadBaseline(f"Run {run.id} is a comparison, which has two sides of its own.", remedy="Name a run of a plan with --run.")
    if run.state != "finished":
        raise BadBaseline(f"Run {run.id} is {run.state}, so cases are missing from it.",
                          remedy="Run the plan again; what is done is skipped.")
    outcomes = store.outcomes(run.id)
    if not any(o.ok for o in outcomes):
        raise NothingMeasured(f"Run {run.id} holds no ok outcome.", remedy=f"See what failed with: cachemark show --run {run.id}")
    return dump(outcomes, run.environment, run.code, plan=run.plan, name=name, run=run.id, saved=utc_now(), **meta)


def promote(
    store: Store, run_id: int | None, root: Path | str = ROOT, name: str | None = None, *, reason: str, days: int = DAYS,
    upgraded: bool = False,
) -> Path:
    """Put a finished run in the place of an accepted baseline of the same plan and environment or, ``upgraded``, of another environment,
    which begins a new series. Raises BadBaseline without a reason, without a baseline to replace, for another plan, and where the numerics
    fingerprint is another one, or ``upgraded`` the same: that would hide a regression as an upgrade."""
    run = store.run(run_id)
    if not reason.strip():
        raise BadBaseline("A baseline is accepted for a reason.", remedy="Say it: --reason \"faster attention since 1a2b3c\"")
    old = load(path_of(root, run.environment.machine_class, name or run.plan))
    if old.meta.get("plan") != run.plan:
        raise BadBaseline(f"{old.source} is of plan {old.meta.get('plan')!r}, run {run.id} of {run.plan!r}.",
                          remedy="Name a run of that plan, or save it under another --name.")
    then, now = old.environment.fingerprint, run.environment.fingerprint
    if then != now and not upgraded:
        raise BadBaseline(f"Run {run.id} was measured with other numerics than {old.source}: {then} then, {now} now.",
                          remedy="An upgrade begins a new series: cachemark baseline rebase --reason …")
    if then == now and upgraded:
        raise BadBaseline(f"Run {run.id} has the numerics of {old.source}: nothing was upgraded.",
                          remedy="Accept changed values with: cachemark baseline promote --reason …")
    replaced = {key: old.meta[key] for key in ("run", "saved", "reason", "series") if key in old.meta}
    replaces = {"digest": old.digest, "fingerprint": then, "commit": old.code.get("commit"), **replaced}
    return save(store, run.id, root, name, reason=reason, days=days, series=_series(old) + upgraded, replaces=replaces)


def _series(baseline: Exchange) -> int:
    """The number of a baseline series, from 1. Raises :class:`BadBaseline` where the file says something else."""
    series = baseline.meta.get("series", 1)
    if type(series) is not int or series < 1:
        raise BadBaseline(f"{baseline.source} has series {series!r}; a whole number from 1 is expected.",
                          remedy="Take the file from version control.")
    return series


def refuse_expired(baseline: Exchange, now: datetime | None = None) -> None:
    """Raise NothingMeasured for a baseline whose time is over: what was accepted so long ago judges nothing."""
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
    """The baseline in a file. Raises :class:`BadBaseline` for a file that is missing, damaged, foreign or newer."""
    path = Path(path)
    try:
        text = text_of(path, BadBaseline)
    except BadBaseline as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise _missing(path) from error
        raise
    return load_text(text, str(path))


def list_(root: Path | str = ROOT) -> list[ListedBaseline]:
    """Every baseline file under the root, damaged ones among them, by machine class and name."""
    return [_listed(path) for path in sorted(Path(root).glob("*/*.json"))]


def _listed(path: Path) -> ListedBaseline:
    names = (path, path.parent.name, path.stem)
    try:
        baseline = load(path)
        series = _series(baseline)
    except BadBaseline as error:
        return ListedBaseline(*names, problem=str(error))
    plan, saved, reason = (str(baseline.meta.get(key, "")) for key in ("plan", "saved", "reason"))
    return ListedBaseline(*names, plan, len(baseline.outcomes), saved, reason, expires=str(baseline.meta.get("expires", "")),
                          series=series)


def _missing(path: Path) -> BadBaseline:
    """The error about a file that is not there, with a near name among the baselines of the same machine: one of another machine judges
    nothing here, and is only counted."""
    here = [str(p) for p in sorted(path.parent.glob("*.json"))]
    other_machines = len(list(path.parent.parent.glob("*/*.json"))) - len(here)
    near = difflib.get_close_matches(str(path), here, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    elsewhere = f" ({other_machines} of other machines)" if other_machines else ""
    return BadBaseline(f"There is no baseline {path}.",
                       remedy=f"{hint}Known: {', '.join(here) or 'none'}{elsewhere}. Make one with: cachemark baseline save")


def write(path: Path, text: str, *, remedy: str) -> None:
    """Write a file that appears whole or not at all. Raises :class:`BadBaseline` with that remedy."""
    try:
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadBaseline(f"{path} cannot be written: {error.strerror}.", remedy=remedy) from error
