"""The map of answers: by batch and length, qualified methods only, what was measured and what is predicted told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import report_sample as sample
from page import Page

from cachemark.analysis.answer_map import BATCHES, AnswerMap, Predictor, answer_maps
from cachemark.analysis.quality_claims import standing
from cachemark.analysis.report_view import build
from cachemark.core.limits import Limit, Rates
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import Case
from cachemark.report.charts.answer_maps import answer_chart
from cachemark.report.page.render import render

SEEDS = 256


class Planted:
    """Bytes allow nothing at batch 1 and up to 3× at large ones, the more the longer the sequence is."""

    def lengths(self, full: Case) -> Sequence[int]:
        return 64, 256, 1024

    def allowed(self, full: Case, candidate: Case, rates: Rates, image: float, batch: int, tokens: int) -> float | None:
        assert image == 0.025
        load = batch * tokens / 256
        return (16 + load) / (16 + load / 3)


def ran(gain: float, worse: float, batch: int, **changes: Any) -> Outcome:
    spoilt, limit = round(worse * SEEDS), Limit(1 / gain, 0.9, 1, 1, 1e12, 1e12, {"linear": 0.9, "decode": 0.025 * batch})
    samples = {"latency": [2.0 * batch / gain * (1 + k / 1000) for k in range(-4, 5)], "legend": [0.0] * spoilt + [1.0] * (SEEDS - spoilt),
               "token_agreement": [0.7] * SEEDS}
    case = replace(sample.case(batch=batch, **changes), samples=SEEDS, weights="w/w")
    return Outcome(case, Status.OK, samples, facts={"kernel": "sdpa", "limit": limit.to_json()})


def outcomes(batches: Sequence[int] = (4,), method: str = "linear") -> list[Outcome]:
    """The planted best gains by batch as bytes allow at 256 tokens; a ruined method is four times as fast at every one."""
    gains = {batch: (16 + batch) / (16 + batch / 3) for batch in batches}
    candidates = [[ran(gain, 0.0, batch, method=method, budget="1/4", parameters={"B": 64}),
             ran(4.0, 0.4, batch, method="streaming", budget="1/4", parameters={"B": 64})] for batch, gain in gains.items()]
    return [*(ran(1.0, 0.0, batch, role="baseline") for batch in batches), *(candidate for pair in candidates for candidate in pair)]


def one(results: list[Outcome], predictor: Predictor | None = None) -> AnswerMap:
    (group,) = answer_maps(*standing(results), predictor)
    return group


def test_a_field_for_each_batch_and_length_measured_ones_told_apart() -> None:
    result = one(outcomes(), Planted())
    assert {(cell.batch, cell.tokens) for cell in result.cells} == {(batch, length) for batch in BATCHES for length in (64, 256, 1024)}
    assert [(cell.batch, cell.tokens) for cell in result.cells if cell.measured] == [(4, 256)]
    best = {(cell.batch, cell.tokens): cell.best for cell in result.cells}
    assert best[1, 64] == best[1, 256] == "full cache"
    assert best[256, 256] == best[64, 1024] == "LineAR at 1/4"
    (large,) = (cell for cell in result.cells if (cell.batch, cell.tokens) == (256, 1024))
    assert large.gain is not None
    assert large.gain.high <= 3.0 + 1e-9, "no more than bytes allow"


def test_a_ruined_method_is_no_answer_however_fast() -> None:
    assert {cell.best for cell in one(outcomes((4, 64)), Planted()).cells} == {"full cache", "LineAR at 1/4"}
    (full, _, ruined) = outcomes()
    assert answer_maps(*standing([full, ruined]), Planted()) == (), "no method is qualified"


def test_the_sentence_says_what_was_measured_and_where_a_method_is_predicted_to_pay() -> None:
    text = one(outcomes((1, 4)), Planted()).sentence
    assert text.startswith("Measured at batch 1: full cache; batch 4: LineAR at 1/4. Prediction: LineAR at 1/4 from batch 16.")
    assert "Prediction" not in one(outcomes((1, 4))).sentence, "nothing is predicted without arithmetic"


def test_nothing_is_predicted_from_a_speed_that_is_not_believed() -> None:
    """An implausible speedup: the measured gain is far more than bytes allow."""
    full, arm, ruined = outcomes()
    fast = replace(arm, samples={**arm.samples, "latency": [value / 3 for value in arm.samples["latency"]]})
    assert {cell.best for cell in one([full, fast, ruined], Planted()).cells} == {"full cache"}


def test_predicted_fields_are_hatched_and_the_table_says_so() -> None:
    chart = answer_chart(one(outcomes(), Planted()))
    assert chart.svg.count("stroke-opacity") == 3 * len(BATCHES) - 1
    assert chart.columns == ("Tokens", *(f"batch {batch}" for batch in BATCHES))
    assert [row[0] for row in chart.rows] == ["1024", "256", "64"], "the longest on top"
    assert chart.rows[1][2].endswith(", measured")
    assert chart.rows[0][5].startswith("LineAR at 1/4 2.")
    assert chart.rows[0][5].endswith("×, predicted")


def test_the_page_has_the_map_and_a_hostile_name_stays_text() -> None:
    page = render(build(sample.RUN, outcomes(method="li'near\\<b>"), predictor=Planted()))
    assert [element for element in Page(page).elements if element.attrs.get("id") == "maps"]
    assert "<b>near" not in page
    (full, _, ruined) = outcomes()
    assert 'id="maps"' not in render(build(sample.RUN, [full, ruined], predictor=Planted()))
