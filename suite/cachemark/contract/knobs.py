"""Knobs of a method or of a decoder: the fields of its dataclass, as a plan gives them by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from ..core.errors import BadKnob, unknown


@dataclass
class Knobs:
    """A thing of a registry by its ``name``, made of knobs."""

    name: ClassVar[str] = ""

    def check_choice(self, knob: str, *known: str) -> None:
        """Raise BadKnob where the knob has none of the ``known`` values."""
        if (value := getattr(self, knob)) not in known:
            raise BadKnob(f"{self.name}: {knob} = {value!r} is unknown.", remedy=f"Known: {', '.join(known)}.")

    @classmethod
    def build(cls, knobs: Mapping[str, Any]) -> Self:
        """An instance with these knobs; an unknown knob or a value of another type is an error that names the nearest."""
        types = {f.name: type(f.default) if f.default is not None else None for f in fields(cls)}
        for knob, value in knobs.items():
            if knob not in types:
                raise unknown(f"knob of {cls.name}", knob, types)
            expected = types[knob]
            wrong = expected is not None and (type(value) is not expected and not (expected is float and type(value) is int))
            if wrong and expected in (int, float, bool, str):
                kind = expected.__name__
                raise BadKnob(f"{cls.name}: {knob} = {value!r} is not {'an' if expected is int else 'a'} {kind}.",
                              remedy=f"Its default is of type {kind}.")
        return cls(**knobs)

    def knobs(self) -> dict[str, Any]:
        """Every knob with its value."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
