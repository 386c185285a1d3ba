"""Owners of incidents, read from a file ``owners.toml``, and the five lines that report an incident.

Each table ``[[owner]]`` has a ``name`` and patterns (``*`` and ``?``) for any of ``method``, ``model``, ``engine``, ``device``, ``metric``;
the first table of which all patterns fit owns the incident.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ..core.errors import BadPlan
from .incidents import Incident

PATTERNS = ("method", "model", "engine", "device", "metric")
_FACTOR = {"device_class": "device"}


def load(path: Path) -> list[dict[str, str]]:
    """The tables of a file; none where there is no file. Raises BadPlan for a table of another form."""
    if not path.exists():
        return []
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("owner", [])
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadPlan(f"{path} cannot be used: {error}.", remedy="Mend the file.") from error
    for table in tables:
        if "name" not in table or not set(table) <= {"name", *PATTERNS} or not all(isinstance(v, str) for v in table.values()):
            raise BadPlan(f"{path}: {table!r} is no owner.", remedy=f"Give a name and patterns of {', '.join(PATTERNS)}, all texts.")
    return list(tables)


def owner(incident: Incident, owners: Sequence[Mapping[str, str]]) -> str:
    """The name of the first owner that fits, or empty. What an incident does not say, such as the method where its cause is a model,
    fits ``*`` alone."""
    known = {"metric": incident.metric, _FACTOR.get(incident.factor, incident.factor): incident.value}
    for table in owners:
        if all(fnmatchcase(known.get(name, ""), pattern) for name, pattern in table.items() if name != "name"):
            return table["name"]
    return ""


def told(incident: Incident, owners: Sequence[Mapping[str, str]], command: str) -> list[str]:
    """Five lines that report an incident: the cause, the cost, since when, its owner, and the command that measures it again."""
    count = f"{len(incident.cells)} cells" if len(incident.cells) > 1 else incident.cells[0]
    cause = "one cell" if incident.factor == "cell" else f"{incident.factor.removesuffix('_class')} {incident.value}"
    change = f"{100 * (incident.change - 1):+.2g} % cost (median of {count}). " if incident.change is not None else ""
    since = f"since commit {incident.onset}" if incident.onset else f"first seen {incident.since or 'now'}"
    mine = owner(incident, owners)
    who = f"{incident.who} until {incident.until}" if incident.who and incident.until else incident.who or mine or "nobody"
    return [
        f"{incident.key or 'incident'}: {incident.metric} is worse: {cause}, {count}.",
        f"  how much: {change}{incident.reason}".rstrip(),
        f"  since: {since}; {incident.state}",
        f"  owner: {who}{f' ({incident.link})' if incident.link else ''}",
        f"  again: {command}",
    ]


def command(plan: str, incident: Incident, commits: tuple[str, str] | None = None) -> str:
    """The command that measures an incident again."""
    if commits and all(commits):
        return shlex.join(["cachemark", "compare", plan, "--commits", *commits, "--case", incident.cells[0]])
    return shlex.join(["cachemark", "run", plan, "--fresh"])
