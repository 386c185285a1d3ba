"""Where a method pays: the chart by batch and budget, and the sentence."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import report_sample as sample
from page import Page

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.regimes import TITLE, Regime, decoder_regimes, regimes
from cachemark.analysis.report_view import build
from cachemark.core.result import Outcome, Status
from cachemark.report.charts.chart import signs_of
from cachemark.report.charts.lines import batches
from cachemark.report.charts.regime_maps import regime_map, tint
from cachemark.report.charts.svg import PAGE
from cachemark.report.page.render import render

# speedup of linear by batch and budget
GAINS = {1: {"1/2": 0.9, "1/4": 1.0}, 4: {"1/2": 0.95, "1/4": 1.3}, 16: {"1/2": 1.2, "1/4": 2.0}}


def ran(latency: float, batch: int, **changes: Any) -> Outcome:
    samples = {"latency": [latency * (1 + k / 1000) for k in range(-4, 5)], "psnr": [30.0] * 16}
    return Outcome(sample.case(batch=batch, **changes), Status.OK, samples, facts={"kernel": "sdpa", **changes.pop("facts", {})})


def candidate(batch: int, budget: str, gain: float, method: str = "linear") -> Outcome:
    return ran(2.0 * batch / gain, batch, method=method, budget=budget, parameters={"B": 64 if budget == "1/4" else 128})


def outcomes(gains: dict[int, dict[str, float]], method: str = "linear") -> list[Outcome]:
    full = [ran(2.0 * batch, batch, role="baseline") for batch in gains]
    return [*full, *(candidate(batch, budget, gain, method) for batch, found in gains.items() for budget, gain in found.items())]


def one(gains: dict[int, dict[str, float]], method: str = "linear") -> Regime:
    (found,) = regimes(case_groups(outcomes(gains, method)))
    return found


def test_the_sentence_names_where_the_full_cache_is_better() -> None:
    assert one(GAINS).sentence == "Use the full cache at batch 1 and at batch 4 (budget 1/2): linear is not shown to be faster there."


def test_a_method_that_always_pays_is_said_to() -> None:
    fast = {batch: dict.fromkeys(found, 1.5) for batch, found in GAINS.items()}
    assert one(fast).sentence == "linear is faster than the full cache at every batch and budget measured here."


def test_the_table_holds_what_the_chart_shows() -> None:
    chart = regime_map(one(GAINS))
    assert chart.columns == ("Budget", "batch 1", "batch 4", "batch 16")
    assert [row[0] for row in chart.rows] == ["1/2", "1/4"]
    assert chart.rows[1][3].startswith("2.00× (")
    assert chart.svg.count("<title>") == 6
    assert "linear 1/4, batch 16: 2.00×" in chart.svg


def test_a_single_budget_is_drawn_as_several_are() -> None:
    """With letters of the same size, and the title of the axis within the fields."""
    charts = [regime_map(one({batch: {budget: gains[budget] for budget in budgets} for batch, gains in GAINS.items()}))
              for budgets in (("1/4",), ("1/2", "1/4"))]
    single, several = (ET.fromstring(chart.svg) for chart in charts)
    assert single.get("viewBox", "").split()[2] == several.get("viewBox", "").split()[2] == f"{PAGE.width:.0f}"
    (high,) = {float(field.get("height", "")) for field in single.iter("{http://www.w3.org/2000/svg}rect")}
    assert high >= len("Budget") * PAGE.size / 2
    assert {field.get("height") for field in several.iter("{http://www.w3.org/2000/svg}rect")} == {"34.0"}


def test_colours_go_from_orange_over_white_to_blue() -> None:
    assert (tint(2.0), tint(9.0), tint(1.0), tint(0.5)) == ("rgb(0,114,178)", "rgb(0,114,178)", "rgb(255,255,255)", "rgb(213,94,0)")
    assert tint(None) not in (tint(1.0), tint(0.5))
    assert tint(1.5) != tint(1 / 1.5)


def test_one_batch_has_no_regimes_and_another_dtype_is_another_family() -> None:
    assert regimes(case_groups(outcomes({4: GAINS[4]}))) == ()
    other = [ran(8.0, 16, role="baseline", dtype="bfloat16")]
    assert regimes(case_groups([*outcomes({4: GAINS[4]}), *other])) == ()


def test_blocks_of_other_seeds_are_one_family_and_a_batch_counts_once() -> None:
    def shown(held: list[Outcome]) -> tuple[list[str], list[tuple[object, ...]]]:
        groups = case_groups(held)
        drawn = [chart for part in groups for chart in batches(part, groups, signs_of(part))]
        return [regime.sentence for regime in regimes(groups)], [(chart.title, chart.columns, chart.rows) for chart in drawn]

    held = outcomes(GAINS)
    other = [replace(o, case=replace(o.case, seeds="t64")) for o in held]
    assert shown([o for o in held if o.case.batch != 4] + [o for o in other if o.case.batch != 1]) == shown(held)


def test_a_refused_speedup_is_an_empty_cell() -> None:
    held = outcomes(GAINS)
    refused = ran(1.0, 4, method="linear", budget="1/8", parameters={"B": 32})
    held.append(Outcome(refused.case, Status.OK, refused.samples, facts={"kernel": "matmul"}))
    (found,) = regimes(case_groups(held))
    assert regime_map(found).rows[2] == ("1/8", "–", "–", "–")


def test_the_page_has_the_chart_and_a_hostile_name_stays_text() -> None:
    page = render(build(sample.RUN, outcomes(GAINS, "li'near\\<b>")))
    assert [e for e in Page(page).elements if e.attrs.get("id") == "regimes"]
    assert "<b>near" not in page
    assert not re.search(r"<ul[^>]*>\s*</ul>", page), "no claim fits"
    assert "Regimes" not in render(build(sample.RUN, outcomes({4: GAINS[4]})))


# -- several tokens per step: a decoder, a cache that evicts, or both

JACOBI = {"name": "jacobi", "window": 8}
LINEAR = {"method": "linear", "budget": "1/4", "parameters": {"B": 64}}
# speedup by batch: alone, the decoder alone, both
PARALLEL = {1: (1.05, 2.0, 2.1), 64: (2.0, 1.1, 1.7), 256: (0.9, 0.8, 0.7)}


def decoded(gains: dict[int, tuple[float, float, float]]) -> list[Outcome]:
    measured = []
    for batch, (linear, jacobi, both) in gains.items():
        measured += [ran(batch, batch, role="baseline"), ran(batch / linear, batch, **LINEAR),
                  ran(batch / jacobi, batch, method="full", budget="1", decoder=JACOBI),
                  ran(batch / both, batch, **LINEAR, decoder=JACOBI),
                  ran(batch / 5, batch, method="window", budget="1/4", parameters={"B": 64})]
    return measured


def test_the_sentence_names_the_fastest_at_each_batch() -> None:
    (found,) = decoder_regimes(case_groups(decoded(PARALLEL)))
    assert found.sentence == ("At batch 1 linear 1/4 + jacobi 8 is the fastest, 2.10×; at batch 64 linear 1/4 is the fastest, 2.00×; "
                              "at batch 256 nothing is shown to be faster than the full cache, one token a pass.")


def test_the_map_has_a_line_for_each_way_and_none_for_methods_without_a_decoder() -> None:
    (found,) = decoder_regimes(case_groups(decoded(PARALLEL)))
    chart = regime_map(found)
    assert chart.columns == ("Case", "batch 1", "batch 64", "batch 256")
    assert {row[0]: row[1].split()[0] for row in chart.rows} == {
        "full + jacobi 8": "2.00×", "linear 1/4 + jacobi 8": "2.10×", "linear 1/4": "1.05×"}
    assert TITLE in chart.title


def test_one_batch_or_no_decoder_has_no_such_map() -> None:
    assert decoder_regimes(case_groups(decoded({1: PARALLEL[1]}))) == ()
    assert decoder_regimes(case_groups([o for o in decoded(PARALLEL) if not o.case.decoder])) == ()


def test_the_maps_of_methods_leave_decoders_out_and_the_page_has_both() -> None:
    assert {regime.method for regime in regimes(case_groups(decoded(PARALLEL)))} == {"linear", "window"}
    page = render(build(sample.RUN, decoded(PARALLEL)))
    assert "is the fastest, 2.10×" in page
    assert any("linear 1/4 + jacobi 8" in row[:1] for table in Page(page).tables() for row in table)
