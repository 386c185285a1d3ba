"""The sentences above the table: they must be as careful as the figures."""

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
    arm = sample.arm(method, "1/4")
    return replace(arm, samples={**arm.samples, "latency": latency, **samples})


def full(latency: list[float]) -> Outcome:
    held = sample.full()
    return replace(held, samples={**held.samples, "latency": latency})


def test_the_fastest_method_comes_with_what_it_saves_and_costs() -> None:
    text = said(full([2.0, 2.0, 2.0]), at([1.0, 1.0, 1.0], token_agreement=[0.5, 0.6], kl=[0.25, 0.35], psnr=[15.0, 17.0],
                                          kv_allocated=[1_000_000.0], legend=[0.5, 0.75]))["Budget 1/4"]
    assert text.startswith("The fastest method is linear at 2.00× (1.89–2.11, n = 3). It allocates 74.8 % less KV.")
    assert "Fidelity: 55.0 % token agreement (KL 0.300 nat/token, PSNR 16.0 dB)." in text
    assert "Quality: 62.5 % of hues obey the legend, full cache 98.7 %." in text


def test_nothing_faster_is_said_plainly() -> None:
    text = said(full([2.0, 2.0, 2.0]), at([2.06, 2.06, 2.06]), at([2.5] * 3, "random"))["Budget 1/4"]
    assert text.startswith("No method is faster than the full cache here; the fastest, linear, runs at 0.97× (0.92–1.03, n = 3).")


def test_an_interval_that_reaches_one_is_no_speed_up() -> None:
    text = said(full([2.0, 2.1, 1.9]), at([1.9, 2.0, 1.95]))["Budget 1/4"]
    assert text.startswith("No method is shown to be faster than the full cache here: the fastest, linear, runs at 1.03×")
    assert "which may be none" in text


def test_a_faster_method_that_is_not_ranked_is_neither_hidden_nor_praised() -> None:
    lost = at([0.5] * 3, "window", token_agreement=[0.03] * 64)
    text = said(full([2.0] * 3), at([2.2] * 3), lost, sample.floor())["Budget 1/4"]
    assert text.startswith("No ranked method is faster than the full cache here; the fastest, linear")
    assert text.endswith("Not ranked: window at 4.00×.")


def test_only_unranked_methods() -> None:
    lost = at([0.5] * 3, "window", token_agreement=[0.03] * 64)
    assert said(full([2.0] * 3), lost, sample.floor())["Budget 1/4"] == "No method is ranked. Not ranked: window at 4.00×."


def test_methods_without_a_speed_up_are_named() -> None:
    assert said(full([2.0] * 3), at([1.0] * 3), sample.arm("h2o", "1/4"))["Budget 1/4"].endswith("Without a speed-up: h2o.")


def test_lossless_methods_are_named() -> None:
    same = at([1.5] * 3, "random", token_agreement=[1.0] * 64, kl=[0.0] * 64)
    text = said(full([2.0] * 3), at([1.0] * 3), same, sample.numerics())["Budget 1/4"]
    assert "Lossless on this device: random at 1.33×." in text


def test_more_memory_than_the_full_cache_is_not_called_less() -> None:
    text = said(full([2.0] * 3), at([1.0] * 3, kv_allocated=[2.0 * sample.full().samples["kv_allocated"][0]]))["Budget 1/4"]
    assert "It allocates 100.0 % more KV." in text


def test_random_weights_promise_nothing() -> None:
    text = " ".join(said(*sample.random_weights()).values())
    assert "nothing is ranked" in text
    for word in ("fidelity", "quality", "PSNR", "KL ", "legend", "fastest method"):
        assert word not in text


def test_failures_are_counted() -> None:
    broken = [sample.failed(sample.arm(m, "1/4"), Status.OOM, "no memory") for m in ("linear", "random")]
    assert said(sample.full(), *broken)["Budget 1/4"] == "No method has results at this budget (2 oom)."


@pytest.mark.parametrize(("outcomes", "text"), [
    ([sample.arm("linear", "1/4")], "This run has no full cache, so there are no speed-ups or savings."),
    ([sample.failed(sample.full(), Status.OOM, "x"), sample.arm("linear", "1/4")],
     "The full cache failed (oom), so there are no speed-ups or savings."),
    ([full([2.0])], "The full cache takes 2.00 s for a batch of 16 images and holds 3.78 MiB of keys and values; every speed-up and saving "
                    "below is against it."),
])
def test_the_full_cache_speaks_first(outcomes: list[Outcome], text: str) -> None:
    assert said(*outcomes)["Full cache"] == text


def test_a_foreign_name_is_isolated_and_short() -> None:
    arm = at([1.0] * 3)
    arm = replace(arm, case=replace(arm.case, method="\u202e" + "x" * 10_000))
    text = said(full([2.0] * 3), arm)["Budget 1/4"]
    assert "\u2068\u202exxx" in text
    assert "…\u2069 at 2.00×" in text
    assert len(text) < 500
