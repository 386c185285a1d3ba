"""Months of nights with persistent process bias, from another seed than docs/results/validation.md."""

from __future__ import annotations

from types import ModuleType

import pytest
from scipy.stats import binom

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
STUDY = "process_bias_study"
SEED, MONTHS, PROMISED = 1709, 6, 0.05


@pytest.mark.parametrize(("shape", "lasts"), [("normal", "a night"), ("normal", "a month"), ("t of 3 degrees", "a night"),
                                               ("normal, common", "a night")])
def test_nights_of_biased_candidates_regress_no_more_often_than_is_promised(study: ModuleType, shape: str, lasts: str) -> None:
    row = study.row("locked", 0.01, shape, lasts, True, MONTHS, SEED)
    print(study.gate_page.markdown([row]))
    independent = row["nights"] if lasts == "a night" else MONTHS  # one bias per month is one chance to be wrong in it
    assert row["falsely regressed"] * independent <= binom.ppf(0.999, independent, PROMISED)
    assert row["interval holds it"] == 1
    assert shape == "t of 3 degrees" or row["found of +10%"] > 0.9
    assert shape != "t of 3 degrees" or row["can see after a month"] > 0.1, "such a machine sees no +10 %, and the gate prints that"


def test_a_gate_that_did_not_see_process_bias_would_alarm_nearly_every_night_and_say_so(study: ModuleType) -> None:
    row = study.row("locked", 0.01, "normal", "a night", False, 2, SEED)
    print(study.gate_page.markdown([row]))
    assert row["with a false alarm"] > 0.95
    assert row["printed"] > 0.9, "a share of equal configurations is not that of nights"
    assert row["advisory"] == 1
