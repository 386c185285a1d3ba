"""The simulation of process bias that lasts, on a small scale; tests/slow/test_process_bias.py simulates months of it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cachemark.gate import nights as ledger


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        yield importlib.import_module("process_bias_study")


def month(study: ModuleType, *, raised: bool, nights: int = 4) -> Any:
    made = study.Month("locked", np.random.default_rng(3), 0.01, "a night", raised)
    for _ in range(nights):
        made.night()
    return made


def test_process_bias_is_reported_from_the_first_night_on_and_raises_what_is_asked(study: ModuleType) -> None:
    seen, blind = month(study, raised=True), month(study, raised=False)
    assert blind.alarms == [True] * 4
    assert blind.delta == 0.02 < 3 * math.sqrt(2) * 0.01 < seen.delta, "of 200 normal values one lies three deviations away"
    assert sum(seen.alarms) <= 1


def test_the_rate_that_is_printed_is_of_nights_and_not_of_configs(study: ModuleType) -> None:
    standing = ledger.standing(month(study, raised=False, nights=12).nights)
    assert standing.wrong / standing.configs < 0.3
    assert standing.rate > 0.9
    assert standing.advisory
