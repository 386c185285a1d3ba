"""Every check of every vector file, on the real model classes."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from .checks import Kind, Vector, matching
from .discovery import DEFAULT, Item, find


@functools.cache
def vector_of(path: Path) -> Vector:
    return Vector.load(path)


@functools.cache
def subject_of(path: Path, build: Any) -> Any:
    return build(vector_of(path))


@functools.cache
def fault_of(path: Path, kind: Kind, name: str) -> str:
    """Return the failure of the named check on a file, or ""."""
    vector = vector_of(path)
    check = next(check for check in kind.checks_of(vector.names) if check.name == name)
    with torch.no_grad():
        return check.fault(subject_of(path, kind.build), vector)


def test_vector(item: Item) -> None:
    if item.problem:
        pytest.fail(item.problem, pytrace=False)
    if item.lacking:
        pytest.skip(f"{item.path.name} holds no {item.lacking}")
    assert isinstance(item.kind, Kind)
    assert item.check is not None
    if fault := fault_of(item.path, item.kind, item.check.name):
        pytest.fail(f"{item.path}: {fault}", pytrace=False)


def disturbed(tensor: Tensor) -> Tensor:
    """Return a different tensor of the same kind and finite values."""
    if tensor.dtype == torch.bool:
        return ~tensor
    finite = tensor.nan_to_num(0, 0, 0) if tensor.is_floating_point() else tensor
    return -finite - 1 - finite.abs().max() if tensor.is_floating_point() else tensor ^ 1


def unnoticed(path: Path, kind: Kind) -> set[str]:
    """Return checks that never fail, and expected tensors that no check depends on."""
    vector, subject = vector_of(path), subject_of(path, kind.build)
    checks = kind.checks_of(vector.names)
    pending = {check.name for check in checks if not any(need.startswith("json/") for need in check.needs)}
    pending |= {name for check in checks for name, _ in matching(check.needs[0], vector.tensors)}
    for check in checks:
        for name in [name for need in check.needs for name, _ in matching(need, vector.tensors)]:
            if {check.name, name} & pending:
                other = replace(vector, tensors={**vector.tensors, name: disturbed(vector.tensors[name])})
                pending -= {check.name, name} if check.fault(subject, other) else set()
    return pending


PATHS = sorted({item.path for item in find(DEFAULT)})
DAILY = {path.parent: path for path in PATHS if path.stem.endswith("_small")}.values()  # a file of each family, the others at night


@pytest.mark.parametrize("path", [
    pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=[] if path in DAILY else [pytest.mark.slow]) for path in PATHS])
def test_every_stored_tensor_counts(path: Path) -> None:
    """Each tensor is read by a check, and changing it fails a check."""
    kind = next(item.kind for item in find(DEFAULT) if item.path == path)
    assert kind is not None
    vector = vector_of(path)
    for check in kind.checks_of(vector.names):
        assert not fault_of(path, kind, check.name)
    with torch.no_grad():
        assert not unnoticed(path, kind)
    assert vector.used == vector.tensors.keys()
