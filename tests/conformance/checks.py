"""What a vector file is, and what a check is: a function from (subject, vector) to the greatest deviation."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

WEIGHTS = "weights/"


@dataclass
class Vector:
    """One vector file: its tensors, the JSON beside it, and which tensors the checks have looked at.

    ``path`` names the file as it is without compression; a large one may lie there with ``.xz`` behind its name.
    """

    path: Path
    facts: dict[str, Any]
    tensors: dict[str, Tensor]
    seen: set[str] = field(default_factory=set)

    @classmethod
    def load(cls, path: Path) -> Vector:
        return cls(path, json.loads(path.with_suffix(".json").read_text()), load(content(path)))

    def __getitem__(self, name: str) -> Tensor:
        self.seen.add(name)
        return self.tensors[name]

    @property
    def names(self) -> set[str]:
        """What checks may need: the tensors, and the first keys of the JSON as ``json/<key>``."""
        return self.tensors.keys() | {f"json/{key}" for key in self.facts}

    def matching(self, pattern: str) -> list[tuple[str, str]]:
        """Every tensor whose name fits ``pattern``, and what its ``*`` stands for, which holds no slash; numbers in their order."""
        return matching(pattern, self.tensors)

    def weights(self) -> dict[str, Tensor]:
        """The model's weights under their official names, in fp32 (some files store them as fp16, exactly)."""
        names = [name for name in self.tensors if name.startswith(WEIGHTS)]
        return {name.removeprefix(WEIGHTS): self[name].float() for name in names}


def content(path: Path) -> bytes:
    """The bytes of a vector file, from its compressed form where only that is there."""
    return path.read_bytes() if path.exists() else lzma.decompress(compressed(path).read_bytes())


def compressed(path: Path) -> Path:
    return path.with_name(f"{path.name}.xz")


@dataclass(frozen=True)
class Check:
    """``measure`` gives the greatest deviation of a subject from a vector; above ``tolerance`` the check fails.

    ``needs`` names the tensors that the file must hold for the check to make sense, with ``*`` for any part of a name. Where the
    check's own name holds a ``*``, it stands for one check for each match of the first need, which ``measure`` gets as ``which``.
    """

    name: str
    tolerance: float
    measure: Callable[..., float]
    needs: tuple[str, ...]

    def lacking(self, names: Iterable[str]) -> list[str]:
        return [need for need in self.needs if not matching(need, names)]

    def expanded(self, names: Iterable[str]) -> list[Check]:
        """This check, or where it stands for several, those that the file has something for."""
        matches = matching(self.needs[0], names) if "*" in self.name else []
        return [replace(self, name=self.name.replace("*", which), measure=partial(self.measure, which=which),
                        needs=tuple(need.replace("*", which) for need in self.needs)) for _, which in matches] or [self]

    def fault(self, subject: Any, vector: Vector) -> str:
        """What is wrong, or nothing. Not a number counts as wrong."""
        deviation = self.measure(subject, vector)
        return "" if deviation <= self.tolerance else f"{self.name}: deviates by {deviation:.3g}, allowed {self.tolerance:.3g}"


@dataclass(frozen=True)
class Kind:
    """How files of one kind are read: ``build`` makes the subject that the checks look at. ``about`` says for the cards what the
    subject is, and ``methods`` under which cache methods it runs: none where only an image tokenizer does."""

    build: Callable[[Vector], Any]
    checks: tuple[Check, ...]
    about: str = ""
    methods: tuple[str, ...] = ()

    def checks_of(self, names: Iterable[str]) -> list[Check]:
        """The checks of a file that holds ``names``."""
        return [single for check in self.checks for single in check.expanded(names)]


Family = Mapping[str, Kind]


def matching(pattern: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Those of ``names`` that fit ``pattern``, and what its ``*`` stands for, which holds no slash; numbers in their order."""
    fits = re.compile(re.escape(pattern).replace(r"\*", "([^/]+)"))
    matches = [(name, match[1] if fits.groups else "") for name in names if (match := fits.fullmatch(name))]
    return sorted(matches, key=lambda entry: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", entry[1])])


def worst(deviations: Iterable[float]) -> float:
    """The greatest of them; infinite where nothing was compared."""
    return max(deviations, default=float("inf"))


def apart(actual: Tensor, expected: Tensor) -> float:
    """The greatest absolute difference; infinite where the shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    return float((actual.double() - expected.double()).abs().max())


def spread(actual: Tensor, expected: Tensor) -> float:
    """The root mean square of the differences; infinite where the shapes differ."""
    if actual.shape != expected.shape:
        return float("inf")
    return float((actual.double() - expected.double()).square().mean().sqrt())


def differing(actual: Tensor, expected: Tensor) -> float:
    """Share of places that differ."""
    return float((actual != expected).double().mean()) if actual.shape == expected.shape else float("inf")


def differing_bytes(actual: Tensor, expected: Tensor) -> float:
    """Share of bytes that differ by one; infinite where one differs by more, or the shapes or types do."""
    if actual.dtype != torch.uint8 or apart(actual, expected) > 1:
        return float("inf")
    return differing(actual, expected)
