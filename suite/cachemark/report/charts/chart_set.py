"""Charts of a group, by tab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...analysis.case_group import CaseGroup
from ...analysis.run_history import RunHistory
from .bars import memory, phases, spreads
from .chart import Chart, Key, signs_of
from .lines import batches, history, kv_over_time
from .tradeoffs import against_cost, against_speed, curves


@dataclass(frozen=True)
class ChartSet:
    """Charts of one group with a shared legend."""

    methods: tuple[Key, ...]
    budgets: tuple[Key, ...]
    charts: tuple[Chart, ...]

    def on_tab(self, tab: str) -> tuple[Chart, ...]:
        return tuple(chart for chart in self.charts if chart.tab == tab)


def chart_set(group: CaseGroup, groups: Sequence[CaseGroup] = (), followed: RunHistory | None = None) -> ChartSet:
    """Return the charts of a group; ``groups`` are all groups of the report, ``followed`` its history."""
    signs = signs_of(group, groups)
    charts = (against_cost(group, signs), against_speed(group, signs), *phases(group, signs), *memory(group, signs),
              *kv_over_time(group, signs), *batches(group, groups, signs), *curves(group, signs), *spreads(group, signs),
              *history(followed, signs))
    return ChartSet(tuple(signs.methods.values()), tuple(signs.budgets.values()), charts)
