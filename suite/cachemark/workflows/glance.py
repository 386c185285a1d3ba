"""The values of one case while its run goes on: single values without order or interval, since nothing is decided yet."""

from __future__ import annotations

from typing import NamedTuple

from ..analysis import formatting as fmt
from ..analysis.report_row import MASKED, derive
from ..core.result import Outcome
from ..core.units import TIME, metric, scores


class Glance(NamedTuple):
    """Figures as text, each empty where it is not known: the time of a batch, its ratio to the full cache's, what is saved of its bytes or
    FLOPs, and the score of images."""

    latency: str = ""
    speed: str = ""
    saved: str = ""
    score: str = ""

    @property
    def sentence(self) -> str:
        """The values in one line, empty where none is known."""
        words = (self.latency and f"{self.latency} a batch", self.speed and f"{self.speed} the full cache's speed", self.saved, self.score)
        return ", ".join(word for word in words if word)


def glance(outcome: Outcome, full: Outcome | None) -> Glance:
    """The values of an outcome beside the full cache of its cell, None where that has not ended well."""
    if not outcome.ok:
        return Glance()
    row, latency = derive(outcome, full, {}), outcome.median(TIME)
    candidate = outcome.case.role == "candidate"
    score = next((name for name in scores() if outcome.mean(name) is not None), "")
    judged = outcome.mean(score) if score else None
    return Glance(
        "" if latency is None or not row.timed else fmt.seconds(latency),
        fmt.times(row.speedup.value) if candidate and row.speedup else "",
        f"{fmt.percent(row.saving)} {'fewer FLOPs' if row.paradigm == MASKED else 'less KV'}" if candidate and row.saving else "",
        "" if judged is None else f"{metric(score).title.lower()} {fmt.metric_value(judged, score)}")
