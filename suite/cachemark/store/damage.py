"""Damage in a store: rows that do not say what this package writes, named with what is wrong with them.

Files rot, disks fill up, people edit. What is read is looked at here first, so that one bad row costs that row: an outcome is then
``damaged``, a run has no plan, and everything else is told as it stands.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Boolean, Double, Integer, inspect

from ..core.errors import CachemarkError
from ..core.outside_metrics import know
from ..core.result import FLAGGED, IMAGES, STORED
from ..core.spec import digest
from ..core.units import metric
from .schema import RUN_STATES, Base, CaseRow, ExactJson, OutcomeRow, PackedBytes, RunRow, SampleRow, Unreadable

DEPTH = 64  # of lists and tables in one another: ours are at most a few deep
LONGEST = {"plan": 250, "machine_class": 250}  # letters: they become names of files
NAME = 4000  # letters of any other text that is a name
PROSE = frozenset({"judgement", "log", "reason", "value", "content"})  # columns as long as they need to be


@dataclass(frozen=True)
class Damage:
    """A damaged row: the table, the row's primary key, and what is wrong."""

    table: str
    key: tuple[Any, ...]
    what: str

    @property
    def row(self) -> str:
        """The key for people."""
        return " ".join(map(_short, self.key))

    def __str__(self) -> str:
        return f"{self.table} {self.row}: {self.what}"


def damage(row: Base) -> Damage | None:
    """The first thing that is wrong with a row of any table, if anything is."""
    found = next(_faults(row), "")
    return Damage(row.__tablename__, key_of(row), found) if found else None


def outcome_damage(row: OutcomeRow) -> Damage | None:
    """The first damage to an outcome or to what belongs to it: its case, its samples, its artifacts."""
    if row.case is None:
        return Damage("outcome", (row.id,), f"there is no case {_short(row.case_key)}")
    for part in (row, row.case, *row.samples, *row.artifacts, *row.condensed):
        if found := damage(part):
            return found
    if (there := sum(sample.count for sample in row.samples)) != row.n_samples:
        return Damage("outcome", (row.id,), lacks(row.n_samples, there))
    return None


def lacks(stated: int, there: int) -> str:
    """The damage to an outcome that has lost values."""
    return f"it lacks values: it names {stated}, and {there} are here"


def key_of(row: Base) -> tuple[Any, ...]:
    """The primary key of a row."""
    return tuple(inspect(row.__class__).primary_key_from_instance(row))


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


def _faults(row: Base) -> Iterator[str]:
    """Everything that is wrong with a row, columns first: what follows relies on their types."""
    wrong = [f"{name} {said}" for name, check in _checks(row.__class__) if (said := check(getattr(row, name)))]
    yield from wrong
    if not wrong:
        yield from _RULES.get(row.__class__, _nothing)(row)


@cache
def _checks(table: type[Base]) -> tuple[tuple[str, Callable[[Any], str]], ...]:
    """For every attribute of a table that is a column what it says of a value that cannot stand there."""
    found = []
    for attribute in inspect(table).column_attrs:
        column, name = attribute.columns[0], attribute.key
        found.append((name, _check(column.type, bool(column.nullable), LONGEST.get(name, math.inf if name in PROSE else NAME))))
    return tuple(found)


def _check(kind: Any, nullable: bool, longest: float) -> Callable[[Any], str]:
    types: tuple[type, ...] = (str,)
    for column_type, python in ((ExactJson, dict), (PackedBytes, bytes), (Boolean, bool), (Integer, int), (Double, (int, float))):
        if isinstance(kind, column_type):
            types = python if isinstance(python, tuple) else (python,)
            break

    def said(value: Any) -> str:
        if value is None and nullable:
            return ""
        if isinstance(value, Unreadable):
            return value.reason
        if not isinstance(value, types):
            return f"is {_short(value)!r} and not {' or '.join(t.__name__ for t in types)}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"is {value}"
        if isinstance(value, str) and len(value) > longest:
            return f"has {len(value)} letters, and {longest:g} are the most"
        return f"is nested more than {DEPTH} deep" if isinstance(value, dict) and _deep(value) else ""

    return said


def _deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH):
        level = [inner for held in level if isinstance(held, (dict, list)) for inner in (held.values() if isinstance(held, dict) else held)]
    return bool(level)


# -- rules of single tables -------------------------------------------------------------------------------------------
def _nothing(row: Any) -> Iterator[str]:
    yield from ()


def _run(row: RunRow) -> Iterator[str]:
    for name in ("started", "finished"):
        if (value := getattr(row, name)) is not None and not is_moment(value):
            yield f"{name} is {_short(value)!r}, which is no moment"
    if row.state not in RUN_STATES:
        yield f"state is {_short(row.state)!r}"
    if row.environment is None:
        yield f"there is no environment {row.environment_id}"


def is_moment(value: object) -> bool:
    """True of a time in ISO 8601, as the store writes it."""
    try:
        return isinstance(value, str) and bool(datetime.fromisoformat(value))
    except ValueError:
        return False


def _case(row: CaseRow) -> Iterator[str]:
    if digest(row.body) != row.key:
        yield "its body is not the one that its key was made of"
    else:
        know(row.body.get("evaluation"))  # before its samples are: else those of a plug-in would be of no metric


def _outcome(row: OutcomeRow) -> Iterator[str]:
    if row.status not in STORED:
        yield f"status is {_short(row.status)!r}"
    ok = row.status == "ok"
    if ok and not (row.n_samples and row.has_judgement):
        yield "it is ok, without values or without a judgement"
    if not ok and (row.n_samples or row.samples or not row.log):
        yield f"it is {row.status}, with values or without a log"
    yield from (f"its fact {name!r} is not what it should be" for name, right in _FACTS.items() if name in row.facts and
                not right(row.facts[name]))


def _sample(row: SampleRow) -> Iterator[str]:
    if row.count < 1 or len(row.packed) != 8 * row.count:
        yield f"{len(row.packed)} bytes are not {row.count} values of 8"
        return
    try:
        known = metric(row.metric)
    except CachemarkError:
        yield f"there is no metric {_short(row.metric)!r}"
        return
    values = [value for (value,) in struct.iter_unpack("<d", row.packed)]
    if not all(map(math.isfinite, values)):
        yield f"{row.metric} holds a value that is not finite"
    elif known.kind in _COUNTED and min(values) < 0:
        yield f"{row.metric} holds {min(values):g}"


_COUNTED = ("speed", "memory", "work")  # metrics that are never negative
_RULES: dict[type[Base], Callable[[Any], Iterator[str]]] = {
    RunRow: _run, CaseRow: _case, OutcomeRow: _outcome, SampleRow: _sample,
}


# -- facts that others compute with -----------------------------------------------------------------------------------
def _number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _list(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(right, value))


def _ends(count: int) -> Callable[[Any], bool]:
    return _table(lambda value: _list(_number)(value) and len(value) == count)


def _table(right: Callable[[Any], bool], **named: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A table with all of ``named``, each of its kind, and everything else ``right``."""
    return lambda value: (isinstance(value, dict) and named.keys() <= value.keys()
                          and all(named.get(name, right)(held) for name, held in value.items()))


def _anything(value: Any) -> bool:
    return True


_FACTS: dict[str, Callable[[Any], bool]] = {
    "footnotes": lambda value: value is None or _text(value) or _list(_text)(value),
    "kernel": lambda value: value is None or _text(value),
    IMAGES: lambda value: value is None or _text(value),
    "pair": _table(_anything, run=_number, cell=_text, number=_number, arm=_text),
    "skip_parts": _table(_anything),
    "limit": _table(_number, by=_table(_number)),
    "slope": lambda value: value is None or _table(_number)(value),
    "intervals": _ends(2), "to_full": _ends(3), "real": _ends(3),
    "carried": lambda value: value is None or _table(_anything, metrics=_list(_text), **{"from": _text})(value),
    "live_bytes": lambda value: value is None or (_table(_list(_number), tokens=_list(_number), live=_list(_number))(value)
                                                  and len(value["tokens"]) == len(value["live"])),
    "full_beside": _list(_number),
    "quality_metrics": _list(_text),
    FLAGGED: _list(_table(_anything)),
    "condensed": _table(_table(_anything, count=_number, mean=_number)),
}
