"""Every check of every vector file, through the real model classes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from .checks import Kind, Vector
from .discovery import DEFAULT, Item, find


@functools.cache
def vector_of(path: Path) -> Vector:
    return Vector.load(path)


@functools.cache
def subject_of(path: Path, build: Any) -> Any:
    return build(vector_of(path))


@functools.cache
def fault_of(path: Path, kind: Kind, name: str) -> str:
    """What the check of this name says of a file, or nothing."""
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


def test_every_tensor_of_the_projects_vectors_is_looked_at() -> None:
    for path, kind in {item.path: item.kind for item in find(DEFAULT)}.items():
        assert kind is not None
        vector = vector_of(path)
        for check in kind.checks_of(vector.names):
            fault_of(path, kind, check.name)
        assert vector.seen == vector.tensors.keys()
