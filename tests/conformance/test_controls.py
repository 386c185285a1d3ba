"""Negative controls: every check must notice a model that is wrong in a way people get wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import test_infinity, test_janus, test_llamagen, test_lumina, test_mar, test_mar_lazy, test_mar_vae, test_var
from .checks import Check, Vector
from .discovery import DEFAULT
from .readers import FAMILIES

MODULES: dict[Any, str] = {
    test_infinity: "infinity", test_janus: "janus", test_llamagen: "llamagen", test_lumina: "lumina", test_mar: "mar",
    test_mar_lazy: "mar", test_mar_vae: "mar", test_var: "var",
}
UNCONTROLLED = {("infinity", "scalekv"), ("infinity", "heatkv")}
KINDS = [(module, family, kind) for module, family in MODULES.items() for kind in module.CONTROLS]
CASES = [
    pytest.param(family, kind, wrong, names, id=f"{family}-{kind}-{wrong.__name__}",
                 marks=[pytest.mark.slow] if wrong in getattr(module, "NIGHTLY", ()) else [])
    for module, family, kind in KINDS for wrong, names in module.CONTROLS[kind].items()
]


def golden(family: str, kind: str) -> tuple[Vector, dict[str, Check]]:
    """The stored vector of a kind, and its checks by name."""
    vector = Vector.load(DEFAULT / family / f"golden_{kind}.safetensors")
    return vector, {check.name: check for check in FAMILIES[family][kind].checks_of(vector.names)}


@pytest.mark.parametrize(("family", "kind", "wrong", "names"), CASES)
def test_a_wrong_model_is_noticed(family: str, kind: str, wrong: Any, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    vector, checks = golden(family, kind)
    with torch.no_grad():
        subject = wrong(vector, monkeypatch)
        unnoticed = [name for name in names if not checks[name].fault(subject, vector)]
    assert not unnoticed


@pytest.mark.parametrize(("module", "family", "kind"), KINDS, ids=[f"{family}-{kind}" for _, family, kind in KINDS])
def test_every_check_has_a_control(module: Any, family: str, kind: str) -> None:
    """In `make test`, unless the whole kind is left to the nightly run."""
    nightly = getattr(module, "NIGHTLY", ())
    controls = module.CONTROLS[kind]
    sampled = {wrong: names for wrong, names in controls.items() if wrong not in nightly} or controls
    assert {name for names in sampled.values() for name in names} == golden(family, kind)[1].keys()


def test_every_kind_has_controls() -> None:
    every_kind = {(family, kind) for family, kinds in FAMILIES.items() for kind in kinds}
    assert every_kind - {(family, kind) for _, family, kind in KINDS} == UNCONTROLLED
