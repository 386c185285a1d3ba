"""The line of least squares."""

from __future__ import annotations

import pytest

from cachemark.stats.least_squares import FittedLine, fitted_line


def test_the_line_through_points() -> None:
    assert fitted_line([(0, 1.0), (1, 3.0), (2, 5.0)]) == FittedLine(2.0, 1.0, 1.0)
    noisy = fitted_line([(0, 1.0), (1, 3.3), (2, 4.7), (3, 7.4)])
    assert noisy is not None
    assert noisy.slope == pytest.approx(2.06)
    assert 0.98 < noisy.r2 < 1
    assert fitted_line([(0, 1.0), (1, 2.0)]) is None
    assert fitted_line([(5, 1.0), (5, 2.0), (5, 3.0)]) is None
    assert fitted_line([(0, 5.0), (1, 5.0), (2, 5.0)]) == FittedLine(0.0, 5.0, 1.0)
