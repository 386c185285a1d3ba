"""Facts of each method, for markers in ``docs/reference/methods.md``: source, checks, and defaults of our own."""

from __future__ import annotations

import json
import re
from dataclasses import fields

from cachemark.contract.method import Method
from cachemark.contract.planning import SEEN
from cachemark.decoders.registry import DECODERS
from cachemark.methods.base.annealed import HEAD_PARAMETERS
from cachemark.methods.registry import METHODS

from .data import DATA, code, vectors

TITLES = DATA / "titles.json"
MARKER = re.compile(r"^<!-- facts: (\w+) -->$", re.M)


def titles_text() -> str:
    """Return the titles of built-in methods and decoders as JSON, which reports read without torch."""
    titles = {name: title for table in (METHODS, DECODERS) for name in table if (title := vars(table.get(name)).get("title"))}
    return json.dumps(dict(sorted(titles.items())), ensure_ascii=False, indent=0) + "\n"


def with_facts(page: str) -> str:
    """Return the page with facts in place of its markers."""
    return MARKER.sub(lambda marker: facts(METHODS.get(marker[1])), page)


def facts(cls: type[Method]) -> str:
    """Return the source of one method, its checks, and the parameters whose default the source does not state."""
    checks = [len(entry["checks"]) for entry in vectors().values() if cls.name in entry["methods"]]
    parts = [f"*Source*: {cls.source}."]
    if cls.authors_code:
        parts.append(f"*Authors' code*, {SEEN}: {cls.authors_code}.")
    if checks:
        parts.append(f"*Stored outputs*: {sum(checks)} checks.")
    head = {field.name: field.default for field in fields(cls) if field.name in HEAD_PARAMETERS}
    if own := [name for name in cls.unstated if name not in head]:
        parts.append(f"*Not stated*: {code(*own)}.")
    if head:
        defaults = ", ".join(f"{code(name)} ({code(str(value))})" for name, value in head.items())
        parts.append(f"*As in [`disa`](#disa)*: {defaults}.")
    return "\n".join(parts)
