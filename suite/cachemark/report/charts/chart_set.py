"""All charts of a group, tab by tab."""

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
    """All charts of one group with the legend they share."""

    methods: tuple[Key, ...]
    budgets: tuple[Key, ...]
    charts: tuple[Chart, ...]

    def on_tab(self, tab: str) -> tuple[Chart, ...]:
        """The charts of one tab."""
        return tuple(chart for chart in self.charts if chart.tab == tab)


def chart_set(group: CaseGroup, groups: Sequence[CaseGroup] = (), followed: RunHistory | None = None) -> ChartSet:
    """The charts of a group.

    ``groups`` are all of the report: in them a method has the same color, and other batches of its model may stand; ``followed`` is the
    group run by run.
    """
    signs = signs_of(group, groups)
    charts = (against_cost(group, signs), against_speed(group, signs), *phases(group, signs), *memory(group, signs),
              *kv_over_time(group, signs), *batches(group, groups, signs), *curves(group, signs), *spreads(group, signs),
              *history(followed, signs))
    return ChartSet(tuple(signs.methods.values()), tuple(signs.budgets.values()), charts)
