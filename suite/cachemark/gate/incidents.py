"""Incidents: cells that became worse for one cause, as one thing with a name, a state and an owner, so that it pages once.

The register is a file in version control: who acknowledged what, until when, and where it is discussed stands in a diff.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from ..core.edited import DAY, DEEPEST, LINE, TABLE, EditedFile, Expectation, many, maybe, nested_deeper, number, one_of, text_of
from ..core.errors import BadBaseline, BadPlan, CachemarkError, unknown
from ..core.result import IMAGES, JUDGING
from ..core.spec import Case, digest, shown_label
from ..core.units import METRICS, OUTSIDE, in_order, is_metric, metric
from ..core.verdicts import JUDGED
from ..core.wording import percent
from ..store.rows import Verdict
from .baseline_check import HASHES, TOKENS
from .baselines import write
from .comparison import SAME_TOKENS

NEW, ACKNOWLEDGED, FIXED, ACCEPTED = "new", "acknowledged", "fixed", "accepted"
BASELINE, PAIRS = "baseline", "pairs"  # the judges of a night
FACTORS = ("method", "model", "engine", "device_class")
SHARE = 0.5  # of the judged cells with one factor that must have become worse for it to be called the cause
FORMAT = 2  # 1 held figures now over then, whatever the direction of the metric
PATTERNS = ("method", "model", "engine", "device", "metric")  # that a table of an owner may hold
OF_IMAGES = frozenset({IMAGES, *(name for name, found in METRICS.items() if found.kind in JUDGING)})
OUTPUT = "output"  # family of what follows from the tokens: other tokens have other hashes, another KL, another PSNR
MOST = 1e6  # cost ratio that stands for any larger one: JSON has no infinity


@dataclass(frozen=True)
class Finding:
    """One cell that became worse. ``change``: cost now over cost then (1.05: 5 % worse), None where there is no ratio; ``onset``: the
    commit since which it is so, or empty; ``found_by``: the judge, ``baseline`` or ``pairs``."""

    case: Case
    label: str
    metric: str
    change: float | None
    reason: str = ""
    onset: str = ""
    found_by: str = BASELINE


class JudgedFigure(NamedTuple):
    """A metric of a cell, by its full title, of which a judge said whether it is worse."""

    cell: str
    metric: str
    judge: str


@dataclass(frozen=True)
class Incident:
    """Cells that became worse for one cause. ``factor`` and ``value``: what they share (``method`` ``linear``), or ``cell`` and its label.
    ``key`` never changes while it lasts. ``change``: the median cost ratio of its cells; ``worst``: the largest that was ever reported.
    ``found_by``: the judge that alone can find it fixed; empty in a register of an older version, where either can. ``metrics``: all
    figures of the family of ``metric`` that are worse, which stands for them; empty in an older register, where it stood alone."""

    key: str
    metric: str
    factor: str
    value: str
    cells: tuple[str, ...]
    change: float | None
    reason: str = ""
    onset: str = ""
    since: str = ""
    state: str = NEW
    who: str = ""
    until: str = ""
    link: str = ""
    worst: float | None = None
    found_by: str = ""
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", tuple(self.metrics) or (self.metric,))  # a file has lists

    @property
    def matches(self) -> tuple[str, str, str]:
        """The fields by which it is recognised another night."""
        return family(self.metric), self.factor, self.value

    @property
    def decided(self) -> str:
        """Words about what a person decided of it; empty where nobody has."""
        if self.state not in (ACKNOWLEDGED, ACCEPTED):
            return ""
        until = f" until {self.until}" if self.until else ""
        return f"{self.state}{f' by {self.who}' if self.who else ''}{until}{f', {self.link}' if self.link else ''}"


def family(name: str) -> str:
    """The figures that one cause moves together, by the name of one: what follows from the tokens is ``output``, other metrics are of
    their kind, and what is no metric is alone."""
    if name in OF_IMAGES or name in OUTSIDE or name == TOKENS:
        return OUTPUT
    return METRICS[name].kind if name in METRICS else name


def _relatives(name: str) -> frozenset[str]:
    """All figures of its family."""
    return frozenset({name, *(other for other in (*METRICS, *OUTSIDE, *HASHES) if family(other) == family(name))})


def findings(failing: Iterable[Verdict], cases: Mapping[str, Case], onset: str = "", judge: str = BASELINE) -> list[Finding]:
    """The rows of a judge that fail as cells that became worse. ``cases``: all cases by key."""
    return [Finding(cases[r.case_key], r.label, r.metric, _cost(r.metric, r.change), r.reason, onset, judge) for r in failing
            if r.case_key in cases]


def judged_figures(rows: Iterable[Verdict], cases: Mapping[str, Case], judge: str) -> set[JudgedFigure]:
    """The figures that the rows of a judge say something about. ``cases``: all cases by key. Arms with the same tokens have the same
    images, which are then not compared; a cell of which figures are known has ended well, and has no row of its status. Where all rows of
    a family were judged, so was what has no row in it."""
    found, opened = set[tuple[str, str]](), set[tuple[str, str]]()
    ended, unknown_end = set[str](), set[str]()
    for row in (row for row in rows if row.case_key in cases):
        cell, judged = cases[row.case_key].full_title, row.verdict in JUDGED
        found |= {(cell, name) for name in (OF_IMAGES if row.reason == SAME_TOKENS else set()) | ({row.metric} if judged else set())}
        opened |= set() if judged else {(cell, family(row.metric))}
        (unknown_end if row.metric == "status" and not judged else ended).add(cell)
    found |= {(cell, name) for cell, known in set(found) if (cell, family(known)) not in opened for name in _relatives(known)}
    found |= {(cell, "status") for cell in ended - unknown_end}
    return {JudgedFigure(cell, name, judge) for cell, name in found}


def _cost(name: str, change: float | None) -> float | None:
    """Cost now over cost then, at most ``MOST``, of a figure by its ratio now over then; None where that is none."""
    if change is None or change < 0 or not is_metric(name):
        return None
    return min(metric(name).cost_ratio(1.0, change), MOST)


def fold(found: Sequence[Finding], covered: Iterable[Case]) -> list[Incident]:
    """Fold findings into one incident for each cause. ``covered``: every case that was judged, worse or not.

    For each family of figures (:func:`family`) and onset, the factor value that explains most of the cells is taken, as long as at least
    half of the judged cells that have it became worse and there are two or more of them; then the next one; what is left is an incident of
    its own."""
    everything = list(covered)
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault((family(finding.metric), finding.onset), []).append(finding)
    incidents = []
    for group in groups.values():
        left = list(group)
        while left:
            factor, value, mine = _cause(left, everything)
            incidents.append(_incident(factor, value, mine))
            left = [f for f in left if f not in mine]
    return incidents


def _cause(left: Sequence[Finding], covered: Sequence[Case]) -> tuple[str, str, list[Finding]]:
    best: tuple[int, float, str, str] = (0, 0.0, "", "")
    for factor in FACTORS:
        for value in dict.fromkeys(str(getattr(f.case, factor)) for f in left):
            mine = [f for f in left if str(getattr(f.case, factor)) == value]
            mine_cells = {f.case.full_title for f in mine}  # by title: a case and its arm in pairs are one cell
            cells = len(mine_cells)
            share = cells / len({c.full_title for c in covered if str(getattr(c, factor)) == value} | mine_cells)
            if cells > 1 and share >= SHARE and (cells, share) > best[:2]:
                best = (cells, share, factor, value)
    if not best[0]:
        title = left[0].case.full_title
        return "cell", title, [f for f in left if f.case.full_title == title]
    return best[2], best[3], [f for f in left if str(getattr(f.case, best[2])) == best[3]]


def _incident(factor: str, value: str, mine: Sequence[Finding]) -> Incident:
    """The figure that stands for the others is the one of which most cells know by how much, then the first in the order of metrics."""
    names = [*in_order({f.metric for f in mine if is_metric(f.metric)}), *sorted({f.metric for f in mine if not is_metric(f.metric)})]
    ratios = {name: [f.change for f in mine if f.metric == name and f.change is not None] for name in names}
    head = max(names, key=lambda name: len(ratios[name]))
    change = statistics.median(ratios[head]) if ratios[head] else None
    cells = tuple(sorted({f.case.full_title for f in mine}))
    first = next(f for f in mine if f.metric == head)
    judge = PAIRS if any(f.found_by == PAIRS for f in mine) else BASELINE
    return Incident("", head, factor, value, cells, change, first.reason, first.onset, worst=change, found_by=judge, metrics=tuple(names))


INCIDENT = {  # what a register must hold of each, for people edit it
    "key": Expectation("1 to 40 letters and digits",
                       lambda value: isinstance(value, str) and bool(re.fullmatch("[A-Za-z0-9]{1,40}", value))),
    "metric": LINE, "factor": one_of(*FACTORS, "cell"), "value": LINE, "cells": many(LINE, 1), "change": maybe(number(0, 1e9), None),
    "reason": LINE, "onset": LINE, "since": maybe(DAY, ""), "state": one_of(NEW, ACKNOWLEDGED, FIXED, ACCEPTED), "who": LINE,
    "until": maybe(DAY, ""), "link": LINE, "worst": maybe(number(0, 1e9), None), "found_by": one_of("", BASELINE, PAIRS),
    "metrics": many(LINE),
}
LATER = tuple(held.name for held in fields(Incident) if held.default is not MISSING)  # what older registers lack


# -- the register -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class IncidentNight:
    """The register after a night. ``pages``: incidents to report now: new ones, those that became worse, and those with an expired
    acknowledgement. ``known``: the others that are still there; ``fixed``: those that are gone."""

    register: tuple[Incident, ...]
    pages: tuple[Incident, ...]
    known: tuple[Incident, ...]
    fixed: tuple[Incident, ...]

    @property
    def failing(self) -> tuple[Incident, ...]:
        """Incidents of the night that nobody has acknowledged or accepted: each fails the gate, however often it was reported."""
        return tuple(i for i in (*self.pages, *self.known) if i.state == NEW)


def merge(
    register: Sequence[Incident], tonight: Sequence[Incident], today: date, delta: float, covered: Iterable[JudgedFigure],
) -> IncidentNight:
    """Carry the register on. An open incident is the same one where metric and factor agree, or half of its cells. ``covered``: the
    figures that were judged tonight; an incident is fixed only when the judge that found it judged its metric in all of its cells and
    none is worse. What pairs have found may be too small for the baseline's threshold: they alone can find it fixed."""
    left, taken, said = list(tonight), list[Incident](), set(covered)
    kept, pages, known, fixed = list[Incident](), list[Incident](), list[Incident](), list[Incident]()
    for old in register:
        if old.state == FIXED:
            kept.append(old)
            continue
        new = _same(old, left) or _same(old, taken)  # older registers hold one for each figure of a family
        if new is None:
            judges = (old.found_by,) if old.found_by else (BASELINE, PAIRS)
            over = all(any((cell, name, judge) in said for judge in judges) for cell in old.cells for name in old.metrics)
            kept.append(replace(old, state=FIXED, until="") if over else old)
            fixed += [kept[-1]] if over else []
            continue
        if new in left:
            left.remove(new)
            taken.append(new)
        now, due = _carried(old, new, today, delta)
        kept.append(now)
        (pages if due else known).append(now)
    for new in left:
        fresh = replace(new, key=digest([*new.matches, new.onset, today.isoformat(), sorted(new.cells)], 10), since=today.isoformat())
        kept.append(fresh)
        pages.append(fresh)
    return IncidentNight(tuple(kept), tuple(pages), tuple(known), tuple(fixed))


def _same(old: Incident, tonight: Sequence[Incident]) -> Incident | None:
    def shared(new: Incident) -> bool:
        return family(new.metric) == family(old.metric) and 2 * len(set(new.cells) & set(old.cells)) >= max(len(new.cells), len(old.cells))

    return next((new for new in tonight if new.matches == old.matches), None) or next(filter(shared, tonight), None)


def _carried(old: Incident, new: Incident, today: date, delta: float) -> tuple[Incident, bool]:
    """The incident as it is tonight, and whether it has to be reported again."""
    judge = PAIRS if old.found_by == PAIRS else new.found_by
    now = replace(old, metric=new.metric, metrics=new.metrics, cells=new.cells, change=new.change, reason=new.reason, found_by=judge,
                  worst=old.worst if new.metric == old.metric else new.worst)
    expired = bool(old.state == ACKNOWLEDGED and old.until and date.fromisoformat(old.until) < today)
    worse = bool(new.change and now.worst and new.change >= now.worst * (1 + delta))
    if worse:
        now = replace(now, worst=new.change)
    if expired or worse:
        now = replace(now, state=NEW, who="", until="")
    return now, expired or worse


def acknowledge(register: Sequence[Incident], key: str, who: str, until: date, link: str = "") -> list[Incident]:
    """Note that somebody looks after an incident until a day; then it pages again."""
    return _changed(register, key, state=ACKNOWLEDGED, who=who, until=until.isoformat(), link=link)


def accept(register: Sequence[Incident], key: str, who: str, link: str = "") -> list[Incident]:
    """Note that an incident stays; it pages again only where it becomes worse."""
    return _changed(register, key, state=ACCEPTED, who=who, until="", link=link)


def _changed(register: Sequence[Incident], key: str, **fields: Any) -> list[Incident]:
    if key not in {i.key for i in register if i.state != FIXED}:
        raise unknown("incident", key, [i.key for i in register if i.state != FIXED])
    return [replace(i, **fields) if i.key == key else i for i in register]


def load(path: Path) -> list[Incident]:
    """The register of a file; empty where there is none. Raises BadBaseline for anything else."""
    text = _text(path, BadBaseline)
    if text is None:
        return []
    file = EditedFile(str(path), BadBaseline)
    data = file.json(text)
    file.check(data, {"format": Expectation("1 or 2", lambda value: value in (1, FORMAT)), "incidents": many(TABLE)})
    for place, item in enumerate(data["incidents"]):
        file.check(item, INCIDENT, f"incidents.{place}.", optional=LATER, closed=True)
    found = [Incident(**{**item, "cells": tuple(map(shown_label, item["cells"])), "value": shown_label(item["value"])
                         if item["factor"] == "cell" else item["value"]}) for item in data["incidents"]]
    if data["format"] == 1:
        found = [replace(i, change=_cost(i.metric, i.change), worst=_cost(i.metric, i.worst)) for i in found]
    return found


def _text(path: Path, kind: type[CachemarkError]) -> str | None:
    """The text of a file, None where there is none."""
    try:
        return text_of(path, kind)
    except kind as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def save(path: Path, register: Sequence[Incident]) -> None:
    """Write the register; the file appears whole or not at all."""
    ordered = sorted(register, key=lambda i: (i.since, i.key))
    data = {"format": FORMAT, "incidents": [asdict(i) for i in ordered]}
    write(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n", remedy="Name another file with --incidents.")


def decisions(found: Iterable[Finding], register: Sequence[Incident], today: date) -> dict[tuple[str, str], Incident]:
    """The acknowledged or accepted incident that each finding belongs to, by the key of its case and its metric. An acknowledgement that
    has expired is none."""
    decided = [i for i in register if i.decided and not (i.state == ACKNOWLEDGED and i.until and date.fromisoformat(i.until) < today)]
    return {(f.case.key, f.metric): incident for f in found for incident in decided
            if f.case.full_title in incident.cells and family(incident.metric) == family(f.metric)}


# -- owners -------------------------------------------------------------------------------------------------------------
def load_owners(path: Path) -> list[dict[str, str]]:
    """The tables ``[[owner]]`` of a file ``owners.toml``; none where there is no file. Each has a ``name`` and patterns (``*`` and ``?``)
    for any of ``PATTERNS``; the first of which all patterns fit owns an incident. Raises BadPlan for a table of another form."""
    text, file = _text(path, BadPlan), EditedFile(str(path), BadPlan, remedy="Mend the file.")
    try:
        data = tomllib.loads(text or "")
    except (ValueError, RecursionError) as error:
        raise BadPlan(f"{path} cannot be used: {error}.", remedy="Fix the file.") from error
    if nested_deeper(data, DEEPEST):
        raise BadPlan(f"{path} is nested more than {DEEPEST} deep.", remedy="Fix the file.")
    file.check(data, {"owner": many(TABLE)}, optional=("owner",), closed=True)
    for place, table in enumerate(data.get("owner", ())):
        file.check(table, dict.fromkeys(("name", *PATTERNS), LINE), f"owner.{place}.", optional=PATTERNS, closed=True)
    return list(data.get("owner", ()))


def owner(incident: Incident, owners: Sequence[Mapping[str, str]]) -> str:
    """The name of the first owner that fits, or empty. What an incident does not say, such as the method where its cause is a model,
    fits ``*`` alone."""
    known = {"metric": incident.metrics, incident.factor.removesuffix("_class"): (incident.value,)}
    for table in owners:
        patterns = ((name, pattern) for name, pattern in table.items() if name != "name")
        if all(any(fnmatchcase(value, pattern) for value in known.get(name, ("",))) for name, pattern in patterns):
            return table["name"]
    return ""


def told(
    incident: Incident, owners: Sequence[Mapping[str, str]], command: str, among: str = "", commits: Sequence[str] = (), find: str = "",
) -> list[str]:
    """Lines that report an incident: the cause, the cost, since when, its owner, and the command that measures it again. Where the range of
    commits is known ``among`` which its cause lies, also these ``commits`` and the command that will ``find`` the one."""
    count = f"{len(incident.cells)} cells" if len(incident.cells) > 1 else incident.cells[0]
    cause = "one cell" if incident.factor == "cell" else f"{incident.factor.removesuffix('_class')} {incident.value}"
    change = f"{percent(incident.change - 1, '+')} cost (median of {count}). " if incident.change is not None else ""
    seen = f"first seen at commit {incident.onset}" if incident.onset else f"first seen {incident.since or 'now'}"
    since = f"{seen}; its cause came {among}" if among else seen
    mine = owner(incident, owners)
    who = f"{incident.who} until {incident.until}" if incident.who and incident.until else incident.who or mine or "nobody"
    others = [name for name in incident.metrics if name != incident.metric]
    also = f" (and {', '.join(others)})" if others else ""
    verb = "is worse" if is_metric(incident.metric) else "has changed"
    return [
        f"{incident.key or 'incident'}: {incident.metric}{also} {verb}: {cause}, {count}.",
        f"  how much: {change}{incident.reason}".rstrip(),
        f"  since: {since}; {incident.state}",
        *(f"    {commit}" for commit in commits),
        f"  owner: {who}{f' ({incident.link})' if incident.link else ''}",
        *([f"  find: {find}"] if find else []),
        f"  again: {command}",
    ]


def command(plan: str, incident: Incident, arms: Sequence[str] = ()) -> str:
    """The command that measures an incident again: a comparison where the options that name its two ``arms`` are given, else a run of the
    whole plan."""
    if not arms:
        return shlex.join(["cachemark", "run", plan, "--fresh"])
    one = [] if arms[0] == "--arms" else ["--case", incident.cells[0]]  # arms are cases themselves
    return shlex.join(["cachemark", "compare", plan, *arms, *one])
