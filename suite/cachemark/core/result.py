"""Typed outcomes, where speed requires a judgement of the images.

``ok`` has samples and a judgement: fidelity or quality, or the reason for its absence. Every other status has a log and no values. The
database enforces the same rule as a CHECK.
"""

from __future__ import annotations

import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .facts import Facts
from .spec import Case
from .units import TIME, are_finite, metric


class Status(enum.StrEnum):
    """The end of a case in a trial."""

    OK = "ok"
    OOM = "oom"
    TIMEOUT = "timeout"
    THROTTLED = "throttled"
    CONTENDED = "contended"
    NAN_OUTPUT = "nan_output"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    NOT_REACHED = "not_reached"


DISTURBED = (Status.THROTTLED, Status.CONTENDED)  # others or the device itself were in the values
INFRASTRUCTURE = (*DISTURBED, Status.NOT_REACHED)  # the machine is the reason, and nothing is known of the case
JUDGING = ("fidelity", "quality")
SHORTEST = 2.0**-50  # seconds that a time is at least, since ratios are taken of times
IMAGES = "images_hash"  # the name under which verdicts compare the hashes of decoded images
PRICE = "price_per_hour"  # of the facts of a run's environment: the price of its device


@dataclass(frozen=True)
class Environment:
    """The machine and software of a trial.

    ``facts`` are free-form, for people. Outputs are equal to the last bit only within one ``fingerprint``: device, instruction sets,
    driver, libraries, threads and variables that select kernels."""

    device: str
    machine_class: str
    fingerprint: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"device": self.device, "machine_class": self.machine_class, "fingerprint": self.fingerprint, "facts": dict(self.facts)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Environment:
        return cls(data["device"], data["machine_class"], data["fingerprint"], dict(data.get("facts", {})))


@dataclass(frozen=True)
class Outcome:
    """The result of one case.

    ``samples`` maps a metric to its raw values: one per repeat for speed, one per seed for fidelity, one for bytes. ``unjudged`` is the
    reason if ``samples`` have neither fidelity nor quality. ``facts`` are all other values: attention kernel, true budget, footnotes.
    ``artifacts`` maps a name (``tokens.safetensors``, ``grid.png``) to the file name of its content hash."""

    case: Case
    status: Status
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    unjudged: str = ""
    log: str = ""
    seconds: float = 0.0
    result_key: str = ""
    output_hash: str = ""
    facts: Facts = Facts()
    artifacts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_values(self.status, self.samples, self.unjudged, self.log)

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    def raw(self, name: str) -> Sequence[float]:
        """Return the values of a metric, none if it was not measured."""
        return self.samples.get(name, ())

    def median(self, name: str) -> float | None:
        """Return the median of a metric's raw samples, or None if it was not measured."""
        values = self.samples.get(name)
        return statistics.median(values) if values else None

    def mean(self, name: str) -> float | None:
        """Return the mean of a metric's raw samples, or None if it was not measured."""
        values = self.samples.get(name)
        return statistics.fmean(values) if values else None

    @property
    def reason(self) -> str:
        """The line of the log that explains a failure, or an empty text.

        It is the last line of a traceback, else the first line, which process output may follow."""
        lines = [line.strip() for line in self.log.splitlines() if line.strip()]
        return (lines[-1] if lines[0].startswith("Traceback ") else lines[0]) if lines else ""

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case.to_json(), "status": str(self.status), "samples": {k: list(v) for k, v in self.samples.items()},
            "judgement": self.unjudged, "log": self.log, "seconds": self.seconds, "result_key": self.result_key,
            "output_hash": self.output_hash, "facts": self.facts.to_json(), "artifacts": dict(self.artifacts),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        values = {k: data[k] for k in ("samples", "log", "seconds", "result_key", "output_hash", "artifacts")}
        return cls(Case.from_json(data["case"]), Status(data["status"]), **values, unjudged=data["judgement"],
                   facts=Facts.from_json(data["facts"]))


def check_values(status: Status, samples: Mapping[str, Sequence[float]], unjudged: str, log: str) -> None:
    """Raise ValueError for invalid values of a case.

    An ok case has finite samples and quality, or the reason for its absence; any other case has a log and no samples."""
    for name in samples:
        metric(name)
    if status is not Status.OK:
        if samples or not log:
            raise ValueError(f"an outcome that is not ok has a log and no values: {status}")
        return
    if not samples or not (unjudged or any(metric(name).kind in JUDGING for name in samples)):
        raise ValueError("an ok outcome needs samples and a judgement or the reason for none")
    for name, values in samples.items():
        if not values or not are_finite(values):
            raise ValueError(f"an ok outcome holds finite samples only: {name}")
        if metric(name).relative and metric(name).unit == "s" and min(values) < SHORTEST:
            raise ValueError(f"an ok outcome holds times above 0 only: {name}")


def costs_per_1000(seconds: Sequence[float], batch: int, price: float) -> list[float]:
    """Return the cost of 1,000 images for each generation of a ``batch`` at a ``price`` per hour."""
    return [1000 * price * each / 3600 / batch for each in seconds]


def full_latencies(outcome: Outcome, full: Outcome) -> Sequence[float]:
    """Return the latencies of the full cache to compare an outcome with.

    Prefer latencies measured in turns with the outcome, because machines drift, to latencies of the full cache's own case."""
    return outcome.facts.full_beside or full.raw(TIME)


def kernels_apart(first: Outcome, second: Outcome) -> tuple[str, str] | None:
    """Return two attention kernels that make times incomparable, else None.

    A speedup would then compare kernels instead of methods. If one outcome has the fact ``different_kernel`` (its kernel is part of the
    method's cost), times are comparable, unless the other has no speed (``quality_only``)."""
    then, now = first.facts.kernel, second.facts.kernel
    if not then or not now or then == now:
        return None
    own = first.facts.different_kernel or second.facts.different_kernel
    return None if own and not (first.facts.quality_only or second.facts.quality_only) else (then, now)
