"""Values of options: times, moments and sizes."""

from __future__ import annotations

import click
import pytest

from cachemark.cli.measure import span
from cachemark.cli.options import size
from support import stages

OPTION, CONTEXT = click.Option(["--memory-cap"]), click.Context(click.Command("run"))


@pytest.mark.parametrize(("text", "seconds"), [("6h", 21600), ("90min", 5400), ("1h30m", 5400), ("45s", 45), ("0.5h", 1800)])
def test_a_span_of_time(text: str, seconds: float) -> None:
    assert span(CONTEXT, OPTION, text) == seconds


@pytest.mark.parametrize(("text", "nbytes"), [("24GiB", 24 << 30), ("0.5mib", 1 << 19)])
def test_a_size_with_its_unit(text: str, nbytes: int) -> None:
    assert size(CONTEXT, OPTION, text) == nbytes


@pytest.mark.parametrize(("option", "wrong"), [
    ("--budget", "six hours"), ("--budget", "6"), ("--memory-cap", "24 potatoes"), ("--memory-cap", "-3GiB"), ("--memory-cap", "0"),
])  # fmt: skip
def test_a_wrong_time_or_size_is_refused(option: str, wrong: str) -> None:
    result = stages.call("run", "demo", option, wrong)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.output
