"""The studies of `studies/`, which tests repeat in their full size."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def study(request: pytest.FixtureRequest) -> ModuleType:
    """The module of `studies/` that the file of tests names as ``STUDY``."""
    return importlib.import_module(f"studies.{request.module.STUDY}")
