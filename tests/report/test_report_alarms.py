"""How often the gate was wrong, as the page says it."""

from __future__ import annotations

import pytest
import report_sample as sample

from cachemark.analysis.baseline_comparison import alarms
from cachemark.analysis.report_view import build
from cachemark.core.units import TIME
from cachemark.gate.comparison import AA
from cachemark.gate.nights import Night, standing
from cachemark.report.page.render import render
from cachemark.store.rows import Verdict


def night(verdict: str) -> Night:
    return Night(sample.RUN, (Verdict("k", f"{AA} full", TIME, verdict),))


@pytest.mark.parametrize(("false", "true", "tone", "said"), [
    (0, 20, "good", "alarm in 0 of the last 20 nights (0 of 20 A/A tests): for a night of 1 configuration "
     "a realised false-alarm rate of 0 % "
     "(0 % to 17 %)."),
    (1, 19, "calm", "alarm in 1 of the last 20 nights (1 of 20 A/A tests): for a night of 1 configuration "
     "a realised false-alarm rate of 5 % "
     "(0.13 % to 25 %)."),
    (3, 7, "bad", "verdicts on times are advisory."),
])  # the ends are Clopper and Pearson's, as any table of theirs has them
def test_the_rate_has_its_exact_interval(false: int, true: int, tone: str, said: str) -> None:
    assert alarms(None) is alarms(standing([])) is None
    texts = alarms(standing([*[night("regressed")] * false, *[night("equivalent")] * true]))
    assert texts is not None
    assert texts.tone == tone
    assert texts.text.endswith(said)


def test_the_verdict_tab_says_it() -> None:
    page = render(build(sample.RUN, sample.mixed(), standing=standing([night("improved"), night("equivalent")])))
    assert "an alarm in 1 of the last 2 nights (1 of 2 A/A tests): for a night of 1 configuration a realised "\
        "false-alarm rate of 50 %" in page
