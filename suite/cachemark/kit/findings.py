"""Results of the kit: findings of a check, with the smallest example of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KitFinding:
    """One deviation. ``example`` describes the model or images; unused fields are None or empty."""

    expected: str
    actual: str
    example: str = ""
    seeds: Sequence[int] = ()
    step: int | None = None
    layer: int | None = None
    head: int | None = None

    @property
    def location(self) -> str:
        """The example with its seeds, step, layer and head."""
        parts = [self.example, f"seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}" if self.seeds else ""]
        parts += [f"{name} {number}" for name in ("step", "layer", "head") if (number := getattr(self, name)) is not None]
        return ", ".join(filter(None, parts))


class Example(ABC):
    """The method, model or metric under test, together with the input of a check."""

    @property
    @abstractmethod
    def size(self) -> str:
        """A short description of the model or the images."""

    @property
    @abstractmethod
    def seeds(self) -> Sequence[int]:
        """The seeds of the samples."""

    @property
    def smaller(self) -> Sequence[Example]:
        """Smaller versions of the example, the smallest first."""
        return ()

    def finding(self, expected: object, actual: object, step: int | None = None, layer: int | None = None, head: int | None = None,
                seeds: Sequence[int] | None = None, note: str = "") -> KitFinding:  # fmt: skip
        """Return a finding for this example."""
        size = f"{self.size} ({note})" if note else self.size
        return KitFinding(str(expected), str(actual), size, self.seeds if seeds is None else seeds, step, layer, head)


@dataclass(frozen=True)
class KitResult:
    """The result of one check: its requirement, findings, and the reason if it was ``skipped``."""

    name: str
    requirement: str
    findings: tuple[KitFinding, ...] = ()
    skipped: str = ""
    examples: int = 0

    @property
    def passed(self) -> bool:
        """True if the check ran and found nothing."""
        return not self.findings and not self.skipped


@dataclass(frozen=True)
class KitReport:
    """The results of all checks of a method, a model or a metric (``kind``)."""

    kind: str
    name: str
    checks: Sequence[KitResult] = field(default_factory=tuple)

    @property
    def passed(self) -> bool:
        """True if at least one check passed and none found anything."""
        return not any(check.findings for check in self.checks) and any(check.passed for check in self.checks)
