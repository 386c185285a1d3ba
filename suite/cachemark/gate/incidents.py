"""Incidents: configurations that became worse for one cause, reported once.

The register is a file of open incidents in version control. Its diff documents who acknowledged what, until when, and where to discuss it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from ..core.edited import REMEDY
from ..core.errors import BadBaseline, unknown
from ..core.result import JUDGING
from ..core.spec import Case, digest
from ..core.units import in_order, is_metric, metric
from ..core.verdicts import JUDGED
from ..core.wording import on_one_line
from ..store.rows import Verdict
from .baseline_check import HASHES
from .baselines import read, write

NEW, ACKNOWLEDGED, ACCEPTED = "new", "acknowledged", "accepted"
BASELINE, PAIRS = "baseline", "pairs"  # the two tests of a nightly run
FACTORS = ("method", "model", "engine", "device_class")
SHARE = 0.5  # smallest share of configurations with one factor value that became worse if that value is the cause
OUTPUT = "output"  # family of metrics that depend on the tokens, such as hashes, KL and PSNR
MOST = 1e6  # replaces larger cost ratios, since JSON has no infinity


@dataclass(frozen=True)
class GateRow:
    """A row of a test (``judge``: ``baseline`` or ``pairs``) with its case; ``fails``: it fails the gate."""

    case: Case
    row: Verdict
    judge: str = BASELINE
    fails: bool = False

    @property
    def cost(self) -> float | None:
        """Cost now over cost then (1.05: 5 % worse), or None without a ratio."""
        if self.row.change is None or self.row.change < 0 or not is_metric(self.row.metric):
            return None
        return min(metric(self.row.metric).cost_ratio(1.0, self.row.change), MOST)


Line = Annotated[str, Field(max_length=4_000, pattern=r"^[^\p{Cc}\p{Zl}\p{Zp}]*$")]


@validated(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False, extra="forbid"))
class Incident:
    """Configurations that became worse for one cause.

    The register of incidents is edited by people, so each value is validated. ``factor`` and ``value``: the common factor, such as
    ``method`` and ``linear``, or ``configuration`` and its title. ``key`` never changes. ``change``: the median cost ratio when it was last
    reported. ``onset``: the commit of the run that found it. ``found_by``: the only judge that can close it. ``who``: the person who
    decided last."""

    key: Annotated[str, Field(pattern="^[A-Za-z0-9]{1,40}$")]
    metric: Line
    factor: Annotated[str, Field(pattern=f"^({'|'.join(FACTORS)}|configuration)$")]
    value: Line
    configurations: Annotated[tuple[Line, ...], Field(min_length=1)]
    change: Annotated[float, Field(ge=0, le=MOST)] | None
    since: date
    reason: Line = ""
    onset: Line = ""
    found_by: Annotated[str, Field(pattern="^(baseline|pairs)$")] = BASELINE
    state: Annotated[str, Field(pattern="^(new|acknowledged|accepted)$")] = NEW
    who: Line = ""
    until: date | None = None
    link: Line = ""

    @property
    def decision(self) -> str:
        """The state in words, with the person, the last day and the link of a decision."""
        if self.state == NEW:
            return NEW
        until = f" until {self.until}" if self.until else ""
        return f"{self.state}{f' by {self.who}' if self.who else ''}{until}{f', {self.link}' if self.link else ''}"

    def is_expired(self, today: date) -> bool:
        """Return whether its acknowledgement ended before ``today``."""
        return self.until is not None and self.until < today

    def covers(self, gate_row: GateRow) -> bool:
        """Return whether a row has the factor and a metric of the family of the incident."""
        return family(gate_row.row.metric) == family(self.metric) and _value(gate_row.case, self.factor) == self.value


def family(name: str) -> str:
    """Return the name of the group of metrics that one cause changes together.

    Metrics that follow from the tokens are ``output``, other metrics belong to their kind, and other names are groups of their own."""
    kind = metric(name).kind if is_metric(name) else name
    return OUTPUT if name in HASHES or kind in JUDGING else kind


def _value(case: Case, factor: str) -> str:
    """Return the value of a factor. Configurations are identified by title, in runs and in pairs."""
    return case.full_title if factor == "configuration" else str(getattr(case, factor))


# -- one cause ----------------------------------------------------------------------------------------------------------
def fold(failing: Sequence[GateRow], covered: Iterable[Case], today: date, onset: str = "") -> list[Incident]:
    """Fold failing rows into one incident per cause.

    ``covered``: the cases with a verdict, worse or not.

    For each family of metrics, take the factor value that explains most of the worse configurations, provided that these are at
    least two and at least half of the covered configurations with that value; then the next one. Each remaining configuration is an
    incident of its own."""
    cases = list({case.key: case for case in covered}.values())
    incidents, groups = list[Incident](), dict[str, list[GateRow]]()
    for gate_row in failing:
        groups.setdefault(family(gate_row.row.metric), []).append(gate_row)
    for remaining in groups.values():
        while remaining:
            factor, value = _cause(remaining, cases)
            incidents.append(_incident(factor, value, [f for f in remaining if _value(f.case, factor) == value], today, onset))
            remaining = [f for f in remaining if _value(f.case, factor) != value]
    return incidents


def _cause(failing: Sequence[GateRow], covered: Sequence[Case]) -> tuple[str, str]:
    """Return the factor and value that explain most of the worse configurations."""
    best = (1, 0.0, "configuration", failing[0].case.full_title)
    for factor in FACTORS:
        for value in dict.fromkeys(_value(f.case, factor) for f in failing):
            worse = {f.case.full_title for f in failing if _value(f.case, factor) == value}
            share = len(worse) / len({case.full_title for case in covered if _value(case, factor) == value} | worse)
            if len(worse) > 1 and share >= SHARE and (len(worse), share) > best[:2]:
                best = (len(worse), share, factor, value)
    return best[2:]


def _incident(factor: str, value: str, failing: Sequence[GateRow], today: date, onset: str) -> Incident:
    """Build an incident, named after the metric with the most known ratios, then by the order of metrics."""
    head = max(in_order(f.row.metric for f in failing), key=lambda name: len(_costs(failing, name)))
    costs = _costs(failing, head)
    change = statistics.median(costs) if costs else None
    reason = on_one_line(next(f.row.reason for f in failing if f.row.metric == head))
    configs = tuple(sorted({f.case.full_title for f in failing}))
    key = digest([family(head), factor, value, onset, today.isoformat(), configs], 10)
    judge = PAIRS if any(f.judge == PAIRS for f in failing) else BASELINE
    return Incident(key, head, factor, value, configs, change, today, reason, onset, judge)


def _costs(failing: Iterable[GateRow], name: str) -> list[float]:
    """Return the known cost ratios of a metric."""
    return [f.cost for f in failing if f.row.metric == name and f.cost is not None]


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


def merge(register: Sequence[Incident], rows: Sequence[GateRow], today: date, delta: float, onset: str = "") -> IncidentNight:
    """Update the register by the rows of a night.

    ``delta``: growth of the cost after which an incident is reported again.

    Failing rows that an open incident covers belong to it; the others are folded into new incidents. ``onset``: their commit, or empty."""
    failing = [gate_row for gate_row in rows if gate_row.fails]
    updated, notify, unchanged, fixed = list[Incident](), list[Incident](), list[Incident](), list[Incident]()
    for old in register:
        own = [gate_row for gate_row in failing if old.covers(gate_row)]
        if not own:
            (fixed if _is_over(old, rows) else updated).append(old)
            continue
        new, costs = _incident(old.factor, old.value, own, today, onset), _costs(own, old.metric)
        now = replace(old, configurations=tuple(sorted({*old.configurations, *new.configurations})))
        grown = bool(costs) and old.change is not None and statistics.median(costs) >= old.change * (1 + delta)
        if grown or old.is_expired(today):
            now = replace(now, metric=new.metric, change=new.change, reason=new.reason, state=NEW, until=None)
            notify.append(now)
        else:
            unchanged.append(now)
        updated.append(now)
    covered = [gate_row.case for gate_row in rows if gate_row.row.verdict in JUDGED]
    fresh = fold([gate_row for gate_row in failing if not any(old.covers(gate_row) for old in register)], covered, today, onset)
    return IncidentNight((*updated, *fresh), (*notify, *fresh), tuple(unchanged), tuple(fixed))


def _is_over(incident: Incident, rows: Sequence[GateRow]) -> bool:
    """Return whether the test that found an incident decided all of its configurations.

    Pairs detect regressions below the threshold of the baseline, so the baseline cannot close their incidents."""
    by_config: dict[str, list[Verdict]] = {}
    for gate_row in rows:
        if gate_row.judge == incident.found_by:
            by_config.setdefault(gate_row.case.full_title, []).append(gate_row.row)
    return all(_is_decided(incident.metric, by_config.get(config, [])) for config in incident.configurations)


def _is_decided(name: str, rows: Sequence[Verdict]) -> bool:
    """Return whether the rows of one configuration decide on the metric ``name``.

    A metric without a row is decided if all rows of its family are. A configuration with values has a good status."""
    own = [row for row in rows if row.metric == name]
    if not own and name == "status":
        return bool(rows)
    relevant = own or [row for row in rows if family(row.metric) == family(name)]
    return bool(relevant) and all(row.verdict in JUDGED for row in relevant)


def decisions(rows: Iterable[GateRow], register: Sequence[Incident], today: date) -> dict[tuple[str, str], Incident]:
    """Return the acknowledged or accepted incident of each failing row, by case key and metric.

    All open incidents of the row must be acknowledged or accepted; expired acknowledgements do not count."""
    decided = dict[tuple[str, str], Incident]()
    for gate_row in rows:
        incidents = [i for i in register if i.covers(gate_row)] if gate_row.fails else []
        if incidents and all(i.state != NEW and not i.is_expired(today) for i in incidents):
            decided[gate_row.case.key, gate_row.row.metric] = incidents[0]
    return decided


def undecided(rows: Iterable[GateRow], register: Sequence[Incident], today: date) -> list[Incident]:
    """Return the incidents of failing rows without a valid acknowledgement or acceptance."""
    failing = [gate_row for gate_row in rows if gate_row.fails]
    return [i for i in register if (i.state == NEW or i.is_expired(today)) and any(map(i.covers, failing))]


def acknowledge(register: Sequence[Incident], key: str, who: str, until: date | None, link: str = "") -> list[Incident]:
    """Record a person's decision on an incident; without ``until`` it is accepted.

    It is reported again after the day ``until``, and if it becomes worse."""
    if key not in {i.key for i in register}:
        raise unknown("incident", key, [i.key for i in register])
    state = ACKNOWLEDGED if until else ACCEPTED
    return [replace(i, state=state, who=who, until=until, link=link) if i.key == key else i for i in register]


@validated(config=ConfigDict(strict=True, extra="forbid"))
class IncidentRegister:
    """The file of incidents."""

    format: Literal[3]
    incidents: list[Incident]


def load(path: Path) -> list[Incident]:
    """Read a register; empty without a file. Raises BadBaseline if it is invalid or has an older format."""
    remedy = f"{REMEDY} After an upgrade, delete a register of an older format: the next check reports its incidents again."
    incidents = read(path, IncidentRegister, remedy).incidents if path.exists() else []
    if twice := [key for key, times in Counter(incident.key for incident in incidents).items() if times > 1]:
        raise BadBaseline(f"{path} has two incidents {twice[0]!r}.", remedy="Remove one of them.")
    return incidents


def save(path: Path, register: Sequence[Incident]) -> None:
    """Write the register in one step."""
    ordered = IncidentRegister(3, sorted(register, key=lambda i: (i.since, i.key)))
    text = TypeAdapter(IncidentRegister).dump_json(ordered, indent=1).decode()
    write(path, text + "\n", remedy="Name another file with --incidents.")
