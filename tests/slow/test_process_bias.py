"""Months of nights with process bias that lasts, from another seed than that of docs/results/validation.md."""

from __future__ import annotations

from types import ModuleType

import pytest
from scipy.stats import binom

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
STUDY = "process_bias_study"
SEED, MONTHS, PROMISED = 1709, 6, 0.05


@pytest.mark.parametrize("lasts", ["a night", "a month"])
def test_nights_of_biased_candidates_alarm_no_more_often_than_is_promised(study: ModuleType, lasts: str) -> None:
    row = study.row("locked", 0.01, lasts, True, MONTHS, SEED)
    print(study.gate_page.markdown([row]))
    independent = row["nights"] if lasts == "a night" else MONTHS  # one bias per month is one chance to be wrong in it
    assert row["with a false alarm"] * independent <= binom.ppf(0.999, independent, PROMISED)
    assert row["interval holds it"] == 1
    assert row["found of +10%"] > 0.9


def test_a_gate_that_did_not_see_process_bias_would_alarm_nearly_every_night_and_say_so(study: ModuleType) -> None:
    row = study.row("locked", 0.01, "a night", False, 2, SEED)
    print(study.gate_page.markdown([row]))
    assert row["with a false alarm"] > 0.95
    assert row["printed"] > 0.9, "a share of equal configurations is not that of nights"
    assert row["advisory"] == 1
