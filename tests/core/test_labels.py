"""Budgets in labels: simple fractions stay, others become decimals, and every older spelling is still parsed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachemark.core.errors import UnknownName
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling, shown_label, shown_share
from cachemark.workflows.results import outcomes_of

CASE = Case("tiny", "random:0", (8, 8), "10 classes, balanced", Sampling(), "linear", budget="1019/1644")


@pytest.mark.parametrize(("budget", "shown"), [
    ("1", "1"), ("1/4", "1/4"), ("1/6", "1/6"), ("5/8", "5/8"), ("1/16", "1/16"), ("1019/1644", "0.62"), ("647/1272", "0.509"),
    ("1/3", "1/3"), ("51/100", "0.51"), ("1/1000", "0.001"), ("no number", "no number"), ("1/0", "1/0"),
])  # fmt: skip
def test_a_budget_is_shown_as_people_read_it(budget: str, shown: str) -> None:
    assert shown_share(budget) == shown


@pytest.mark.parametrize(("name", "shown"), [
    ("linear 1019/1644", "linear 0.62"), ("tiny linear 1019/1644 int8, batch 16", "tiny linear 0.62 int8, batch 16"),
    ("linear 1/4", "linear 1/4"), ("full (other seeds)", "full (other seeds)"),
    ("a window 647/1272 → h2o 1019/1644", "a window 0.509 → h2o 0.62"),
    ("linear 0.62", "linear 0.62"), ("a/7/300", "a/7/300"), ("x 3/0", "x 3/0"),
])  # fmt: skip
def test_a_label_of_any_spelling_becomes_the_one_that_is_shown(name: str, shown: str) -> None:
    assert shown_label(name) == shown


def test_a_label_shows_the_decimal_and_the_key_keeps_the_fraction() -> None:
    assert CASE.label == "linear 0.62"
    assert CASE.to_json()["budget"] == "1019/1644"
    assert CASE.key == "ef47d157991a6f59"


@pytest.mark.parametrize("name", ["linear 1019/1644", "linear 0.62"])
def test_a_case_is_found_by_either_spelling(name: str) -> None:
    outcomes = [Outcome(case, Status.NOT_REACHED, log='stopped') for case in (CASE, replace(CASE, budget="1/4"))]
    assert [outcome.case for outcome in outcomes_of(name, outcomes)] == [CASE]
    with pytest.raises(UnknownName):
        outcomes_of("linear 1020/1645", [outcomes[1]])
