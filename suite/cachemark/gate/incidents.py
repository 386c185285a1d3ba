"""Incidents: configurations that became worse for one cause, reported once.

The register is a file of open incidents in version control: its diff shows who acknowledged what, until when, and where it is discussed.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass as validated

from ..core.errors import unknown
from ..core.result import IMAGES, JUDGING
from ..core.spec import Case, digest
from ..core.units import METRICS, OUTSIDE, in_order, is_metric, metric
from ..core.verdicts import JUDGED
from ..core.wording import count, on_one_line, percent
from ..store.rows import Verdict
from .baseline_check import TOKENS
from .baselines import read, write
from .comparison import SAME_TOKENS

NEW, ACKNOWLEDGED, ACCEPTED = "new", "acknowledged", "accepted"
BASELINE, PAIRS = "baseline", "pairs"  # the judges of a night
FACTORS = ("method", "model", "engine", "device_class")
SHARE = 0.5  # of the judged configurations with one factor that must have become worse for it to be called the cause
OF_IMAGES = frozenset({IMAGES, *(name for name, entry in METRICS.items() if entry.kind in JUDGING)})
OUTPUT = "output"  # family of what follows from the tokens: other tokens have other hashes, another KL, another PSNR
MOST_COMMITS = 8  # subjects of commits in a notification
MOST = 1e6  # cost ratio that stands for any larger one: JSON has no infinity


@dataclass(frozen=True)
class Finding:
    """One configuration that became worse.

    ``change``: cost now over cost then (1.05: 5 % worse), or None without a ratio. ``found_by``: ``baseline`` or ``pairs``."""

    case: Case
    metric: str
    change: float | None
    reason: str = ""
    found_by: str = BASELINE


Line = Annotated[str, Field(max_length=4_000, pattern=r"^[^\p{Cc}\p{Zl}\p{Zp}]*$")]
Day = Annotated[str, AfterValidator(lambda text: text and date.fromisoformat(text).isoformat())]  # empty: none
Cost = Annotated[float, Field(ge=0, le=1e9)]


@validated(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False, extra="forbid"))
class Incident:
    """Configurations that became worse for one cause. The register of incidents is edited by people, so each value is validated.

    ``factor`` and ``value``: the common factor, such as ``method`` and ``linear``, or ``configuration`` and its title. ``key`` never
    changes. ``change``: the median cost ratio; ``worst``: the largest that was reported. ``found_by``: the only judge that can close the
    incident. ``metrics``: all metrics of the family of ``metric`` that are worse; empty: ``metric`` alone."""

    key: Annotated[str, Field(pattern="^[A-Za-z0-9]{0,40}$")]
    metric: Line
    factor: Annotated[str, Field(pattern=f"^({'|'.join(FACTORS)}|configuration)$")]
    value: Line
    configurations: Annotated[tuple[Line, ...], Field(min_length=1)]
    change: Cost | None
    reason: Line = ""
    onset: Line = ""
    since: Day = ""
    state: Annotated[str, Field(pattern="^(new|acknowledged|accepted)$")] = NEW
    who: Line = ""
    until: Day = ""
    link: Line = ""
    worst: Cost | None = None
    found_by: Annotated[str, Field(pattern="^(baseline|pairs)$")] = BASELINE
    metrics: tuple[Line, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", self.metrics or (self.metric,))

    @property
    def identity(self) -> tuple[str, str, str]:
        """Family of metrics, factor and value, which identify the incident on another night."""
        return family(self.metric), self.factor, self.value

    def is_expired(self, today: date) -> bool:
        """Return whether its acknowledgement ended before ``today``."""
        return bool(self.until) and date.fromisoformat(self.until) < today

    @property
    def decided(self) -> str:
        """The decision of a person, in words, or an empty text."""
        if self.state == NEW:
            return ""
        until = f" until {self.until}" if self.until else ""
        return f"{self.state}{f' by {self.who}' if self.who else ''}{until}{f', {self.link}' if self.link else ''}"


def family(name: str) -> str:
    """Return the name of the group of metrics that one cause changes together.

    Metrics that follow from the tokens are ``output``, other metrics belong to their kind, and other names are groups of their own."""
    if name in OF_IMAGES or name in OUTSIDE or name == TOKENS:
        return OUTPUT
    return METRICS[name].kind if name in METRICS else name


def findings(failing: Iterable[Verdict], cases: Mapping[str, Case], judge: str = BASELINE) -> list[Finding]:
    """Return the failing rows of a judge as findings. ``cases``: all cases by key."""
    def cost(row: Verdict) -> float | None:
        has_cost = row.change is not None and row.change >= 0 and is_metric(row.metric)
        return min(metric(row.metric).cost_ratio(1.0, row.change or 0.0), MOST) if has_cost else None

    return [Finding(cases[row.case_key], row.metric, cost(row), row.reason, judge) for row in failing if row.case_key in cases]


def rows_by_config(rows: Mapping[str, Iterable[Verdict]], cases: Mapping[str, Case]) -> dict[tuple[str, str], list[Verdict]]:
    """Group the ``rows`` of each judge by the full title of the configuration and the judge."""
    grouped: dict[tuple[str, str], list[Verdict]] = {}
    for judge, verdicts in rows.items():
        for row in verdicts:
            if row.case_key in cases:
                grouped.setdefault((cases[row.case_key].full_title, judge), []).append(row)
    return grouped


def is_decided(name: str, rows: Sequence[Verdict]) -> bool:
    """Return whether a judge's rows of one configuration decide on the metric ``name``.

    A metric without a row is decided if all rows of its family are. Equal tokens decide on all metrics that follow from them, and a
    configuration with values has a good status."""
    own = [row for row in rows if row.metric == name]
    if not own and name == "status":
        return bool(rows)
    if name in OF_IMAGES and any(row.reason == SAME_TOKENS for row in rows):
        return True
    relevant = own or [row for row in rows if family(row.metric) == family(name)]
    return bool(relevant) and all(row.verdict in JUDGED for row in relevant)


def fold(failing: Sequence[Finding], covered: Sequence[Case], onset: str = "") -> list[Incident]:
    """Fold findings into one incident per cause.

    ``covered``: every case that was judged, worse or not. ``onset``: the first commit with the regressions, or empty.
    For each family of metrics, take the factor value that explains most of the worse configurations, provided that there are at
    least two and that they are at least half of the judged configurations with that value; then the next one. Each remaining
    configuration is an incident of its own."""
    incidents, groups = list[Incident](), dict[str, list[Finding]]()
    for finding in failing:
        groups.setdefault(family(finding.metric), []).append(finding)
    for remaining in groups.values():
        while remaining:
            factor, value = _cause(remaining, covered)
            members = [f for f in remaining if _value(f.case, factor) == value]
            incidents.append(_incident(factor, value, members, onset))
            remaining = [f for f in remaining if f not in members]
    return incidents


def _value(case: Case, factor: str) -> str:
    """Return the value of a factor. Configurations are compared by title: a case and its side in pairs are one."""
    return case.full_title if factor == "configuration" else str(getattr(case, factor))


def _cause(failing: Sequence[Finding], covered: Sequence[Case]) -> tuple[str, str]:
    """Return the factor and value that explain most of the worse configurations."""
    best = (1, 0.0, "configuration", failing[0].case.full_title)
    for factor in FACTORS:
        for value in dict.fromkeys(_value(f.case, factor) for f in failing):
            worse = {f.case.full_title for f in failing if _value(f.case, factor) == value}
            share = len(worse) / len({case.full_title for case in covered if _value(case, factor) == value} | worse)
            if len(worse) > 1 and share >= SHARE and (len(worse), share) > best[:2]:
                best = (len(worse), share, factor, value)
    return best[2:]


def _incident(factor: str, value: str, members: Sequence[Finding], onset: str) -> Incident:
    """Build an incident, named after the metric with the most known ratios, then by the order of metrics."""
    failing = {f.metric for f in members}
    names = [*in_order({name for name in failing if is_metric(name)}), *sorted(name for name in failing if not is_metric(name))]
    ratios = {name: [f.change for f in members if f.metric == name and f.change is not None] for name in names}
    head = max(names, key=lambda name: len(ratios[name]))
    change = statistics.median(ratios[head]) if ratios[head] else None
    first = next(f for f in members if f.metric == head)
    configs = tuple(sorted({f.case.full_title for f in members}))
    return Incident("", head, factor, value, configs, change, on_one_line(first.reason), onset, worst=change,
                    found_by=PAIRS if any(f.found_by == PAIRS for f in members) else BASELINE, metrics=tuple(names))


# -- the register -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class IncidentNight:
    """The register after a night.

    ``notify``: incidents to report now, because they are new, became worse, or have an expired acknowledgement. ``known``: the other open
    ones. ``fixed``: incidents that ended and are no longer in the register."""

    register: tuple[Incident, ...]
    notify: tuple[Incident, ...]
    known: tuple[Incident, ...]
    fixed: tuple[Incident, ...]

    @property
    def failing(self) -> tuple[Incident, ...]:
        """Open incidents of the night; each fails the gate, however often it was reported."""
        return tuple(i for i in (*self.notify, *self.known) if i.state == NEW)


def merge(
    register: Sequence[Incident], tonight: Sequence[Incident], today: date, delta: float, rows: Mapping[tuple[str, str], Sequence[Verdict]],
) -> IncidentNight:
    """Update the register by the incidents of a night. ``rows``: see :func:`rows_by_config`.

    An open incident is matched by metric and factor, or by half of its configurations. It is fixed only when the judge that found it
    decided all of its metrics in all of its configurations and none is worse: pairs detect regressions below the baseline's threshold."""
    unmatched, matched = list(tonight), list[Incident]()
    updated, notify, known, fixed = list[Incident](), list[Incident](), list[Incident](), list[Incident]()
    for old in register:
        new = _same(old, unmatched) or _same(old, matched)  # two incidents may turn out to have one cause
        if new is None:
            is_over = all(is_decided(name, rows.get((config, old.found_by), ())) for config in old.configurations for name in old.metrics)
            (fixed if is_over else updated).append(old)
            continue
        if new in unmatched:
            unmatched.remove(new)
            matched.append(new)
        worst = old.worst if new.metric == old.metric else new.worst
        worse = bool(new.change and worst and new.change >= worst * (1 + delta))
        now = replace(old, metric=new.metric, metrics=new.metrics, configurations=new.configurations, change=new.change, reason=new.reason,
                      found_by=PAIRS if old.found_by == PAIRS else new.found_by, worst=new.change if worse else worst)
        due = worse or old.is_expired(today)
        updated.append(replace(now, state=NEW, who="", until="") if due else now)
        (notify if due else known).append(updated[-1])
    for new in unmatched:
        key = digest([*new.identity, new.onset, today.isoformat(), sorted(new.configurations)], 10)
        updated.append(replace(new, key=key, since=today.isoformat()))
        notify.append(updated[-1])
    return IncidentNight(tuple(updated), tuple(notify), tuple(known), tuple(fixed))


def _same(old: Incident, tonight: Sequence[Incident]) -> Incident | None:
    """Return the incident with the same identity, or else one with half of the configurations of the larger one."""
    for new in tonight:
        if new.identity == old.identity:
            return new
    for new in tonight:
        shared = len({*new.configurations} & {*old.configurations})
        if family(new.metric) == family(old.metric) and 2 * shared >= max(len(new.configurations), len(old.configurations)):
            return new
    return None


def acknowledge(register: Sequence[Incident], key: str, who: str, until: date | None, link: str = "") -> list[Incident]:
    """Record a person's decision on an incident; without ``until`` it is accepted.

    It is reported again after the day ``until``, and if it becomes worse."""
    if key not in {i.key for i in register}:
        raise unknown("incident", key, [i.key for i in register])
    state, day = (ACKNOWLEDGED, until.isoformat()) if until else (ACCEPTED, "")
    return [replace(i, state=state, who=who, until=day, link=link) if i.key == key else i for i in register]


@validated(config=ConfigDict(strict=True, extra="forbid"))
class IncidentRegister:
    """The file of incidents."""

    format: Literal[2]
    incidents: list[Incident]


def load(path: Path) -> list[Incident]:
    """Read a register; empty if there is no file. Raises BadBaseline for an invalid one."""
    return read(path, IncidentRegister).incidents if path.exists() else []


def save(path: Path, register: Sequence[Incident]) -> None:
    """Write the register in one step."""
    ordered = sorted(register, key=lambda i: (i.since, i.key))
    data = {"format": 2, "incidents": [asdict(i) for i in ordered]}
    write(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n", remedy="Name another file with --incidents.")


def decisions(failing: Iterable[Finding], register: Sequence[Incident], today: date) -> dict[tuple[str, str], Incident]:
    """Return the acknowledged or accepted incident of each finding, by case key and metric.

    Expired acknowledgements do not count."""
    decided = [i for i in register if i.decided and not i.is_expired(today)]
    return {(f.case.key, f.metric): incident for f in failing for incident in decided
            if f.case.full_title in incident.configurations and family(incident.metric) == family(f.metric)}


# -- lines of text ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Suspects:
    """Commits after ``good``, the last good night, up to ``bad``: short name and subject, newest first.

    Empty if the repository does not have them."""

    good: str
    bad: str
    commits: tuple[str, ...] = ()


def described(incident: Incident, plan: str, sides: Sequence[str] = (), suspects: Suspects | None = None, note: str = "") -> list[str]:
    """Return lines with the cause, cost, onset and owner of an incident, and the commands to investigate it.

    The incident is measured again as a comparison of ``sides``, else of the ends of the suspect commits, else in a run of ``plan``.
    ``note``: a text after commands with the plan."""
    config = incident.configurations[0]
    configs = f"{len(incident.configurations)} configurations" if len(incident.configurations) > 1 else config
    cause = "one configuration" if incident.factor == "configuration" else f"{incident.factor.removesuffix('_class')} {incident.value}"
    change = f"{percent(incident.change - 1, '+')} cost (median of {configs}). " if incident.change is not None else ""
    since = f"first seen at commit {incident.onset}" if incident.onset else f"first seen {incident.since or 'now'}"
    owner = f"{incident.who} until {incident.until}" if incident.who and incident.until else incident.who or "nobody"
    other_metrics = [name for name in incident.metrics if name != incident.metric]
    also = f" (and {', '.join(other_metrics)})" if other_metrics else ""
    verb = "is worse" if is_metric(incident.metric) else "has changed"
    again, find, commits = ["cachemark", "run", plan, "--fresh"], list[str](), list[str]()
    if suspects:
        many = len(suspects.commits)
        commits = [*suspects.commits[:MOST_COMMITS], *([f"and {many - MOST_COMMITS} more"] if many > MOST_COMMITS else [])]
        since += f"; its cause came after {suspects.good}, up to {suspects.bad}" + (f" ({count(many, 'commit')})" if many else "")
        sides = sides or ("--commits", suspects.good, suspects.bad)
        find = ["cachemark", "bisect", config, "--plan", plan, "--good", suspects.good, "--bad", suspects.bad]
    if sides:
        again = ["cachemark", "compare", plan, *sides, *(() if sides[0] == "--cases" else ("--only", config))]
    return [
        f"{incident.key or 'incident'}: {incident.metric}{also} {verb}: {cause}, {configs}.",
        f"  how much: {change}{incident.reason}".rstrip(),
        f"  since: {since}; {incident.state}",
        *(f"    {commit}" for commit in commits),
        f"  owner: {owner}{f' ({incident.link})' if incident.link else ''}",
        *([f"  find: {shlex.join(find)}{note}"] if find else []),
        f"  again: {shlex.join(again)}{note}",
    ]
