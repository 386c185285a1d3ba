"""Cells of methods that save computation in next-scale models: methods × modes × codec × model."""

from __future__ import annotations

from typing import Any

from cachemark.contract.method import Method
from cachemark.core.spec import FLOPS
from cachemark.kit.saving import SAMPLING, SavingCell
from cachemark.methods.registry import METHODS

from .cells import ALONE

MODES: dict[str, tuple[dict[str, Any], ...]] = {
    "fewer_scales": ({"count": 2}, {"count": 4}),
    "guidance_off": ({"start": 3}, {"start": 0}),
    "fastvar": ({"shares": [0.3, 0.6]}, {"shares": [0.5, 1], "layers": [0, 4], "cached": 1}, {"shares": [0.4, 0.5], "fill": "zero"},
                {"shares": [0.4, 0.5], "score": "highpass"}, {"shares": [0.4, 0.5], "score": "random"}),
}


def cells() -> list[SavingCell]:
    """Return a method's first mode with every codec on every model, the others with the native one."""
    classes: list[type[Method]] = [METHODS.get(name) for name in METHODS]
    return [SavingCell(cls, tuple(mode.items()), codec, model) for cls in classes if cls.budget_kind == FLOPS for model in SAMPLING
            for number, mode in enumerate(MODES.get(cls.name, ({},)))
            for codec in ALONE if codec == "native" or number == 0]  # fmt: skip
