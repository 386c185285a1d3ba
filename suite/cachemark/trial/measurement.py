"""The result of a case as its process measured it, and the one place where the parent makes an outcome of it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.files import NAME
from ..core.result import Outcome, Status, check_values
from ..machine.monitor import Disturbance
from ..plans.expand import Planned
from .bounds import bounded_log


@dataclass(frozen=True)
class Measurement:
    """Everything that the process of a case reports: see :class:`~cachemark.core.result.Outcome` for the fields. ``artifacts`` are the
    contents of files by name. Raises ValueError for an ok measurement without finite samples or a judgement, or one without a log."""

    status: Status
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    judgement: str = ""
    log: str = ""
    seconds: float = 0.0
    output_hash: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_values(self.status, self.samples, self.judgement, self.log)

    def to_json(self) -> dict[str, Any]:
        """The measurement as JSON; a number in its facts that JSON cannot express becomes null."""
        return {
            "status": str(self.status), "samples": {name: list(values) for name, values in self.samples.items()},
            "judgement": self.judgement, "log": self.log, "seconds": self.seconds, "output_hash": self.output_hash,
            "facts": _finite(self.facts),
            "artifacts": {name: base64.b64encode(content).decode() for name, content in self.artifacts.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """The inverse. Raises ValueError, KeyError or TypeError for anything else than a measurement."""
        artifacts = {name: base64.b64decode(text, validate=True) for name, text in dict(data["artifacts"]).items()}
        if not all(re.fullmatch(NAME, name) for name in artifacts):
            raise ValueError("an artifact outside its folder")
        return cls(Status(data["status"]), data["samples"], data["judgement"], data["log"], float(data["seconds"]), data["output_hash"],
                   dict(data["facts"]), artifacts)


def failed(status: Status, log: str, facts: Mapping[str, Any] | None = None) -> Measurement:
    """A measurement without values."""
    return Measurement(status, log=log, facts=facts or {})


def outcome_of(
    planned: Planned, measured: Measurement, place: Mapping[str, Any] | None = None, disturbance: Disturbance | None = None,
) -> Outcome:
    """The outcome of a case: its measurement, the facts of the ``place`` where it ran, and its result key. A ``disturbance`` by the device
    invalidates the values."""
    facts = {**measured.facts, **(place or {}), **({"result_parts": dict(planned.result_parts)} if planned.result_parts else {})}
    if disturbance is not None:
        log = bounded_log(f"{disturbance.reason}\n{measured.log}".strip())
        return Outcome(planned.case, disturbance.status, log=log, seconds=measured.seconds, result_key=planned.result_key, facts=facts)
    return Outcome(planned.case, measured.status, measured.samples, measured.judgement, bounded_log(measured.log), measured.seconds,
                   planned.result_key, measured.output_hash, facts)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value - value != 0 else value
