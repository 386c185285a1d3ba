"""The page on decoders: its stored gains, and intervals of differences."""

import json

import pytest
import scipy

from cachemark.stats.intervals import Interval
from tools.pages import decoders as decoders_page


def test_stored_gains_are_what_their_passes_cost_and_keep() -> None:
    stored = json.loads(decoders_page.FILE.read_text(encoding="utf-8"))
    for row in stored["speed"]["results"]:
        assert set(row["agreement"]) == {1}
        for gain, rate, cost, reached in zip(row["gain"], row["tokens per pass"], row["cost"], row["reached"], strict=True):
            assert gain * cost / rate == pytest.approx(reached, rel=1e-3)


def test_a_difference_of_other_images_has_newcombe_s_interval() -> None:
    """Newcombe, Table II, a: 56 of 70 against 48 of 80, 0.2 with 0.0524 … 0.3339."""
    def share(count: int, of: int) -> Interval:
        exact = scipy.stats.binomtest(count, of).proportion_ci(0.95, "wilson")
        return Interval(count / of, exact.low, exact.high, 0.95, of)

    difference = decoders_page.apart(share(56, 70), share(48, 80))
    assert (difference.value, difference.low, difference.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
