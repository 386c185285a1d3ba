"""Findings of the kit: where something is not what it owes, as small an example as was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Flaw:
    """One thing that is not as it should be. ``model``: the size of the one that it was found on; ``step``: number of the pass, from 0;
    ``seeds`` those of the samples; what does not apply is None or empty."""

    expected: str
    found: str
    model: str = ""
    seeds: Sequence[int] = ()
    step: int | None = None
    layer: int | None = None
    head: int | None = None

    @property
    def place(self) -> str:
        """The example in words."""
        parts = [self.model, f"seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}" if self.seeds else ""]
        parts += [f"{name} {number}" for name in ("step", "layer", "head") if (number := getattr(self, name)) is not None]
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class Checked:
    """One check: its name, what it asks in a sentence, what it found, and where it was not made, why. ``passed`` only where it was made."""

    name: str
    asks: str
    findings: tuple[Flaw, ...] = ()
    left_out: str = ""
    examples: int = 0

    @property
    def passed(self) -> bool:
        """True where it was made and found nothing."""
        return not self.findings and not self.left_out


@dataclass(frozen=True)
class KitProof:
    """All checks of one thing. ``complete`` where none found anything and one at least was made."""

    kind: str
    name: str
    checks: Sequence[Checked] = field(default_factory=tuple)

    @property
    def complete(self) -> bool:
        """True where no check found anything and not all were left out."""
        return not any(check.findings for check in self.checks) and any(check.passed for check in self.checks)
