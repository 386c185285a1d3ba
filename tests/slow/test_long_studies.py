"""The studies of the gate and of claims in their full size, from other seeds than those of docs/results/validation.md."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binom

from cachemark.stats import changepoints as history
from studies import claims_study, gate_study, history_study, overhead, process_bias_study
from support import examples
from support.stages import stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
Tables = dict[str, list[dict[str, Any]]]
YEARS, YEARLY = 16, 0.1  # years with a false alarm, as the page states
MONTHS, PROMISED = 6, 0.05
KINDS = ("independent nights, 1 %", "AR(1) 0.3, 1 %", "AR(1) 0.3, 2 %", "AR(1) 0.6, 1 %", "AR(1) 0.6, 2 %", "weekly ± 1 %, sine",
         "weekly ± 1 %, weekends", "weekly ± 2 %, weekends", "weekly ± 1 % and AR(1) 0.6")


# -- the gate ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, Tables]:
    """The study and its tables."""
    stored = tmp_path_factory.mktemp("study") / "study.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["gate_study.py", "--seed", "1", "--json", str(stored)])
        gate_study.main()
        return gate_study, json.loads(stored.read_text())


def power(tables: Tables, profile: str, effect: float) -> float:
    """How often the gate finds one changed configuration among 200."""
    (row,) = (r for r in tables["gate"] if (r["profile"], r["effect"], r["affected"], r["family"]) == (profile, effect, 1, 200))
    return float(row["power"])


def test_unchanged_nights_seldom_alarm_and_one_changed_configuration_of_200_is_found(gate: tuple[ModuleType, Tables]) -> None:
    """The upper end of the rate's exact one-sided interval of 95 %, not the rate alone."""
    study, tables = gate
    quiet = {row["profile"]: row for row in tables["gate"] if row["effect"] == 0 and row["family"] == 200}
    assert quiet.keys() == study.PROFILES.keys()
    for row in quiet.values():
        nights, alarms = row["nights"], round(row["nights with a false alarm"] * row["nights"])
        assert nights >= 1000
        assert beta.ppf(0.95, alarms + 1, nights - alarms) <= 0.05
        assert row["pairs per configuration"] <= 8, "an unchanged configuration needs eight pairs on average"
    for profile, effect in (("locked", 0.03), ("unlocked", 0.05)):
        assert power(tables, profile, effect) >= 0.9


def test_the_history_waits_a_year_until_its_first_false_alarm(gate: tuple[ModuleType, Tables]) -> None:
    """The lower end of the mean wait's interval of 95 %."""
    study, tables = gate
    assert {(row["profile"], row["correlation"]) for row in tables["waits"]} == {(p, rho) for p in study.PROFILES for rho in (0.0, 0.3)}
    assert min(row["at least"] for row in tables["waits"]) >= 365


def test_no_rule_of_others_finds_more_at_equal_false_alarms_and_equal_cost(gate: tuple[ModuleType, Tables]) -> None:
    study, tables = gate
    assert len({row["rule"] for row in tables["rules"]}) >= 5, "most competitors are installed with the test extra"
    for profile, effect in study.TARGET.items():
        found = {row["rule"]: float(row[f"matched {effect:.0%}, equal cost"]) for row in tables["rules"] if row["profile"] == profile}
        known = {rule: value for rule, value in found.items() if not math.isnan(value)}
        assert known, f"no rule has a value for {profile}: nothing would be compared"
        assert max(known.values()) <= power(tables, profile, effect), known


def test_where_another_rule_finds_more_on_histories_is_named(gate: tuple[ModuleType, Tables]) -> None:
    """A rule that is not installed has no values; asv publish and two plain rules always have."""
    study, tables = gate
    named = study.gate_page.defeats(tables)
    for row in (row for row in tables["history"] if row["shape"] in ("step", "ramp")):
        for rule in ("asv publish", "otava", "otava on our ratios", "z-score", "fence"):
            start = f"{row['profile']}, a {row['shape']} of {row['effect']:.0%} in"
            listed = any(line.startswith(start) and f": {rule} " in line for line in named)
            assert listed == (row[rule] > row["ours"] + 0.02), (start, rule)


# -- the history of a configuration -----------------------------------------------------------------------------------
def missed(row: dict[str, Any]) -> int:
    """Steps that the history had said it would show and did not within a fortnight."""
    return row["promised"] - round(row["promised"] * row["found of these"]) if row["promised"] else 0


def test_a_step_is_found_within_days_or_said_not_to_show_and_unchanged_years_are_quiet() -> None:
    assert tuple(history_study.KINDS) == KINDS
    rows = {kind: history_study.row(kind, YEARS, 101) for kind in KINDS}
    for kind, row in rows.items():
        print(history_study.markdown([row]))
        assert row["with a false alarm"] <= binom.ppf(0.999, YEARS, YEARLY), kind
        assert missed(row) <= binom.ppf(0.999, row["promised"], 1 - history.POWER), kind
        if row["says it shows"] <= history_study.STEP / 2:
            assert (row["found within 14 nights"] >= 0.8, row["median nights"] <= 10) == (True, True), kind
    assert sum(row["with a false alarm"] for row in rows.values()) <= YEARLY * YEARS * len(rows)
    assert sum(map(missed, rows.values())) <= binom.ppf(0.999, sum(row["promised"] for row in rows.values()), 1 - history.POWER)


@pytest.mark.parametrize("kind", ["AR(1) 0.3, 2 %", "AR(1) 0.6, 1 %", "AR(1) 0.6, 2 %"])
def test_the_step_that_is_said_to_show_is_found_nine_times_in_ten(kind: str) -> None:
    late = 0
    nights = np.arange(history_study.NIGHTS)
    for year in history_study.KINDS[kind].years(np.random.default_rng([101, *kind.encode()]), YEARS):
        size = math.log1p(history_study.segment(year[: history_study.ONSET]).shows)
        moved = year + size * (nights >= history_study.ONSET)
        late += not any(abs(c.first - history_study.ONSET) <= history.SOON for k in range(2, history.SOON + 1, 3)
                        for c in history_study.gating(moved[: history_study.ONSET + k]))
    assert late <= binom.ppf(0.999, YEARS, 1 - history.POWER)


# -- claims -----------------------------------------------------------------------------------------------------------
def test_claims_err_as_seldom_and_intervals_cover_as_often_as_they_state() -> None:
    tables: Tables = claims_study.study(list(claims_study.TABLES), 1.0, 31, {})
    assert {(row["loss"], row["seeds"]) for row in tables["false"]} == set(itertools.product(claims_study.LOSSES, (16, 32, 64, 256)))
    unseen = claims_study.claims_coverage.UNSEEN
    assert max(row["Gaffke (the report)"] for row in tables["false"]) <= 0.05
    assert max(row["bootstrap (before)"] for row in tables["false"]) > 0.5, "which is why"
    for row in tables["search"]:
        assert row["highest rate"] <= row["level"] * 1.1, row  # 40,000 samples: three standard errors at 0.05 are 0.003
    shown = {(row["truth"], row["seeds"]): row["Gaffke (the report)"] for row in tables["power"]}
    assert (shown["no difference anywhere", 107], shown["no difference anywhere", 64]) == (1, 0)
    assert min(value for (_, seeds), value in shown.items() if seeds == 256) > 0.8
    for row in (*tables["means"], *tables["differences"]):
        assert row["quantity"] in unseen or min(row[f"{n} seeds"] for n in (16, 32, 64)) >= 0.93, row
    for row in tables["times"]:
        assert min(row[f"process bias {bias} %"] for bias in (0, 1, 2)) >= row["stated"] - 0.02
        assert row["latency"] >= row["latency, stated"] - 0.02
    assert max(row["process bias 2 %"] for row in tables["faster"]) <= 0.05
    assert max(row["before, 2 %"] for row in tables["faster"]) > 0.2, "which is why"
    for row in tables["sets"]:
        assert row["reported"] <= 0.05 or (1 - row["fid"]) * row["reported"] <= 0.1, row  # of 100 sets: 0.05 and two standard errors
    biased = {row["images"]: row for row in tables["bias"]}
    assert biased[128]["FID"] > 5.5, "more than the bundled models' own"
    assert biased[384]["FID"] < 2.75, "less than half of it"
    assert biased[500]["estimated"] == pytest.approx(biased[500]["FID"], rel=0.35)
    for row in tables["others"]:
        assert row["covered"] >= row["stated"] - 0.02, row


# -- process bias -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("shape", "lasts"), [("normal", "a night"), ("normal", "a month"), ("t of 3 degrees", "a night"),
                                              ("normal, common", "a night")])
def test_nights_of_biased_candidates_regress_no_more_often_than_is_promised(shape: str, lasts: str) -> None:
    row = process_bias_study.row("locked", 0.01, shape, lasts, True, MONTHS, 1709)
    independent = row["nights"] if lasts == "a night" else MONTHS  # one bias per month is one chance to be wrong in it
    assert row["falsely regressed"] * independent <= binom.ppf(0.999, independent, PROMISED)
    assert row["interval holds it"] == 1
    assert row["found of +10%"] > 0.9 or shape == "t of 3 degrees"
    assert shape != "t of 3 degrees" or row["can see after a month"] > 0.1, "such a machine sees no +10 %, and the gate prints that"


def test_a_gate_that_did_not_see_process_bias_would_alarm_nearly_every_night_and_say_so() -> None:
    row = process_bias_study.row("locked", 0.01, "normal", "a night", False, 2, 1709)
    assert row["with a false alarm"] > 0.95
    assert (row["printed"] > 0.9, row["advisory"]) == (True, 1), "a share of equal configurations is not that of nights"


# -- the harness ------------------------------------------------------------------------------------------------------
def test_a_twentieth_of_a_run_at_most_is_not_spent_on_its_cases(tmp_path: Path) -> None:
    """Decoding is waited for, because what the harness costs does not depend on what the device does meanwhile."""
    seconds, decoding = 20, 2.0  # that every case takes at least, and of a batch
    slow = f"import time\n_picture = picture\n\n\ndef picture(tokens):\n    time.sleep({decoding})\n    return _picture(tokens)\n"
    variants = ", ".join(f'{{ name = "streaming", variant = "n{number}" }}' for number in range(4))
    at = stage(tmp_path / "stage", variants, examples.MODEL.replace("def identity", f"{slow}\n\ndef identity"),
               samples=seconds // 2 * examples.BATCH)  # the case of fewest batches makes half as many as it takes seconds
    result = overhead.cost(at.plan, "--plugin", str(at.plugin), "--threads", "1")
    assert len(result.outcomes) == 3 + 4 + 1, "the full cache with its rows, the candidates, and the plug-in's own method"
    assert result.shortest >= seconds
    assert result.share <= 0.05
