"""What a vector file is, and what a check is: a function from (subject, vector) to the greatest deviation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

WEIGHTS = "weights/"


@dataclass
class Vector:
    """One vector file: its tensors, the JSON beside it, and which tensors the checks have looked at."""

    path: Path
    facts: dict[str, Any]
    tensors: dict[str, Tensor]
    seen: set[str] = field(default_factory=set)

    @classmethod
    def load(cls, path: Path) -> Vector:
        return cls(path, json.loads(path.with_suffix(".json").read_text()), load_file(path))

    def __getitem__(self, name: str) -> Tensor:
        self.seen.add(name)
        return self.tensors[name]

    def weights(self) -> dict[str, Tensor]:
        """The model's weights under their official names, in fp32 (some files store them as fp16, exactly)."""
        names = [name for name in self.tensors if name.startswith(WEIGHTS)]
        return {name.removeprefix(WEIGHTS): self[name].float() for name in names}


@dataclass(frozen=True)
class Check:
    """``measure`` gives the greatest deviation of a subject from a vector; above ``tolerance`` the check fails.

    ``needs`` names the tensors that the file must hold for the check to make sense.
    """

    name: str
    tolerance: float
    measure: Callable[[Any, Vector], float]
    needs: tuple[str, ...]

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


Family = Mapping[str, Kind]


def apart(given: Tensor, expected: Tensor) -> float:
    """The greatest absolute difference; infinite where the shapes differ."""
    if given.shape != expected.shape:
        return float("inf")
    return float((given.double() - expected.double()).abs().max())


def differing(given: Tensor, expected: Tensor) -> float:
    """Share of places that differ."""
    return float((given != expected).double().mean()) if given.shape == expected.shape else float("inf")


def differing_bytes(given: Tensor, expected: Tensor) -> float:
    """Share of bytes that differ by one; infinite where one differs by more, or the shapes or types do."""
    if given.dtype != torch.uint8 or apart(given, expected) > 1:
        return float("inf")
    return differing(given, expected)
