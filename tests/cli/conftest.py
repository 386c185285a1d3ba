from __future__ import annotations

from pathlib import Path

import pytest

from measure import stages


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> stages.Stage:
    """A plan that has been run once, shared by all tests of a session."""
    return stages.measured(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, so that no test sees the accepted baselines of the checkout or leaves anything in it."""
    monkeypatch.chdir(tmp_path)
