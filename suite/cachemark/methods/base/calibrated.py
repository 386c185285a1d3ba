"""Methods that need facts measured of the weights beforehand: the model's own calibration, or one that is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...cache.layout import Layout
from ...contract.planning import Planning
from ...core.errors import BadCalibration, BadParameter
from . import calibrations

_SOUND: set[tuple[object, ...]] = set()  # calibrations that have been looked at, and the shapes of the models they are for


@dataclass
class Calibrated(Planning):
    """Resolves the parameter ``calibration`` to the digest of the facts, which so becomes part of a case's identity. Left empty it is the
    calibration of the case's weights; a plan may name one that comes with the package, or give a digest."""

    calibration: str = ""

    def __post_init__(self) -> None:
        self._measured: Mapping[str, Any] = {}

    def calibrate(self, measured: Mapping[str, Any]) -> None:
        self._measured = measured

    def facts(self, layout: Layout) -> Mapping[str, Any]:
        """The facts, of a model with these layers, heads and scales or lines; fills in ``calibration``. Raises BadParameter where there are
        none, UnknownName for a name that is none, BadCalibration for those that are broken or of another model."""
        if not self.calibration:
            if not self._measured:
                raise BadParameter(f"{self.name}: nobody has calibrated these weights for it.",
                                   remedy=f"Measure them once: cachemark calibrate {self.name} MODEL. "
                                          f"Or name a packaged calibration: calibration = \"…\".")
            self.calibration = calibrations.remember(self.name, self._measured)
        self.calibration, facts = calibrations.named(self.name, self.calibration)
        cache_key = self.name, self.calibration, *_shape(layout).values()
        if cache_key not in _SOUND:
            self._check(facts, layout)
            _SOUND.add(cache_key)
        return facts

    def tables(self, facts: Mapping[str, Any], layout: Layout) -> Mapping[str, tuple[int, ...]]:
        """The facts that the method reads, each a table of finite numbers of that shape."""
        return {}

    def _check(self, facts: Mapping[str, Any], layout: Layout) -> None:
        what, remedy = f"{self.name}: the calibration {facts.get('model')}", f"Measure this model: cachemark calibrate {self.name} MODEL."
        expected = {name: list(value) if isinstance(value, tuple) else value for name, value in _shape(layout).items()}
        wrong = [f"{name} {_brief(facts.get(name))}, not {_brief(value)}" for name, value in expected.items() if facts.get(name) != value]
        if wrong:
            raise BadCalibration(f"{what} is of another model or resolution: {'; '.join(wrong)}.", remedy=remedy)
        for name, sizes in self.tables(facts, layout).items():
            if not _is_table(facts.get(name), sizes):
                raise BadCalibration(f"{what} has no {name} of {' × '.join(map(str, sizes))} finite numbers.", remedy=remedy)


def _shape(layout: Layout) -> dict[str, int | tuple[int, ...]]:
    """The sizes of a model that its calibrations have to have."""
    tokens: dict[str, int | tuple[int, ...]] = {"scales": layout.scales} if layout.scales else {"lines": layout.lines, "line": layout.line}
    return {"layers": layout.layers, "heads": layout.kv_heads, **tokens}


def _brief(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _is_table(value: object, sizes: tuple[int, ...]) -> bool:
    if not sizes:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, list) and len(value) == sizes[0] and all(_is_table(part, sizes[1:]) for part in value)
