"""Rows of the leaderboard: no value, flag or sentence beside them contradicts another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import report_sample as sample
from test_report_view import group, row, timed

from cachemark.analysis.case_group import OTHER_SEEDS
from cachemark.analysis.columns import cells, column_groups, paired_speed_note
from cachemark.analysis.report_row import method_of
from cachemark.analysis.report_view import build
from cachemark.core.result import Outcome
from cachemark.report.page.render import render


def test_a_speedup_that_the_latencies_of_the_table_contradict_says_why() -> None:
    """Below the table, once, with the case that is furthest off; not where rounding alone differs."""
    def beside(method: str, other: float) -> Outcome:
        candidate = timed(sample.candidate(method, "1/4"), [1.0] * 5)
        return replace(candidate, facts={**candidate.facts, "full_beside": [other] * 5})

    full = timed(sample.full(), [2.0] * 5)
    text = paired_speed_note(group(full, beside("linear", 2.5), beside("window", 2.2)))
    assert "LineAR 1/4 would be at 2.00×" in text
    assert render(build(sample.RUN, [full, beside("linear", 2.5)])).count(text) == 1
    for results in (beside("linear", 2.02), timed(sample.candidate("linear", "1/4"), [1.0] * 5)):
        assert paired_speed_note(group(full, results)) == ""
        assert "timed in turns with each method" not in render(build(sample.RUN, [full, results]))


def test_what_so_few_seeds_do_not_show_to_agree_is_not_called_lossless() -> None:
    """Three equal images are as far from the full cache as from nothing: their interval reaches down to that of other seeds."""
    def few(outcome: Outcome, seeds: int) -> Outcome:
        names = ("token_agreement", "kl", "psnr", "ssim")
        return replace(outcome, samples={**outcome.samples, **{name: outcome.samples[name][:seeds] for name in names}})

    exact = {"token_agreement": [1.0] * 64, "kl": [1e-9] * 64}
    candidate = timed(sample.candidate("linear", "1/2"), [2.0], **exact)
    for seeds, lossless in ((3, False), (64, True)):
        row_held = row(group(*(few(o, seeds) if o.case.role != "baseline" else o
                           for o in (sample.full(), candidate, sample.other_seeds(), sample.other_batch()))), "linear", "1/2")
        assert (row_held.lossless, OTHER_SEEDS not in row_held.unranked) == (lossless, lossless)
        assert ("lossless on this device" in [mark.text for mark in row_held.marks]) is lossless


@pytest.mark.parametrize(("engine", "under"), [("eager", "by definition"), ("reference", "94.4–100.0")])
def test_the_full_cache_is_like_itself_by_definition_unless_another_engine_ran(engine: str, under: str) -> None:
    """Its images are those that it is compared with; along its own tokens it runs again."""
    full = timed(sample.full(), [2.0], token_agreement=[1.0] * 64, kl=[1e-9 * (1 + k % 3) for k in range(64)], psnr=[60.0] * 64)
    results = group(*(replace(o, case=replace(o.case, engine=engine)) for o in (full, sample.candidate("linear", "1/2"))))
    assert results.full is not None
    by_key = {cell.key: cell for cell in cells(results.full, column_groups(results))}
    assert (by_key["token_agreement"].text, by_key["token_agreement"].under) == ("100.0 %", under)
    assert results.full.fidelity["psnr"].stated is (engine == "reference")
    assert results.full.fidelity["kl"].stated
    assert results.full.quality["color_consistency"].stated
    assert results.candidates[0].fidelity["psnr"].stated


@pytest.mark.parametrize(("changes", "method"), [
    ({}, "linear + jacobi 8"), ({"codec": "int8"}, "linear int8 + jacobi 8"), ({"codec": "int8", "decoder": {}}, "linear int8"),
    ({"codec": "int8", "variant": "wide", "decoder": {"name": "sjd", "variant": "long"}}, "linear: wide int8 + sjd: long")])
def test_a_method_is_its_label_without_the_budget(changes: dict[str, Any], method: str) -> None:
    candidate = sample.candidate("linear", "1/4")
    case = replace(candidate.case, **{"decoder": {"name": "jacobi", "window": 8}, **changes})
    assert method_of(case) == method
    assert case.label.replace(" 1/4", "") == method
