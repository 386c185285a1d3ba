"""Budgets in labels: simple fractions stay, others become decimals, and every older spelling is still parsed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cachemark.core.errors import UnknownName
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case, Sampling, shown_label, shown_share
from cachemark.workflows.results import outcomes_of

CASE = Case("tiny", "random:0", (8, 8), "10 classes, balanced", Sampling(), "linear", budget="1019/1644")


def test_a_budget_is_shown_as_people_read_it_in_labels_of_any_spelling() -> None:
    for budget, shown in {"1019/1644": "0.62", "647/1272": "0.509", "51/100": "0.51", "1/1000": "0.001", **{
            same: same for same in ("1", "1/4", "1/6", "5/8", "1/16", "1/3", "no number", "1/0")}}.items():
        assert shown_share(budget) == shown
    for name, shown in {"linear 1019/1644": "linear 0.62", "tiny linear 1019/1644 int8, batch 16": "tiny linear 0.62 int8, batch 16",
                        "a window 647/1272 → h2o 1019/1644": "a window 0.509 → h2o 0.62", **{
            same: same for same in ("linear 1/4", "full (other seeds)", "linear 0.62", "a/7/300", "x 3/0")}}.items():
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
