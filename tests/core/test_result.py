"""Outcomes that cannot be built."""

from __future__ import annotations

import math

import pytest

from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling

CASE = Case("tiny-llamagen", "ab" * 32, (8, 8), "10 classes, balanced", Sampling(), "full")


@pytest.mark.parametrize("value", [math.nan, -math.inf, 10**400])
def test_a_figure_that_no_float_holds_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite samples only: latency"):
        Outcome(CASE, Status.OK, {"latency": [1.0, value]}, "timed only")
