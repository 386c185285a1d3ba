"""Fixtures of tests that run workflows."""

from collections.abc import Iterator
from typing import Any

import pytest

from cachemark.trial.executors import local as executor
from cachemark.trial.request import Task


@pytest.fixture
def quick_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are measured; the candidates of pairs answer at once."""
    from cli.quick_machine import Machine

    made, real = Machine(), executor.run_trials

    def run_trials(planned: Any, options: Any, *rest: Any, **more: Any) -> Iterator[Any]:
        return (made.run_trials if options.task is Task.TIMES else real)(planned, options, *rest, **more)

    monkeypatch.setattr(executor, "run_trials", run_trials)
    monkeypatch.setattr(executor, "identify", made.identify)
