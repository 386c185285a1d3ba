"""Runs without host, user, path, device number and error texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core.result import Outcome

if TYPE_CHECKING:  # a page is made without a store
    from ..store.rows import RunRecord, Verdict

PRIVATE = frozenset({"host", "hostname", "node", "user", "uuid", "pid", "cpus", "processes"})
"""Facts about the place of a run, not about its hardware."""
WITHHELD = "The text of this error is kept by whoever measured."
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]{7,}")
_PATH = re.compile(r"(?<![\w:/.<])(?:~|\.{1,2})?(?:/[^\s/:'\",;()<>|]+)+/?|\b[A-Za-z]:\\[^\s'\",;]+")


def public_run(run: RunRecord) -> RunRecord:
    """Return the run without private facts."""
    environment = replace(run.environment, facts=scrubbed(run.environment.facts))
    return replace(run, plan_json=scrubbed(run.plan_json), environment=environment, code=scrubbed(run.code))


def public_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return results without private facts; values and keys are unchanged."""
    public = []
    for o in outcomes:
        case = o.case.worded(parameters=scrubbed(o.case.parameters), evaluation=scrubbed(o.case.evaluation),
                             variant=_scrubbed_text(o.case.variant), decoder=scrubbed(o.case.decoder))
        log = WITHHELD if o.log else ""
        public.append(replace(o, case=case, log=log, judgement=_scrubbed_text(o.judgement), facts=scrubbed(o.facts)))
    return public


def public_verdicts(rows: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Return the rows of a comparison without private facts."""
    return tuple(replace(row, label=_scrubbed_text(row.label), reason=_scrubbed_text(row.reason)) for row in rows)


def scrubbed(value: Any) -> Any:
    """Remove private facts from a value; paths keep their last part."""
    if isinstance(value, str):
        return _scrubbed_text(value)
    if isinstance(value, Mapping):
        return {key: scrubbed(item) for key, item in value.items() if str(key).lower() not in PRIVATE}
    if isinstance(value, (list, tuple)):
        return [scrubbed(item) for item in value]
    return value


def _scrubbed_text(text: str) -> str:
    return _PATH.sub(lambda match: "…/" + re.split(r"[/\\]", match[0].rstrip("/"))[-1], _UUID.sub("a device", text))
