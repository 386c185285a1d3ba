"""Several tokens a pass over batches: which is fastest where, a decoder, a cache that forgets, or both."""

from __future__ import annotations

from typing import Any

import report_sample as sample
from page import Page

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.regimes import TITLE, decoder_regimes, regimes
from cachemark.analysis.report_view import build
from cachemark.core.result import Outcome, Status
from cachemark.report.charts.regime_maps import regime_map
from cachemark.report.page.render import render

JACOBI = {"name": "jacobi", "window": 8}
LINEAR = {"method": "linear", "budget": "1/4", "knobs": {"B": 64}}
# speed-up by batch: alone, the decoder alone, both
GAINS = {1: (1.05, 2.0, 2.1), 64: (2.0, 1.1, 1.7), 256: (0.9, 0.8, 0.7)}


def ran(latency: float, batch: int, **changes: Any) -> Outcome:
    samples = {"latency": [latency * (1 + k / 1000) for k in range(-4, 5)], "psnr": [30.0] * 16}
    return Outcome(sample.case(batch=batch, **changes), Status.OK, samples, facts={"kernel": "sdpa"})


def outcomes(gains: dict[int, tuple[float, float, float]]) -> list[Outcome]:
    found = []
    for batch, (linear, jacobi, both) in gains.items():
        found += [ran(batch, batch, role="baseline"), ran(batch / linear, batch, **LINEAR),
                  ran(batch / jacobi, batch, method="full", budget="1", decoder=JACOBI),
                  ran(batch / both, batch, **LINEAR, decoder=JACOBI),
                  ran(batch / 5, batch, method="window", budget="1/4", knobs={"B": 64})]
    return found


def test_the_sentence_names_the_fastest_at_each_batch() -> None:
    (found,) = decoder_regimes(case_groups(outcomes(GAINS)))
    assert found.sentence == ("At batch 1 linear 1/4 + jacobi 8 is the fastest, 2.10×; at batch 64 linear 1/4 is the fastest, 2.00×; "
                              "at batch 256 nothing is shown to be faster than the full cache, one token a pass.")


def test_the_map_has_a_line_for_each_way_and_none_for_methods_without_a_decoder() -> None:
    (found,) = decoder_regimes(case_groups(outcomes(GAINS)))
    chart = regime_map(found)
    assert chart.columns == ("Case", "batch 1", "batch 64", "batch 256")
    assert {row[0]: row[1].split()[0] for row in chart.rows} == {
        "full + jacobi 8": "2.00×", "linear 1/4 + jacobi 8": "2.10×", "linear 1/4": "1.05×"}
    assert TITLE in chart.title


def test_one_batch_or_no_decoder_has_no_such_map() -> None:
    assert decoder_regimes(case_groups(outcomes({1: GAINS[1]}))) == ()
    assert decoder_regimes(case_groups([o for o in outcomes(GAINS) if not o.case.decoder])) == ()


def test_the_maps_of_methods_leave_decoders_out_and_the_page_has_both() -> None:
    assert {regime.method for regime in regimes(case_groups(outcomes(GAINS)))} == {"linear", "window"}
    page = render(build(sample.RUN, outcomes(GAINS)))
    assert "is the fastest, 2.10×" in page
    assert any("linear 1/4 + jacobi 8" in row[:1] for table in Page(page).tables() for row in table)
