"""What the history of a configuration tells in simulated years, in small; tests/slow/test_history.py simulates them in full."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from cachemark.stats import changepoints as history

SEED, YEARS = 7, 30
SOME = ("AR(1) 0.3, 2 %", "AR(1) 0.6, 1 %", "weekly ± 1 %, sine", "weekly ± 1 %, weekends")


@pytest.fixture(scope="module")
def study() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        yield import_module("history_study")


def years(study: ModuleType, kind: str, count: int = YEARS) -> np.ndarray:
    return np.asarray(study.KINDS[kind].years(np.random.default_rng([SEED, *kind.encode()]), count))


def test_the_noise_is_what_its_name_says(study: ModuleType) -> None:
    noise = years(study, "AR(1) 0.6, 2 %", 100)
    assert noise.std() == pytest.approx(0.02, rel=0.05)
    assert np.mean([np.corrcoef(year[:-1], year[1:])[0, 1] for year in noise]) == pytest.approx(0.6, abs=0.03)
    cycle = years(study, "weekly ± 1 %, weekends", 100).mean(axis=0)
    assert [round(float(cycle[day::7].mean()), 3) for day in range(7)] == [-0.01] * 5 + [0.01] * 2


@pytest.mark.parametrize("kind", SOME)
def test_a_step_of_a_twentieth_is_found_within_a_fortnight(kind: str, study: ModuleType) -> None:
    found = [study.segment(study.stepped(year)[: study.ONSET + history.SOON]) for year in years(study, kind, 12)]
    near = [any(c.gates and abs(c.first - study.ONSET) <= study.NEAR for c in segment.changes) for segment in found]
    assert np.mean(near) >= 0.6


def test_years_are_looked_at_together_as_each_is_alone(study: ModuleType) -> None:
    for kind, last in itertools.product(SOME, (30, 100, 210)):
        rows = np.array([study.stepped(year)[:last] for year in years(study, kind, 6)])
        np.testing.assert_allclose(study.weekly(rows), [history.weekly(row, np.arange(last)) for row in rows], atol=1e-12)
        changed = np.array([any(c.kind != history.SPREAD for c in study.segment(row).changes) for row in rows])
        assert study.may_change(rows)[changed].all()
        assert changed.all() if last > study.ONSET else not changed.any()


@pytest.mark.parametrize("kind", SOME)
def test_unchanged_years_raise_no_alarm(kind: str, study: ModuleType) -> None:
    alarms = study.false_years(years(study, kind), every=110)
    assert alarms <= 2, "of 30 years; a rule that does not widen has several times as many"


def test_a_series_that_cannot_show_a_step_says_which_it_can(study: ModuleType) -> None:
    calm, wild = ([study.segment(year[: study.ONSET]) for year in years(study, kind, 5)]
                  for kind in ("independent nights, 1 %", "AR(1) 0.6, 2 %"))
    assert np.median([segment.shows for segment in calm]) < study.STEP < np.median([segment.shows for segment in wild]) < 0.2
    assert wild[0].blind.startswith("its nights vary so much, or are so alike (correlation 0.")
    assert "may not show within 14 nights" in wild[0].blind


def test_what_a_series_says_it_shows_is_mostly_found_and_half_of_it_is_not(study: ModuleType) -> None:
    def found(share: float) -> int:
        held = 0
        for year in years(study, "AR(1) 0.6, 2 %", 12):
            size = math.log1p(share * study.segment(year[: study.ONSET]).shows)
            moved = (year + size * (np.arange(study.NIGHTS) >= study.ONSET))[: study.ONSET + history.SOON]
            held += any(abs(c.first - study.ONSET) <= history.SOON for c in study.gating(moved))
        return held

    assert found(0.5) <= 6 < 9 <= found(1.0)


@pytest.mark.parametrize("weeks", [3, 12])
def test_a_cycle_is_taken_out_as_soon_as_four_weeks_show_it(weeks: int) -> None:
    days = np.arange(7 * weeks)
    cycle = 0.02 * np.where(days % 7 >= 5, 1.0, -1.0)
    x = cycle + np.random.default_rng(SEED).normal(0, 0.002, len(days)) + 0.05 * (days >= 40)
    owed = history.weekly(x, days)
    assert (np.corrcoef(owed, cycle)[0, 1] > 0.95 if weeks >= history.WEEKS else not owed.any())
    assert not history.weekly(x - cycle, days).any(), "a step is no cycle"


def test_the_weekday_is_that_of_the_date_and_not_of_the_number_of_nights() -> None:
    """With nights left out, the night seven nights ago is another weekday."""
    kept = np.flatnonzero(np.random.default_rng(SEED).random(240) > 0.3)
    cycle = 0.03 * np.where(kept % 7 >= 5, 1.0, -1.0)
    x = cycle + np.random.default_rng(SEED).normal(0, 0.003, len(kept))
    assert np.corrcoef(history.weekly(x, kept), cycle)[0, 1] > 0.95
    assert not history.weekly(x, np.arange(len(kept))).any()
