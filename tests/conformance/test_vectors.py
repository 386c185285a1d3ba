"""Every check of every vector file, through the real model classes."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from .checks import Kind, Vector
from .discovery import Item


@functools.cache
def vector_of(path: Path) -> Vector:
    return Vector.load(path)


@functools.cache
def subject_of(path: Path, build: Any) -> Any:
    return build(vector_of(path))


def test_vector(item: Item) -> None:
    if item.problem:
        pytest.fail(item.problem, pytrace=False)
    if item.lacking:
        pytest.skip(f"{item.path.name} holds no {item.lacking}")
    assert isinstance(item.kind, Kind)
    assert item.check is not None
    with torch.no_grad():
        fault = item.check.fault(subject_of(item.path, item.kind.build), vector_of(item.path))
    if fault:
        pytest.fail(f"{item.path}: {fault}", pytrace=False)
