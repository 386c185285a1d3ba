"""Histories of configurations in simulated years, checked every night, from another seed than the one used to choose the rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from cachemark.stats import changepoints as history

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
STUDY = "history_study"
SEED, YEARS = 101, 16
YEARLY = 0.1  # years with a false alarm, as docs/results/validation.md states
KINDS = ("independent nights, 1 %", "AR(1) 0.3, 1 %", "AR(1) 0.3, 2 %", "AR(1) 0.6, 1 %", "AR(1) 0.6, 2 %", "weekly ± 1 %, sine",
         "weekly ± 1 %, weekends", "weekly ± 2 %, weekends", "weekly ± 1 % and AR(1) 0.6")

Row = dict[str, Any]


@pytest.fixture(scope="module")
def row(study: ModuleType) -> Callable[[str], Row]:
    """Simulates a kind of noise once."""
    return cache(lambda kind: dict(study.row(kind, YEARS, SEED)))


def missed(row: Row) -> int:
    """Steps that the history had said it would show and did not within a fortnight."""
    return row["promised"] - round(row["promised"] * row["found of these"]) if row["promised"] else 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_found_within_days_or_said_not_to_show_and_unchanged_years_are_quiet(
    kind: str, study: ModuleType, row: Callable[[str], Row],
) -> None:
    found = row(kind)
    print(study.markdown([found]))
    assert found["with a false alarm"] <= binom.ppf(0.999, YEARS, YEARLY)
    assert missed(found) <= binom.ppf(0.999, found["promised"], 1 - history.POWER)
    if found["says it shows"] <= study.STEP / 2:
        assert found["found within 14 nights"] >= 0.8
        assert found["median nights"] <= 10


def test_all_kinds_together_keep_what_the_guide_says(study: ModuleType, row: Callable[[str], Row]) -> None:
    rows = [row(kind) for kind in study.KINDS]
    assert [found["noise"] for found in rows] == list(KINDS)
    assert sum(found["with a false alarm"] for found in rows) <= YEARLY * YEARS * len(rows)
    assert sum(map(missed, rows)) <= binom.ppf(0.999, sum(found["promised"] for found in rows), 1 - history.POWER)


@pytest.mark.parametrize("kind", ["AR(1) 0.3, 2 %", "AR(1) 0.6, 1 %", "AR(1) 0.6, 2 %"])
def test_the_step_that_is_said_to_show_is_found_nine_times_in_ten(study: ModuleType, kind: str) -> None:
    late = 0
    for year in study.KINDS[kind].years(np.random.default_rng([SEED, *kind.encode()]), YEARS):
        moved = year + math.log1p(study.segment(year[: study.ONSET]).shows) * (np.arange(study.NIGHTS) >= study.ONSET)
        late += not any(abs(c.first - study.ONSET) <= history.SOON for k in range(2, history.SOON + 1, 3)
                        for c in study.gating(moved[: study.ONSET + k]))
    assert late <= binom.ppf(0.999, YEARS, 1 - history.POWER)
