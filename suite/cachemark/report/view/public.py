"""A run as it may be shown to anybody: no host, user, path, device number or text of an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...core.result import Environment, Outcome

PRIVATE = frozenset({"host", "hostname", "node", "user", "uuid", "pid", "cpus", "holder", "processes"})
"""Facts that say where something ran and not on what."""
WITHHELD = "The text of this error is kept by whoever measured."
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F][0-9a-fA-F/-]{7,}")
_PATH = re.compile(r"(?<![\w:/.<])(?:~|\.{1,2})?(?:/[^\s/:'\",;()<>|]+)+/?|\b[A-Za-z]:\\[^\s'\",;]+")


@dataclass(frozen=True)
class PublicRun:
    """A run, as far as the report needs it."""

    id: int
    plan: str
    plan_json: Mapping[str, Any] | str
    started: str
    finished: str | None
    state: str
    environment: Environment
    code: Mapping[str, Any]


def public_run(run: Any) -> PublicRun:
    """The run without what is nobody's business."""
    here: Environment = run.environment
    environment = Environment(here.device, here.machine_class, here.fingerprint, scrubbed(here.facts))
    return PublicRun(run.id, run.plan, scrubbed(run.plan_json), run.started, run.finished, run.state, environment, scrubbed(run.code))


def public_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """The outcomes, likewise; figures are as they were."""
    return [replace(o, log=WITHHELD if o.log else "", judgement=_text(o.judgement), facts=scrubbed(o.facts)) for o in outcomes]


def scrubbed(value: Any) -> Any:
    """A value without private facts; of each path in a text only the last part is left, of a device number nothing."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return {key: scrubbed(item) for key, item in value.items() if str(key).lower() not in PRIVATE}
    if isinstance(value, (list, tuple)):
        return [scrubbed(item) for item in value]
    return value


def _text(text: str) -> str:
    return _PATH.sub(lambda found: "…/" + re.split(r"[/\\]", found[0].rstrip("/"))[-1], _UUID.sub("a device", text))
