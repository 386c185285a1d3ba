"""The studies of `benchmarks/`, which tests repeat in their full size."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def study(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The module of `benchmarks/` that the file of tests names as ``STUDY``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        yield importlib.import_module(request.module.STUDY)
