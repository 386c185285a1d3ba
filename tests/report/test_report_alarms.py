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
    (0, 20, "good", "0 false alarms in 20 nights with equal arms: 0.0 %, between 0.0 % and 16.8 % (exact 95 % interval)."),
    (1, 19, "calm", "1 false alarm in 20 nights with equal arms: 5.0 %, between 0.1 % and 24.9 % (exact 95 % interval)."),
    (3, 7, "bad", "the gate advises and fails nothing by times."),
])  # the ends are Clopper and Pearson's, as any table of theirs has them
def test_the_rate_has_its_exact_interval(false: int, true: int, tone: str, said: str) -> None:
    told = alarms(standing([*[night("regressed")] * false, *[night("equivalent")] * true]))
    assert told.tone == tone
    assert told.text.endswith(said)


def test_an_unknown_rate_is_no_rate_of_zero() -> None:
    for none in (None, standing([])):
        assert alarms(none).text.startswith("No alarm judged yet")
    page = render(build(sample.RUN, sample.mixed()))
    assert "No alarm judged yet" in page
    assert "false alarms in" not in page


def test_the_verdict_tab_says_it() -> None:
    page = render(build(sample.RUN, sample.mixed(), standing=standing([night("improved"), night("equivalent")])))
    assert "1 false alarm in 2 nights with equal arms: 50.0 %" in page
