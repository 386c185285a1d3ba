"""Sections of masked models: computation where others show KV memory, distances where others show agreement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import report_sample as sample

from cachemark.analysis.case_group import CaseGroup, case_groups
from cachemark.analysis.columns import (
    COMPUTATION,
    MEMORY,
    SPEED,
    budget_cell,
    cells,
    column_groups,
    columns_of,
)
from cachemark.analysis.layer_tables import PASSES, layers
from cachemark.core.result import Outcome
from cachemark.report.charts.chart_set import chart_set

PASSED = 30
FOUND: dict[str, Any] = {
    "passes": list(range(2, PASSED + 2)), "samples": 64, "seeds": "s64", "seconds": 3.2,
    "classes": {"caching": {what: [0.5] * PASSED for what in ("k", "v", "feature")},
                "masked": {what: [0.9] * (PASSED - 1) + [None] for what in ("k", "v", "feature")}},
    "layers": {what: [[0.8] * PASSED, [0.7] * PASSED] for what in ("k", "v", "feature")},
    "branches": {"conditional": [0.9] * PASSED, "residual": [0.95] * PASSED},
}


def masked(outcome: Outcome, flops: float, far: float, **bytes_: float) -> Outcome:
    """The same outcome as one of a masked model."""
    samples = {k: v for k, v in outcome.samples.items() if k not in ("token_agreement", "kl")}
    if outcome.case.role in ("candidate", "baseline"):
        samples |= {"flops": [flops], **{name: [value] for name, value in bytes_.items()}}
    if "psnr" in samples:
        samples |= {"token_distance": [far, far * 1.1, far * 0.9], "forced_distance": [far / 2, far / 2.1, far / 1.9]}
    return replace(outcome, samples=samples, facts={**outcome.facts, "paradigm": "masked"})


def outcomes() -> list[Outcome]:
    nothing = {"kv_logical": 0.0, "kv_allocated": 0.0, "kv_workspace": 0.0, "kv_state": 0.0}
    full = masked(sample.full(), 15.5e12, 0.0, **nothing)
    full = replace(full, facts={**full.facts, "redundancy": FOUND})
    some = {"kv_logical": 2.0**20, "kv_allocated": 2.0**20, "kv_workspace": 0.0, "kv_state": 2.0**20}
    return [full, masked(sample.candidate("linear", "1/2"), 6.2e12, 0.2, **some),
            masked(sample.candidate("window", "1/2"), 7.75e12, 0.99, **some),
            masked(sample.other_seeds(), 0, 1.0), masked(sample.other_batch(), 0, 1e-6)]


def group(results: list[Outcome] | None = None) -> CaseGroup:
    (groups_found,) = case_groups(results or outcomes())
    return groups_found


def test_both_kinds_of_table_have_as_many_columns() -> None:
    plain = case_groups([sample.full(), sample.candidate("linear", "1/2")])[0]
    columns, of_indices = ([[column.key for column in part.columns] for part in column_groups(of)[2:]] for of in (group(), plain))
    assert (column_groups(group())[:2], column_groups(plain)[:2]) == ((SPEED, COMPUTATION), (SPEED, MEMORY))
    assert columns == [["token_distance", "forced_distance", "psnr", "ssim"], ["color_consistency"]]
    assert of_indices == [["token_agreement", "kl", "psnr", "ssim"], ["color_consistency"]]
    assert len(columns_of(column_groups(plain))) == len(columns_of(column_groups(group()))) == 10


def test_saving_is_of_computation_and_bytes_are_added() -> None:
    row = next(row for row in group().candidates if row.method == "linear")
    assert row.saving == 1 - 6.2 / 15.5
    assert not row.marks, "there is no KV saving to be eaten, and none that is fake"
    columns = column_groups(group())
    by_key = {cell.key: cell for cell in cells(row, columns)}
    assert [cell.key for cell in cells(row, columns)] == [column.key for column in columns_of(columns)]
    assert (by_key["saving"].text, by_key["flops"].text) == ("60.0 %", "6.20 TFLOP")
    assert (by_key["added"].text, by_key["added"].under) == ("2.00 MiB", "KV 1.00 MiB")
    assert by_key["token_distance"].text == "0.200"
    assert budget_cell(row).text == "1/2"


def test_charts_are_over_the_share_of_computation() -> None:
    by_flops, by_speed, *_ = chart_set(group()).charts
    assert "FLOPs" in by_flops.columns[1]
    assert ("LineAR 1/2", "40.0 %") in [line[:2] for line in by_flops.rows]
    assert ("full", "100.0 %", "0.000") in by_flops.rows
    assert "Forced distance" in by_speed.columns[2]


def test_what_repeats_is_shown_with_as_many_passes_as_fit() -> None:
    profile = layers(group().full)
    assert profile is not None
    by_class, by_layer, by_branch = profile.grids
    assert by_class.names == ("Keys, caching", "Keys, masked", "Values, caching", "Values, masked", "Features, caching", "Features, masked")
    assert by_layer.names[:2] == ("Keys, 0", "Keys, 1")
    assert by_branch.names == ("conditional", "residual")
    assert len(by_class.columns) == PASSES
    assert (by_class.columns[0], by_class.columns[-1]) == ("2", str(PASSED + 1))
    last = by_class.rows[1][-1]
    assert last is None
    assert [round(row[0].tint, 3) for row in by_class.rows[:2] if row[0]] == [1.0, 0.2]


def test_a_broken_profile_is_left_out() -> None:
    for broken in ({**FOUND, "passes": []}, {**FOUND, "branches": None}, {**FOUND, "classes": {"a": {}}}, [], "no"):
        full = replace(outcomes()[0], facts={"paradigm": "masked", "redundancy": broken})
        assert layers(group([full]).full) is None


def test_a_method_as_far_as_other_seeds_is_not_ranked() -> None:
    held = {row.method: row for row in group().candidates}
    assert held["window"].unranked
    assert held["linear"].place == 1
