"""The result of a case as its process measured it, its message, and the outcome built from it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.facts import Facts, PlaceFacts, TimingFacts
from ..core.files import NAME
from ..core.result import Outcome, Status, check_values
from ..core.spec import finite
from ..core.units import metric
from ..machine.energy import Energy, Span
from ..machine.monitor import Disturbance
from ..metrics.base import Costs
from ..metrics.registry import cost_values
from ..plans.planned import Prepared

LOG, LINE = 20_000, 2_000  # characters of a log and of each of its lines
LONGEST = 1 << 30  # bytes of a message, which includes the artifacts of a case


@dataclass(frozen=True)
class Measurement:
    """Everything that the process of a case reports; fields as in :class:`~cachemark.core.result.Outcome`.

    ``artifacts`` are the contents of files by name, ``spans`` the start and end of each timed generation. Raises ValueError for an ok
    measurement without finite samples or a judgement, or another one without a log."""

    status: Status
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    unjudged: str = ""
    log: str = ""
    seconds: float = 0.0
    output_hash: str = ""
    facts: Facts = Facts()
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    spans: Sequence[Span] = ()

    def __post_init__(self) -> None:
        check_values(self.status, self.samples, self.unjudged, self.log)

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as JSON; a number in its facts that JSON cannot express becomes null."""
        return {
            "status": str(self.status), "samples": {name: list(values) for name, values in self.samples.items()},
            "judgement": self.unjudged, "log": self.log, "seconds": self.seconds, "output_hash": self.output_hash,
            "facts": finite(self.facts.to_json()),
            "spans": [list(span) for span in self.spans],
            "artifacts": {name: base64.b64encode(content).decode() for name, content in self.artifacts.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Invert :meth:`to_json`. Raises ValueError, KeyError or TypeError for anything else."""
        artifacts = {name: base64.b64decode(text, validate=True) for name, text in dict(data["artifacts"]).items()}
        if not all(re.fullmatch(NAME, name) for name in artifacts):
            raise ValueError("an artifact outside its folder")
        return cls(Status(data["status"]), data["samples"], data["judgement"], data["log"], float(data["seconds"]), data["output_hash"],
                   Facts.from_json(data["facts"]), artifacts, [(float(begin), float(end)) for begin, end in data.get("spans", ())])

    def with_energy(self, energy: Energy, batch: int) -> Measurement:
        """Return the measurement with the energy of its timed generations, each of ``batch`` images."""
        values = cost_values(Costs(batch, joules=energy.joules, watts=energy.watts))
        other_samples = {name: samples for name, samples in self.samples.items() if metric(name).kind != "energy"}
        return replace(self, samples=other_samples | values, facts=self.facts | TimingFacts(energy=energy.facts))


def failed(status: Status, log: str, facts: Facts = Facts()) -> Measurement:
    """Return a measurement without values."""
    return Measurement(status, log=log, facts=facts)


def outcome_of(
    planned: Prepared, measured: Measurement, place: PlaceFacts = PlaceFacts(), disturbance: Disturbance | None = None,
) -> Outcome:
    """Return the outcome of a measured case with its result key and the facts of the ``place`` it ran in.

    A ``disturbance`` by the device invalidates the values."""
    facts = measured.facts | replace(place, result_parts=dict(planned.result_parts) or None)
    if disturbance is not None:
        log = bounded_log(f"{disturbance.reason}\n{measured.log}".strip())
        return Outcome(planned.case, disturbance.status, log=log, seconds=measured.seconds, result_key=planned.result_key, facts=facts)
    return Outcome(planned.case, measured.status, measured.samples, measured.unjudged, bounded_log(measured.log), measured.seconds,
                   planned.result_key, measured.output_hash, facts)


# -- messages of a worker ------------------------------------------------------------------------------------------------
class BadMessage(ValueError):
    """Malformed message of a worker."""


def read_message(content: bytes) -> dict[str, Any]:
    """Return a message, with its ``measurement``, if any, as a Measurement. Raises BadMessage."""
    try:
        message = dict(json.loads(content))
        if "measurement" in message:
            message["measurement"] = Measurement.from_json(message["measurement"])
    except Exception as error:  # whatever a plug-in wrote into the pipe
        raise BadMessage(f"{type(error).__name__}: {str(error)[:100]}") from None
    return message


# -- limits on the length of texts from other people's code --------------------------------------------------------------
def bounded_log(text: str) -> str:
    """Shorten long lines and the middle of a long log, and note the omissions."""
    text = _without_middle(text, 2 * LOG)  # before it is split into lines: there may be millions
    return _without_middle("\n".join(_beginning(line, LINE) for line in text.split("\n")), LOG)


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n… {len(text) - most} letters are left out …\n{text[-(most // 2) :]}"


def _beginning(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more letters)"
