"""Options that say how long a run may take."""

from __future__ import annotations

import pytest

from cachemark.cli.run import moment, span
from support import stages


@pytest.mark.parametrize(("text", "seconds"), [("6h", 21600), ("90min", 5400), ("1h30m", 5400), ("45s", 45), ("0.5h", 1800)])
def test_a_span_of_time(text: str, seconds: float) -> None:
    assert span(None, None, text) == seconds  # type: ignore[arg-type]


@pytest.mark.parametrize(("option", "wrong"), [
    ("--budget", "six hours"), ("--budget", "6"), ("--deadline", "25:00"), ("--deadline", "soon"), ("--deadline", "2001-01-01T00:00"),
])  # fmt: skip
def test_a_time_that_is_none_is_refused(option: str, wrong: str) -> None:
    result = stages.call("run", "demo", option, wrong)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.output


def test_a_moment_is_within_a_day() -> None:
    assert 0 < (moment(None, None, "06:00") or 0) <= 24 * 3600  # type: ignore[arg-type]
