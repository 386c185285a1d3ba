"""The gate study in its full size: the rates in docs/results/validation.md, from another seed than the page's."""

from __future__ import annotations

import json
import math
import sys
from types import ModuleType
from typing import Any

import pytest
from scipy.stats import beta

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
STUDY = "gate_study"
SEED = 1
MOST_ALARMS, LEAST_POWER, LEAST_WAIT = 0.05, 0.9, 365


@pytest.fixture(scope="module")
def found(study: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    stored = tmp_path_factory.mktemp("study") / "study.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gate_study.py", "--seed", str(SEED), "--json", str(stored)])
        study.main()
    data: dict[str, list[dict[str, Any]]] = json.loads(stored.read_text())
    return data


def power(found: dict[str, list[dict[str, Any]]], profile: str, effect: float) -> float:
    """How often the gate finds one changed cell among 200."""
    (row,) = (r for r in found["gate"] if (r["profile"], r["effect"], r["affected"], r["family"]) == (profile, effect, 1, 200))
    return float(row["power"])


def test_unchanged_nights_of_200_cells_seldom_alarm(study: ModuleType, found: dict[str, list[dict[str, Any]]]) -> None:
    """The upper end of the rate's exact one-sided interval of 95 %, not the rate alone."""
    quiet = {row["profile"]: row for row in found["gate"] if row["effect"] == 0 and row["family"] == 200}
    assert quiet.keys() == study.PROFILES.keys()
    for row in quiet.values():
        nights, alarms = row["nights"], round(row["nights with a false alarm"] * row["nights"])
        assert nights >= 1000
        assert beta.ppf(0.95, alarms + 1, nights - alarms) <= MOST_ALARMS
        assert row["pairs per configuration"] <= 8, "an unchanged configuration needs eight pairs on average"


@pytest.mark.parametrize(("profile", "effect"), [("locked", 0.03), ("unlocked", 0.05)])
def test_one_changed_cell_is_found(profile: str, effect: float, found: dict[str, list[dict[str, Any]]]) -> None:
    assert power(found, profile, effect) >= LEAST_POWER


def test_the_history_waits_a_year_until_its_first_false_alarm(study: ModuleType, found: dict[str, list[dict[str, Any]]]) -> None:
    """The lower end of the mean wait's interval of 95 %."""
    assert {(row["profile"], row["correlation"]) for row in found["waits"]} == {(p, rho) for p in study.PROFILES for rho in (0.0, 0.3)}
    for row in found["waits"]:
        assert row["series"] == 200
        assert row["at least"] >= LEAST_WAIT


def matched(found: dict[str, list[dict[str, Any]]], profile: str, effect: float) -> dict[str, float]:
    """What each rule of others finds of a profile's effect at equal false alarms and equal cost, where that is known."""
    rows = {row["rule"]: float(row[f"matched {effect:.0%}, equal cost"]) for row in found["rules"] if row["profile"] == profile}
    by_name = {rule: value for rule, value in rows.items() if not math.isnan(value)}
    assert by_name, f"no rule has a value for {profile}: nothing would be compared"
    return by_name


def test_no_rule_of_others_finds_more_at_equal_false_alarms_and_equal_cost(
    study: ModuleType, found: dict[str, list[dict[str, Any]]]
) -> None:
    rules = {row["rule"] for row in found["rules"]}
    assert len(rules) >= 5, "most competitors are installed with the test extra"
    for profile, effect in study.TARGET.items():
        for rule, value in matched(found, profile, effect).items():
            assert value <= power(found, profile, effect), rule


def test_where_another_rule_finds_more_on_histories_is_named(study: ModuleType, found: dict[str, list[dict[str, Any]]]) -> None:
    """A rule that is not installed has no values; asv publish and two plain rules always have."""
    named = study.gate_page.defeats(found)
    rules = ("asv publish", "otava", "otava on our ratios", "z-score", "fence")
    rows = [row for row in found["history"] if row["shape"] in ("step", "ramp")]
    assert {rule for rule in rules for row in rows if not math.isnan(row[rule])} >= {"asv publish", "z-score", "fence"}
    for row in rows:
        for rule in rules:
            output = any(line.startswith(f"{row['profile']}, a {row['shape']} of {row['effect']:.0%} in") and f": {rule} " in line
                       for line in named)
            assert output == (row[rule] > row["ours"] + 0.02), (row["profile"], row["shape"], row["effect"], rule)
