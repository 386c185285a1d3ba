"""Facts of each method in ``docs/reference/methods.md``: source, checks and published values."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

from cachemark.contract.method import Method
from cachemark.methods.registry import METHODS

from .data import DATA, code, read_json, vectors

BLOCK = re.compile(r"<!-- facts: (\w+) -->\n.*?<!-- end of facts -->", re.S)


def claims() -> list[dict[str, str]]:
    """Published FIDs as printed: paper, table, model, method, config, fid."""
    return list(read_json(DATA / "published" / "quality.json")["records"])


def with_facts(page: str) -> str:
    """Return the page with the blocks between markers generated again."""
    return BLOCK.sub(lambda block: f"<!-- facts: {block[1]} -->\n{facts(METHODS.get(block[1]))}\n<!-- end of facts -->", page)


def facts(cls: type[Method]) -> str:
    """Return the bullets of one method."""
    outputs = [f"{code(name)} ({len(entry['checks'])} checks)" for name, entry in vectors().items() if cls.name in entry["methods"]]
    lines = [f"- **Source**: {cls.source}.",
             f"- **Checked against**: {'the authors’ code, ' + ', '.join(outputs) if outputs else 'its rules and the contract tests'}."]
    if reasons := _reasons(cls):
        lines.append(f"- **Defaults that the source does not state**: {'; '.join(reasons)}.")
    published = [claim for claim in claims() if claim["method"] == cls.name]
    if published:
        lines.append("- **Published FID**:")
    for where, group in groupby(published, key=lambda claim: f"{claim['paper']}, {claim['table']}"):
        rows = list(group)
        settings = {claim["config"] for claim in rows}
        values = "{fid} ({config})" if len(settings) > 1 else "{fid}"
        models = [f"{code(model)} {', '.join(values.format_map(claim) for claim in same)}"
                  for model, same in groupby(rows, key=lambda claim: claim["model"])]
        lines.append(f"    - {where}{f' ({settings.pop()})' if len(settings) == 1 else ''}: {'; '.join(models)}")
    return "\n".join(lines)


def _reasons(cls: type[Method]) -> list[str]:
    """Return reasons for our defaults; those shared with LazyMAR are given there."""
    shared: Any = {} if cls.name == "lazymar" else METHODS.get("lazymar").unstated
    own = [f"{code(name)} ({reason})" for name, reason in cls.unstated.items() if shared.get(name) != reason]
    same = [name for name, reason in cls.unstated.items() if shared.get(name) == reason]
    return [*own, f"{code(*same)} (as for `lazymar`)"] if same else own
