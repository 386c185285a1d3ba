"""Fixtures of tests of plans."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cachemark.plans.schema import Plan, load


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Plan]:
    """Reads a plan from its text."""

    def write(text: str) -> Plan:
        (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
        return load(str(tmp_path / "plan.toml"))

    return write
