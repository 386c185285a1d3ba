"""The sentences above the table: they must be as careful as the values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import report_sample as sample

from cachemark.analysis.case_group import case_groups
from cachemark.analysis.summary_sentences import sentences
from cachemark.core.result import Outcome, Status


def said(*outcomes: Outcome) -> dict[str, str]:
    (group,) = case_groups(outcomes)
    return {sentence.about: sentence.text for sentence in sentences(group)}


def at(latency: list[float], method: str = "linear", **samples: list[float]) -> Outcome:
    candidate = sample.candidate(method, "1/4")
    return replace(candidate, samples={**candidate.samples, "latency": latency, **samples})


def full(latency: list[float]) -> Outcome:
    held = sample.full()
    return replace(held, samples={**held.samples, "latency": latency})


def lost(latency: float) -> Outcome:
    """A method as far from the full cache as other seeds are."""
    return at([latency] * 3, "window", token_agreement=[0.03] * 64)


@pytest.mark.parametrize(("candidates", "text"), [
    ([at([1.0] * 3)], "The fastest method is linear at 2.00× (1.89–2.11, n = 3)."),
    ([at([2.06] * 3), at([2.5] * 3, "random")],
     "No method is faster than the full cache here; the fastest is linear at 0.97× (0.92–1.03, n = 3)."),
    ([at([1.9, 2.0, 1.95])],
     "No method is shown to be faster than the full cache here; the fastest is linear at 1.03× (0.95–1.11, n = 3)."),
    ([at([1.0, 1.1, 2.6], "random"), at([1.4] * 3)], "The fastest method is linear at 1.43× (1.35–1.51, n = 3)."),
    ([at([1.0] * 3), sample.candidate("h2o", "1/4")], "The fastest method is linear at 2.00× (1.89–2.11, n = 3). Without a speedup: h2o."),
    ([at([2.2] * 3), lost(0.5), sample.other_seeds()],
     "No ranked method is faster than the full cache here; the fastest is linear at 0.91× "
     "(0.86–0.96, n = 3). Not ranked: window at 4.00×."),
    ([lost(0.5), sample.other_seeds()], "No method is ranked. Not ranked: window at 4.00×."),
], ids=["faster", "slower", "not shown", "shown beats a larger guess", "untimed", "unranked is faster", "none ranked"])  # fmt: skip
def test_what_is_said_of_a_budget(candidates: list[Outcome], text: str) -> None:
    assert said(full([2.0] * 3), *candidates)["Budget 1/4"] == text


def test_random_weights_promise_nothing() -> None:
    text = " ".join(said(*sample.random_weights()).values())
    assert "nothing is ranked" in text
    for word in ("fidelity", "quality", "PSNR", "KL ", "legend", "fastest method"):
        assert word not in text


def test_a_budget_without_results_is_named() -> None:
    broken = [sample.failed(sample.candidate(m, "1/4"), Status.OOM, "no memory") for m in ("linear", "random")]
    assert said(sample.full(), *broken)["Budget 1/4"] == "No method has results at this budget."


@pytest.mark.parametrize(("outcomes", "text"), [
    ([sample.candidate("linear", "1/4")], "This run has no full cache, so there are no speedups or savings."),
    ([sample.failed(sample.full(), Status.OOM, "x"), sample.candidate("linear", "1/4")],
     "The full cache failed (oom), so there are no speedups or savings."),
    ([full([2.0])], "The full cache takes 2.00 s for a batch of 16 images and holds 3.78 MiB of keys and values; every speedup and saving "
                    "below is against it."),
])
def test_the_full_cache_speaks_first(outcomes: list[Outcome], text: str) -> None:
    assert said(*outcomes)["Full cache"] == text


def test_a_foreign_name_is_isolated_and_short() -> None:
    candidate = at([1.0] * 3)
    candidate = replace(candidate, case=replace(candidate.case, method="\u202e" + "x" * 10_000))
    text = said(full([2.0] * 3), candidate)["Budget 1/4"]
    assert "\u2068\u202exxx" in text
    assert "…\u2069 at 2.00×" in text
    assert len(text) < 500
