"""Vector files, and checks that measure the largest deviation of a subject from a vector."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load
from torch import Tensor, nn

from cachemark.cache.slot import Slot

WEIGHTS = "weights/"
LOGITS = 1e-4
RARE = 1e-3  # share of bytes that rounding may move by one
M = TypeVar("M", bound=nn.Module)


@dataclass
class Vector:
    """A vector file at its uncompressed ``path``: its tensors, the JSON next to it, and the names of tensors read so far."""

    path: Path
    facts: dict[str, Any]
    tensors: dict[str, Tensor]
    used: set[str] = field(default_factory=set)
    names = property(lambda self: self.tensors.keys() | {f"json/{key}" for key in self.facts})  # that checks may need

    @classmethod
    def load(cls, path: Path) -> Vector:
        content = path.read_bytes() if path.exists() else lzma.decompress(path.with_name(f"{path.name}.xz").read_bytes())
        return cls(path, json.loads(path.with_suffix(".json").read_text()), load(content))

    def __getitem__(self, name: str) -> Tensor:
        self.used.add(name)
        return self.tensors[name]

    @staticmethod
    def names_of(path: Path) -> set[str]:
        """Return the names of a file by its head alone."""
        with path.open("rb") if path.exists() else lzma.open(path.with_name(f"{path.name}.xz")) as file:
            listed = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return listed.keys() - {"__metadata__"} | {f"json/{key}" for key in json.loads(path.with_suffix(".json").read_text())}

    def matching(self, pattern: str) -> list[tuple[str, str]]:
        return matching(pattern, self.tensors)

    def weights(self) -> dict[str, Tensor]:
        names = [name for name in self.tensors if name.startswith(WEIGHTS)]
        return {name.removeprefix(WEIGHTS): self[name].float() for name in names}


def beside(vector: Vector, name: str) -> Vector:
    """Return the file of this name next to a vector, or else the one of this repository."""
    own = vector.path.with_name(f"{name}.safetensors")
    family = Path(__file__).parent / "vectors" / own.parent.name
    return Vector.load(own if own.with_suffix(".json").exists() else family / own.name)


@dataclass(frozen=True)
class Check:
    """A measurement of a subject that fails above ``tolerance``.

    ``needs``: tensors that the file must hold, with ``*`` for any part of a name. If the check's own name contains ``*``, it becomes one
    check per match of the first need, passed to ``measure`` as ``which``.
    """

    name: str
    tolerance: float
    measure: Callable[..., float]
    needs: tuple[str, ...]

    def lacking(self, names: Iterable[str]) -> list[str]:
        return [need for need in self.needs if not matching(need, names)]

    def expanded(self, names: Iterable[str]) -> list[Check]:
        """Return this check, or one per match of its pattern."""
        matches = matching(self.needs[0], names) if "*" in self.name else []
        return [replace(self, name=self.name.replace("*", which), measure=partial(self.measure, which=which),
                        needs=tuple(need.replace("*", which) for need in self.needs)) for _, which in matches] or [self]

    def fault(self, subject: Any, vector: Vector) -> str:
        """Describe the failure; empty if there is none. NaN is a failure."""
        deviation = self.measure(subject, vector)
        return "" if deviation <= self.tolerance else f"{self.name}: deviates by {deviation:.3g}, allowed {self.tolerance:.3g}"


def compare(
    name: str, need: str, actual: Callable[..., Tensor], tolerance: float = LOGITS, *, needs: tuple[str, ...] = (),
    by: Callable[[Any, Tensor], float] = lambda actual, expected: apart(actual, expected),
) -> Check:
    """Check ``actual(subject, vector)`` against the stored tensor ``need``, by its largest difference or by another measure ``by``.

    ``actual`` also gets the parts that matched ``*`` in ``need``; without ``*`` in ``name``, the worst match counts. ``needs`` are further
    tensors that the check reads.
    """

    def measure(subject: Any, vector: Vector, which: str | None = None) -> float:
        matches = parts_of(need, vector.tensors) if which is None else [(need.replace("*", which), (which,))]
        return worst(by(actual(subject, vector, *parts), vector[at]) for at, parts in matches)

    return Check(name, tolerance, measure, (need, *needs))


def of_runs(
    name: str, need: str, actual: Callable[..., Tensor], tolerance: float = LOGITS,
    by: Callable[[Any, Tensor], float] = lambda actual, expected: apart(actual, expected),
) -> Check:
    """Check each tensor ``need`` of a subject with ``runs``: ``actual`` gets the generation that the first part names, and the others."""
    return compare(name, need, lambda subject, vector, run, *parts: actual(
        subject.runs[run], *(int(part) if part.isdigit() else part for part in parts)), tolerance, by=by)


@dataclass(frozen=True)
class Kind:
    """How files of one kind are read; ``build`` makes the subject of the checks, ``about`` and ``methods`` are for the model cards."""

    build: Callable[[Vector], Any]
    checks: tuple[Check, ...]
    about: str = ""
    methods: tuple[str, ...] = ()

    def checks_of(self, names: Iterable[str]) -> list[Check]:
        return [single for check in self.checks for single in check.expanded(names)]


Family = Mapping[str, Kind]


def parts_of(pattern: str, names: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the names that match, each with the parts matched by ``*`` (no slash), in numeric order."""
    fits = re.compile(re.escape(pattern).replace(r"\*", "([^/]+)"))
    matches = [(name, match.groups()) for name in names if (match := fits.fullmatch(name))]
    return sorted(matches, key=lambda entry: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", "/".join(entry[1]))])


def matching(pattern: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the names that match, each with its first part."""
    return [(name, parts[0] if parts else "") for name, parts in parts_of(pattern, names)]


def filled(model: M, weights: Mapping[str, Tensor]) -> M:
    model.load_state_dict(weights)
    return model.eval().requires_grad_(False)


def below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def worst(deviations: Iterable[float]) -> float:
    return max(deviations, default=float("inf"))


def apart(actual: Tensor, expected: Tensor) -> float:
    """Return the largest absolute difference; infinite if shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    return float((actual.double() - expected.double()).abs().max())


def slot_apart(part: int, slot: Slot, expected: Tensor) -> float:
    """Return the largest difference of stored keys (part 0) or values (1); infinite if another number of entries is live."""
    live = expected.shape[2]
    return apart(slot.read(slot.bank.runs[0], live)[part], expected) if slot.live == [live] else float("inf")


def spread(actual: Tensor, expected: Tensor) -> float:
    """Return the root mean square of the differences; infinite if shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    return float((actual.double() - expected.double()).square().mean().sqrt())


def differing(actual: Tensor, expected: Tensor) -> float:
    """Return the fraction of differing positions; infinite if shapes differ."""
    return float((actual != expected).double().mean()) if actual.shape == expected.shape else float("inf")


def differing_bytes(actual: Tensor, expected: Tensor) -> float:
    """Return the fraction of bytes that differ by one; infinite for any larger difference."""
    if actual.dtype != torch.uint8 or apart(actual, expected) > 1:
        return float("inf")
    return differing(actual, expected)
