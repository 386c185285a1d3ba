"""Outcomes that cannot be built."""

from __future__ import annotations

import math

import pytest

from cachemark.core.result import FLAGGED, Outcome, Status
from cachemark.core.spec import Case, Sampling

CASE = Case("tiny-llamagen", "ab" * 32, (8, 8), "10 classes, balanced", Sampling(), "full")


@pytest.mark.parametrize("value", [math.nan, -math.inf, 10**400])
def test_a_figure_that_no_float_holds_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite samples only: latency"):
        Outcome(CASE, Status.OK, {"latency": [1.0, value]}, "timed only")


@pytest.mark.parametrize("found", [["x"], "x", 5, None, {"expected": "x"}, [None, 3]])
def test_a_finding_that_is_none_is_passed_over(found: object) -> None:
    right = {"expected": "as many bytes", "found": "more"}
    assert Outcome(CASE, Status.OK, {"latency": [1.0]}, "timed only", facts={FLAGGED: found}).flags == ()
    mixed = Outcome(CASE, Status.OK, {"latency": [1.0]}, "timed only", facts={FLAGGED: ["x", right]})
    assert mixed.flags == ("Expected as many bytes; found more.",)
