"""The benchmark of decoders: its bound on speedups includes the cost of line evictions."""

import json
from typing import Any

import pytest
from scipy.stats import binomtest

from cachemark.kit.next_token import model
from cachemark.methods.linear import Linear
from cachemark.stats.intervals import Interval
from studies import decoders
from tools.pages import decoders as decoders_page

GRID, WINDOW, LINE = 8, 4, 10  # a line's eviction takes as long as so many passes


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("method", ["full", "linear 1/4"])
def test_what_is_reached_is_all_where_drawing_takes_no_time(
    method: str, batch: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a clock that counts passes, and a line eviction as ten passes."""
    spent, small, own = [0.0], model("mha", GRID), Linear.evict

    def evicted(self: Linear, *arguments: Any) -> None:
        spent[0] += LINE
        own(self, *arguments)

    def passed(*_: object) -> None:
        spent[0] += 1

    monkeypatch.setattr(Linear, "evict", evicted)
    counted = small.register_forward_pre_hook(passed)
    try:
        cell = decoders.Cell(small, method, batch, lambda: spent[0])
        result = decoders.measure(cell, method, WINDOW, 3)
    finally:
        counted.remove()
    assert result["agreement"] == [1, 1, 1]
    assert result["reached"] == pytest.approx([1, 1, 1], abs=1e-3)
    assert all(1 < rate <= WINDOW for rate in result["tokens per pass"])
    assert all(cost > 1 for cost in result["cost"]) if method != "full" else result["cost"] == [1, 1, 1]
    assert f"batch {batch}, {method}" in " ".join(decoders.line_of(result).split())


def test_stored_gains_are_what_their_passes_cost_and_keep() -> None:
    stored = json.loads(decoders_page.FILE.read_text(encoding="utf-8"))
    for row in stored["speed"]["results"]:
        assert set(row["agreement"]) == {1}
        for gain, rate, cost, reached in zip(row["gain"], row["tokens per pass"], row["cost"], row["reached"], strict=True):
            assert gain * cost / rate == pytest.approx(reached, rel=1e-3)


def test_a_difference_of_other_images_has_newcombe_s_interval() -> None:
    """Newcombe, Table II, a: 56 of 70 against 48 of 80, 0.2 with 0.0524 … 0.3339."""
    def share(count: int, of: int) -> Interval:
        exact = binomtest(count, of).proportion_ci(0.95, "wilson")
        return Interval(count / of, exact.low, exact.high, 0.95, of)

    difference = decoders_page.apart(share(56, 70), share(48, 80))
    assert (difference.value, difference.low, difference.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)

