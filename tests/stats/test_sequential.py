"""Claims that may be asked after every seed: their error rate with an interim analysis at each, and what that costs."""

from __future__ import annotations

import numpy as np
import pytest

from cachemark.stats.gaffke import chances_at_most
from cachemark.stats.non_inferiority import ALPHA
from cachemark.stats.sequential import loss_that_shows_at_any_time, p_at_any_time, seeds_to_show_at_any_time

MARGIN, SERIES, SEEDS = 0.05, 2000, 400
VALUES = np.array([-1.0, -0.5, 0.0, 0.5])


@pytest.mark.parametrize("chances", [[0.05, 0, 0.95, 0], [0, 0.1, 0.9, 0], [0.03, 0.045, 0.92, 0.005]])
def test_of_2000_series_that_lose_the_margin_at_most_5_percent_are_ever_called_non_inferior(chances: list[float]) -> None:
    assert VALUES @ chances == pytest.approx(-MARGIN)
    gains = np.random.default_rng(11).choice(VALUES, (SERIES, SEEDS), p=chances)
    ever = p_at_any_time(gains, MARGIN, -1.0)[:, -1] <= ALPHA
    assert ever.mean() <= ALPHA


def test_of_as_many_series_at_most_5_percent_are_ever_called_worse() -> None:
    """The mirrored claim: of what loses just less than the margin."""
    gains = np.random.default_rng(12).choice(VALUES, (SERIES, SEEDS), p=[0.04, 0.01, 0.95, 0.0])
    assert VALUES @ [0.04, 0.01, 0.95, 0.0] > -MARGIN
    ever = p_at_any_time(-gains, -MARGIN, -1.0)[:, -1] <= ALPHA
    assert ever.mean() <= ALPHA
    ruined = np.random.default_rng(13).choice(VALUES, (SERIES, 32), p=[0.5, 0.1, 0.4, 0.0])
    assert (p_at_any_time(-ruined, -MARGIN, -1.0)[:, -1] <= ALPHA).mean() > 0.95


def test_six_methods_that_lose_the_margin_are_looked_at_together() -> None:
    """The family error with an interim analysis at every seed, corrected by Holm at each, as a run until all is decided does."""
    series = 400
    gains = np.random.default_rng(14).choice(VALUES, (series, 6, SEEDS), p=[0.05, 0, 0.95, 0])
    p = p_at_any_time(gains, MARGIN, -1.0)
    ever = (p.min(axis=1) * 6 <= ALPHA).any(axis=-1)  # Holm's first step: without it nothing is shown
    assert ever.mean() <= ALPHA
    assert (p.min(axis=1) <= ALPHA).any(axis=-1).mean() > ever.mean(), "uncorrected it would err more often"


def test_the_loss_that_seeds_can_show_is_the_one_for_which_they_are_enough() -> None:
    for n, claims in ((88, 1), (300, 4)):
        loss = loss_that_shows_at_any_time(n, -1.0, claims)
        assert seeds_to_show_at_any_time([0.0], loss * 1.001, -1.0, claims) == n
        assert (seeds_to_show_at_any_time([0.0], loss * 0.98, -1.0, claims) or 0) > n
    assert loss_that_shows_at_any_time(88, -1.0, 1) == pytest.approx(MARGIN, rel=0.02)


def test_a_test_of_a_fixed_number_of_seeds_would_err_more_often_if_it_were_looked_at() -> None:
    values, interims = np.array([-1.0, 0.0]), np.arange(60, SEEDS, 10)
    lost = np.cumsum(np.random.default_rng(11).random((200, SEEDS)) < MARGIN, axis=1)[:, interims - 1]
    counts = np.stack([lost, interims - lost], axis=-1).reshape(-1, 2)
    alike, place = np.unique(counts, axis=0, return_inverse=True)
    shown = chances_at_most(values, alike, -MARGIN, -1.0)[place.ravel()].reshape(lost.shape) <= ALPHA
    assert shown.any(axis=1).mean() > 2 * ALPHA


def test_what_loses_nothing_is_shown_at_88_seeds_and_stays_shown() -> None:
    p = p_at_any_time([0.0] * 120 + [-1.0] * 30, MARGIN, -1.0)
    assert int(np.argmax(p <= ALPHA)) + 1 == 88
    assert (np.diff(p) <= 0).all()
    assert p[-1] <= ALPHA


def test_the_seeds_that_would_show_it_are_those_at_which_it_is_shown() -> None:
    assert seeds_to_show_at_any_time([0.0], MARGIN, -1.0, 1) == 88
    assert seeds_to_show_at_any_time([-1.0, 0.0], MARGIN, -1.0, 1) is None
    gains = [-1.0] + 99 * [0.0]
    shown = 1 + np.argmax(p_at_any_time(5 * gains, MARGIN, -1.0) <= ALPHA)
    assert seeds_to_show_at_any_time(gains, MARGIN, -1.0, 1) == pytest.approx(shown, rel=0.3)
