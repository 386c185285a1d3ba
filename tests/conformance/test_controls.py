"""Negative controls: every check must notice a model that is wrong in a way people get wrong."""

from __future__ import annotations

import pytest
import torch

from .checks import Vector
from .controls import CONTROLS
from .controls.wrong_model import WrongModel
from .discovery import DEFAULT
from .readers import FAMILIES

CASES = [
    pytest.param(family, kind, wrong, id=f"{family}-{kind}-{wrong.name}", marks=[pytest.mark.slow] if wrong.nightly else [])
    for (family, kind), controls in CONTROLS.items() for wrong in controls
]


@pytest.mark.parametrize(("family", "kind", "wrong"), CASES)
def test_a_wrong_model_is_noticed(family: str, kind: str, wrong: WrongModel, monkeypatch: pytest.MonkeyPatch) -> None:
    vector, reader = Vector.load(DEFAULT / family / f"golden_{kind}.safetensors"), FAMILIES[family][kind]
    checks = {check.name: check for check in reader.checks_of(vector.names)}
    with torch.no_grad():
        subject = wrong.make(reader.build, vector, monkeypatch)
        assert not [name for name in wrong.checks if not checks[name].fault(subject, vector)]
