from __future__ import annotations

import pytest

from . import stages


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> stages.Stage:
    """A plan that has been run once, shared by all tests of a session."""
    return stages.measured(tmp_path_factory.getbasetemp())
