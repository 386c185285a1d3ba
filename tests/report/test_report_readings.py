"""Places where a reader was once misled: a figure under another's name, a sentence that says less than its row."""

from __future__ import annotations

from dataclasses import replace

import report_sample as sample

from cachemark.analysis.baseline_comparison import BaselineComparison
from cachemark.analysis.case_group import case_groups
from cachemark.analysis.summary_sentences import sentences
from cachemark.core.result import Outcome
from cachemark.report.charts.lines import kv_over_time
from cachemark.store.rows import Verdict


class Plain:
    """Signs of a chart that nobody looks at."""

    def colour(self, row: object) -> str:
        return "#000"

    def series(self, row: object) -> int:
        return 0

    def shape(self, row: object) -> str:
        return "circle"


def timed(outcome: Outcome, latency: list[float]) -> Outcome:
    return replace(outcome, samples={**outcome.samples, "latency": latency})


def test_keys_after_a_part_of_an_image_lie_between_the_noted_places() -> None:
    """A scale's tokens come all at once: what is held at 274 of 530 tokens is not what is held after a quarter."""
    noted = {"live_bytes": {"tokens": [105, 274, 530], "live": [1024.0 * 105, 1024.0 * 274, 1024.0 * 530]}}
    full = replace(sample.full(), facts={**sample.full().facts, **noted})
    (group,) = case_groups([full])
    (chart,) = kv_over_time(group, Plain())  # type: ignore[arg-type]
    (line,) = chart.rows
    assert line[1:5] == ("132 KiB", "265 KiB", "398 KiB", "530 KiB")


def test_a_method_that_is_shown_to_be_faster_is_not_hidden_by_a_larger_guess() -> None:
    full = timed(sample.full(), [2.0, 2.0, 2.0])
    lucky = timed(sample.arm("random", "1/4"), [1.0, 1.1, 2.6])
    sure = timed(sample.arm("linear", "1/4"), [1.4, 1.4, 1.4])
    (group,) = case_groups([full, lucky, sure])
    text = next(found.text for found in sentences(group) if found.about == "Budget 1/4")
    assert text.startswith("The fastest method is linear at 1.43×")
    assert "No method" not in text


def test_a_change_below_the_last_digit_is_not_told_as_none() -> None:
    row = BaselineComparison(Verdict("k", "linear 1/4", "psnr", "improved", "", 17.5201, 17.5203, 1.0001))
    assert row.sentence == "linear 1/4: PSNR improved, by less than its figure shows: 17.5 dB, 0.0 % more."
