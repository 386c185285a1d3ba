"""The audit of pinned versions: what pip-audit reports, and that a part which it cannot audit is no pass."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tools.audit import verdict

CLEAN: dict[str, Any] = {"name": "click", "version": "8.5.1", "vulns": []}
BAD = {"name": "jinja2", "version": "3.1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.6"]}]}
SKIPPED = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.15.0)"}


@pytest.mark.parametrize(("packages", "code", "words"), [
    ([CLEAN], 0, "1 of 1 packages audited, 0 known"), ([CLEAN, BAD], 1, "jinja2 3.1.0: PYSEC-1, fixed in 3.1.6"),
    ([CLEAN, SKIPPED], 5, "Not audited: torch: Dependency not found"), ([], 5, "0 of 0 packages audited"),
    ([BAD, SKIPPED], 1, "Not audited: torch"), (None, 5, "pip-audit failed: no route to host"),
])  # fmt: skip
def test_what_could_not_be_audited_is_no_pass(packages: Any, code: int, words: str) -> None:
    report = "" if packages is None else json.dumps({"dependencies": packages, "fixes": []})
    found, lines = verdict(report, "Traceback\nno route to host\n")
    assert (found, words in "\n".join(lines)) == (code, True), lines
