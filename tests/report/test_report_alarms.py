"""How often the gate was wrong, as the page says it."""

from __future__ import annotations

import pytest
import report_sample as sample

from cachemark.gate.comparison import AA, TIMED
from cachemark.gate.nights import Night, standing
from cachemark.report.page.render import render
from cachemark.report.view.baseline_comparison import alarms
from cachemark.report.view.report_view import build
from cachemark.store.rows import Verdict


def night(verdict: str) -> Night:
    return Night(sample.RUN, (Verdict("k", f"{AA} full", TIMED, verdict),))


@pytest.mark.parametrize(("false", "true", "tone", "said"), [
    (0, 20, "good", "0 false alarms in 20 nights with equal arms: 0.0 % (exact 95 % interval 0.0 % to 16.8 %)."),
    (1, 19, "calm", "1 false alarm in 20 nights with equal arms: 5.0 % (exact 95 % interval 0.1 % to 24.9 %)."),
    (3, 7, "bad", "verdicts on times are advisory and fail nothing."),
])  # the ends are Clopper and Pearson's, as any table of theirs has them
def test_the_rate_has_its_exact_interval(false: int, true: int, tone: str, said: str) -> None:
    told = alarms(standing([*[night("regressed")] * false, *[night("equivalent")] * true]))
    assert told.tone == tone
    assert told.text.endswith(said)


def test_an_unknown_rate_is_no_rate_of_zero() -> None:
    for none in (None, standing([])):
        assert alarms(none).text.startswith("Unknown: the store holds no comparison of equal arms")
    page = render(build(sample.RUN, sample.mixed()))
    assert "Unknown: the store holds no comparison of equal arms" in page
    assert "false alarms in" not in page


def test_the_verdict_tab_says_it() -> None:
    page = render(build(sample.RUN, sample.mixed(), standing=standing([night("improved"), night("equivalent")])))
    assert "1 false alarm in 2 nights with equal arms: 50.0 %" in page
