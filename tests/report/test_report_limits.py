"""The table of limits: what is derived from an outcome's least time, and which sentences are said when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import report_sample as sample
from page import Page

from cachemark.analysis.answers import doubt
from cachemark.analysis.case_group import case_groups
from cachemark.analysis.device_limits import Limits, against_limits
from cachemark.analysis.report_view import build
from cachemark.core.limits import Limit
from cachemark.core.result import Outcome, Status
from cachemark.report.page.render import render

COPY, MATMUL = 1e10, 1e11


def limit(least: float, nbytes: float = 0.0, flops: float = 0.0) -> dict[str, Any]:
    """A least time of attention and linear products, two to one."""
    return Limit(least, least, int(nbytes), int(flops), COPY, MATMUL, {"attention": least * 2 / 3, "linear": least / 3}).to_json()


def ran(latency: float, held: dict[str, Any] | None, slope: dict[str, Any] | None = None, **changes: Any) -> Outcome:
    facts = {"kernel": "sdpa", **({"limit": held} if held else {}), **({"slope": slope} if slope else {})}
    samples = {"latency": [latency] * 5, "psnr": [30.0] * 64}
    return Outcome(sample.case(**changes), Status.OK, samples, facts=facts)


def full(latency: float = 2.0, least: float = 1.0, nbytes: float = 1e10, flops: float = 2e10) -> Outcome:
    return ran(latency, limit(least, nbytes, flops), role="baseline")


def arm(latency: float = 1.25, least: float = 0.5, **more: Any) -> Outcome:
    return ran(latency, limit(least, 5e9, 2e10), method="linear", budget="1/4", knobs={"B": 64}, **more)


def table(*outcomes: Outcome) -> Limits:
    (group,) = case_groups(list(outcomes))
    found = against_limits(group)
    assert found is not None
    return found


def test_what_is_derived_from_the_least_time() -> None:
    found = table(full(), arm(slope={"bytes_per_s": 3e9, "intercept": 0.004, "r2": 0.99}))
    assert found.rates == "10.0 GB/s copied, 0.10 TFLOP/s multiplied"
    assert found.parts == "attention 66.7 %, linear 33.3 %"
    whole, linear = found.lines
    assert (whole.over, whole.mbu, whole.mfu, whole.ideal, whole.measured) == ("2.00×", "50.0 %", "10.0 %", "–", "–")
    assert (linear.over, linear.ideal, linear.measured, linear.reached) == ("2.50×", "2.00×", "1.60×", "80.0 %")
    assert linear.slope == "3.0 GB/s + 4.00 ms"
    assert found.sentences == ()


def test_a_line_that_does_not_fit_has_no_slope() -> None:
    for slope in ({"bytes_per_s": 3e9, "intercept": 0.004, "r2": 0.5}, {"bytes_per_s": None, "intercept": 0.004, "r2": 0.99}):
        assert table(full(), arm(slope=slope)).lines[1].slope == "–"


@pytest.mark.parametrize(("outcomes", "flag", "said"), [
    ((full(latency=5.0), arm(latency=3.0)), "idle device", "20 % of the copy rate"),
    ((full(), arm(latency=0.8)), "artefact", "2.50× is more than the 2.00×"),
    ((full(), arm(latency=2.5)), "use the full cache", "would allow 2.00×"),
    ((full(latency=0.9), arm()), "in a cache", "fit a cache"),
], ids=["idle device", "artefact", "no gain", "too fast"])  # fmt: skip
def test_each_flag_is_said_in_a_sentence_and_only_where_it_is_true(outcomes: tuple[Outcome, ...], flag: str, said: str) -> None:
    found = table(*outcomes)
    marks = {mark.text: mark.reason for line in found.lines for mark in line.flags}
    assert flag in marks
    assert said in marks[flag]
    assert not {mark.text for line in table(full(), arm()).lines for mark in line.flags}


def test_a_refused_speed_up_is_not_set_against_the_ideal() -> None:
    found = table(full(), replace(arm(), facts={**arm().facts, "kernel": "matmul"}))
    assert (found.lines[1].ideal, found.lines[1].measured, found.lines[1].reached) == ("2.00×", "–", "–")


def test_without_least_times_there_is_no_table_and_a_strange_one_is_passed_over() -> None:
    (group,) = case_groups([ran(2.0, None, role="baseline")])
    assert against_limits(group) is None
    (group,) = case_groups([ran(2.0, {"floor": 1.0}, role="baseline"), ran(2.0, {**limit(1.0), "of": "tomorrow"}, method="window")])
    assert against_limits(group) is None


def test_an_arm_without_its_full_cache_has_no_ideal() -> None:
    found = table(arm())
    assert (found.lines[0].ideal, found.parts) == ("–", "")


def test_the_page_has_the_table() -> None:
    html = render(build(sample.RUN, [full(), arm(latency=0.8)]))
    rows = [row for table in Page(html).tables() for row in table if row and row[0].startswith("linear 1/4 artefact")]
    assert len(rows) == 1
    assert "2.50×" in rows[0]
    assert "Measured against the physical limit" in html
    assert "Measured against the physical limit" not in render(build(sample.RUN, [ran(2.0, None, role="baseline")]))


def test_a_speed_that_is_not_to_be_believed_says_so_where_it_stands() -> None:
    believed = replace(arm(latency=3.0), case=sample.case(method="linear", budget="1/2", knobs={"B": 128}))
    outcomes = [full(latency=5.0), arm(latency=0.8), believed]
    (group,) = case_groups(outcomes)
    assert group.full is not None
    marks = {row.case.budget: [mark.text for mark in row.marks] for row in group.arms}
    assert [mark.text for mark in group.full.marks] == ["idle device"]
    assert ("artefact" in marks["1/4"], "artefact" in marks["1/2"]) == (True, False)
    headline = next(table for table in Page(render(build(sample.RUN, outcomes))).tables() if any("Speed-up" in row for row in table))
    assert ["artefact" in " ".join(row) for row in headline if any("linear" in cell for cell in row)].count(True) == 1


@pytest.mark.parametrize(("latency", "flagged"), [(0.4, True), (0.6, False)])
def test_a_decoder_that_gains_more_than_its_passes_is_flagged(latency: float, flagged: bool) -> None:
    """With or without a limit: fewer passes are all that it can gain."""
    decoder = {"name": "jacobi", "window": 8}
    found = ran(latency, None, method="full", budget="1", decoder=decoder)
    found = replace(found, facts={**found.facts, "own_kernel": "x", "tokens_per_pass": {"mean": 4.0, "least": 3.0, "most": 5.0}})
    (group,) = case_groups([full(2.0), found])
    (row,) = (row for row in group.rows if row.case.decoder)
    assert row.method == "full + jacobi 8"
    said = [mark.reason for mark in row.marks if mark.text == "artefact"]
    assert said == (["5.00× is more than the 4.00 tokens that it draws a pass, and fewer passes are all that a decoder gains."]
                    if flagged else [])


def decoding(latency: float, least: float, tokens: float = 4.0, **changes: Any) -> Outcome:
    """A case that draws so many tokens a pass, whose windows take ``least`` seconds by their FLOPs."""
    found = ran(latency, limit(least), **{"method": "full", "budget": "1", "decoder": {"name": "jacobi", "window": 8}, **changes})
    return replace(found, facts={**found.facts, "own_kernel": "x", "tokens_per_pass": {"mean": tokens, "least": 3.0, "most": 5.0}})


@pytest.mark.parametrize(("latency", "flags"), [
    (10.0, [("use the full cache", "Use the full cache, one token a pass: 4.00 tokens a pass are no faster here, since each pass takes "
            "longer.")]),
    (4.0, []), (1.6, [("artefact", "5.00× is more than the 4.00 tokens that it draws a pass, and fewer passes are all that a decoder "
                       "gains.")])])  # fmt: skip
def test_a_decoder_is_held_against_its_passes_and_not_against_the_flops_of_its_windows(
    latency: float, flags: list[tuple[str, str]],
) -> None:
    """A device that waits computes windows for nothing: with half as many FLOPs more, twice the speed is no artefact."""
    found = table(full(8.0), decoding(latency, 1.5))
    line = found.lines[1]
    assert [(mark.text, mark.reason) for mark in line.flags] == flags
    assert (line.ideal, line.reached) == ("4.00×", f"{100 * (8.0 / latency) / 4:.1f} %")
    page = render(build(sample.RUN, [full(8.0), decoding(latency, 1.5)]))
    assert "under a decoder what they allow at one token a pass, times the tokens that it draws a pass" in page
    assert "under a decoder what" not in render(build(sample.RUN, [full(2.0), arm()]))


@pytest.mark.parametrize(("latency", "said"), [(0.3, ""), (0.2, "10.00× is more than 8.00×: the 4.00 tokens that it draws a pass, times "
                                                "the 2.00× that the bytes and FLOPs saved allow at one.")])  # fmt: skip
def test_a_decoder_beside_a_method_may_gain_what_both_allow(latency: float, said: str) -> None:
    both = decoding(latency, 9.0, method="linear", budget="1/4", knobs={"B": 64})
    (group,) = case_groups([full(2.0), arm(), both])
    (row,) = (row for row in group.rows if row.case.decoder)
    assert [mark.reason for mark in row.marks if mark.text == "artefact"] == ([said] if said else [])
    assert doubt(row, group) == said


def test_a_decoder_beside_a_method_that_was_not_run_alone_has_no_ideal() -> None:
    both = decoding(0.1, 0.05, method="linear", budget="1/4", knobs={"B": 64})
    other = replace(arm(), case=sample.case(method="linear", budget="1/4", knobs={"B": 65}))
    assert [(line.ideal, line.flags) for line in table(full(2.0), both, other).lines if "jacobi" in line.name] == [("–", ())]


def test_what_is_no_faster_is_never_an_artefact() -> None:
    """A method that moves far more than the full cache and is hardly slower."""
    (group,) = case_groups([full(2.0), arm(latency=2.1, least=3.0)])
    assert "artefact" not in [mark.text for mark in group.arms[0].marks]
    assert doubt(group.arms[0], group) == ""


def test_a_decoder_that_draws_other_images_is_not_set_beside_the_full_cache_seed_by_seed() -> None:
    found = ran(0.9, None, method="full", budget="1", decoder={"name": "sjd", "window": 8})
    found = replace(found, samples={"latency": [0.9] * 5, "kl": [1e-9] * 64, "legend": [0.9] * 64},
                    facts={**found.facts, "own_kernel": "x", "decoder": {"keeps": "law"}})
    (group,) = case_groups([full(2.0), found])
    (row,) = (row for row in group.rows if row.case.decoder)
    assert next(mark.text for mark in row.marks) == "same law, other images"
    assert row.place is None
    assert "judged by their quality" in row.unranked
    told = " ".join(" ".join(cells) for table in Page(render(build(sample.RUN, [full(2.0), found]))).tables() for cells in table)
    assert "other images" in told
