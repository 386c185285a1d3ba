"""Sentences above the table: no method is called faster while its interval reaches 1×."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_sample as sample

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.summary_sentences import sentences
from cachemark.core.result import Outcome, Status


def sentence(about: str, *outcomes: Outcome) -> str:
    (group,) = case_groups(outcomes)
    return next(sentence.text for sentence in sentences(group) if sentence.about == about)


def at(latency: list[float], method: str = "linear", **samples: list[float]) -> Outcome:
    candidate = sample.candidate(method, "1/4")
    return replace(candidate, samples={**candidate.samples, "latency": latency, **samples})


def full(latency: list[float]) -> Outcome:
    return replace(sample.full(), samples={**sample.full().samples, "latency": latency})


@pytest.mark.parametrize(("arms", "value", "faster"), [
    ([at([1.0] * 3)], "LineAR, 2.00× (1.89–2.11, n = 3)", True),
    ([at([2.06] * 3), at([2.5] * 3, "random")], "LineAR, 0.97× (0.92–1.03, n = 3)", False),
    ([at([1.9, 2.0, 1.95])], "LineAR, 1.03× (0.95–1.11, n = 3)", False),
    ([at([1.0, 1.1, 2.6], "random"), at([1.4] * 3)], "LineAR, 1.43× (1.35–1.51, n = 3)", True),
    ([at([1.0] * 3), sample.candidate("h2o", "1/4")], "LineAR, 2.00×", True),
    ([at([2.2] * 3), at([0.5] * 3, "window", token_agreement=[0.03] * 64), sample.other_seeds()], "LineAR, 0.91×", False),
], ids=["faster", "slower", "interval reaches 1", "interval above 1 beats a larger value", "untimed", "unranked is faster"])  # fmt: skip
def test_the_fastest_ranked_method_of_a_budget(arms: list[Outcome], value: str, faster: bool) -> None:
    text = sentence("Budget 1/4", full([2.0] * 3), *arms)
    assert f"Fastest: {value}" in text
    assert ("No measurable speedup" not in text) == faster


def test_random_weights_promise_nothing() -> None:
    assert "nothing is ranked" in sentence("Budget 1/4", *sample.random_weights())


def test_a_budget_without_results_and_a_run_without_a_full_cache_say_so() -> None:
    broken = [sample.failed(sample.candidate(method, "1/4"), Status.OOM, "no memory") for method in ("linear", "random")]
    assert sentence("Budget 1/4", sample.full(), *broken) == "No results."
    assert "no full cache" in sentence("Full cache", sample.candidate("linear", "1/4"))
    assert "failed (oom)" in sentence("Full cache", sample.failed(sample.full(), Status.OOM, "x"), sample.candidate("linear", "1/4"))


def test_a_foreign_name_is_isolated_and_short() -> None:
    arm = at([1.0] * 3)
    text = sentence("Budget 1/4", full([2.0] * 3), replace(arm, case=replace(arm.case, method="\u202e" + "x" * 10_000)))
    assert "\u2068\u202exxx" in text
    assert "…\u2069, 2.00×" in text
    assert len(text) < 500
