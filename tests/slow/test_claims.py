"""Claims at small samples in their full size, from another seed than docs/results/validation.md."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
STUDY = "claims_study"
SEED, SIZE = 31, 1.0
MOST, LEAST = 0.05, 0.93


@pytest.fixture(scope="module")
def found(study: ModuleType) -> dict[str, list[dict[str, Any]]]:
    stored: dict[str, list[dict[str, Any]]] = study.study(list(study.TABLES), SIZE, SEED, {})
    return stored


def test_a_report_of_twelve_methods_rarely_has_a_false_claim(study: ModuleType, found: dict[str, list[dict[str, Any]]]) -> None:
    assert {(row["loss"], row["seeds"]) for row in found["false"]} == {(loss, n) for loss in study.LOSSES for n in (16, 32, 64, 256)}
    assert len(study.LOSSES) == 5
    assert max(row["Gaffke (the report)"] for row in found["false"]) <= MOST
    assert max(row["bootstrap (before)"] for row in found["false"]) > 0.5, "which is why"


def test_no_distribution_was_found_at_which_the_test_errs_more_often_than_it_says(found: dict[str, list[dict[str, Any]]]) -> None:
    for row in found["search"]:
        assert row["highest rate"] <= row["level"] * 1.1, row  # 40,000 samples: three standard errors at 0.05 are 0.003


def test_what_is_truly_as_good_is_found_with_a_hundred_and_more_seeds(found: dict[str, list[dict[str, Any]]]) -> None:
    power = {(row["truth"], row["seeds"]): row["Gaffke (the report)"] for row in found["power"]}
    assert power["no difference anywhere", 107] == 1
    assert power["no difference anywhere", 64] == 0
    assert min(value for (_, seeds), value in power.items() if seeds == 256) > 0.8


@pytest.mark.parametrize("table", ["means", "differences"])
def test_intervals_over_seeds_cover_what_they_state(table: str, study: ModuleType, found: dict[str, list[dict[str, Any]]]) -> None:
    rows = {row["quantity"]: row for row in found[table] if row["quantity"] not in study.claims_coverage.UNSEEN}
    assert len(rows) >= 5
    for name, row in rows.items():
        assert min(row[f"{n} seeds"] for n in (16, 32, 64)) >= LEAST, name


def test_intervals_of_times_cover_what_they_state(found: dict[str, list[dict[str, Any]]]) -> None:
    for row in found["times"]:
        assert min(row[f"process bias {bias} %"] for bias in (0, 1, 2)) >= row["stated"] - 0.02
        assert row["latency"] >= row["latency, stated"] - 0.02
    assert max(row["process bias 2 %"] for row in found["faster"]) <= 0.05
    assert max(row["before, 2 %"] for row in found["faster"]) > 0.2, "which is why"


def test_intervals_of_whole_sets_cover_what_they_state_or_there_are_none(found: dict[str, list[dict[str, Any]]]) -> None:
    for row in found["sets"]:
        missing = (1 - row["fid"]) * row["reported"] if row["reported"] > 0.05 else 0.0
        assert missing <= 0.1, row  # of all sets, 100 of them: 0.05 and two standard errors
    biased = {row["images"]: row for row in found["bias"]}
    assert biased[128]["FID"] > 5.5, "more than the bundled models' own"
    assert biased[384]["FID"] < 2.75, "less than half of it"
    assert biased[500]["estimated"] == pytest.approx(biased[500]["FID"], rel=0.35)


def test_other_intervals_cover_what_they_state(found: dict[str, list[dict[str, Any]]]) -> None:
    for row in found["others"]:
        assert row["covered"] >= row["stated"] - 0.02, row
