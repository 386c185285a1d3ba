"""Likely costs: the efficiency of the accepted baselines of GPUs, by family, engine and batch."""

import json

import pytest

from cachemark.core.files import PACKAGE
from cachemark.plans.efficiency import FARTHER, efficiency
from tools.cards.efficiency import rows


def test_the_shipped_rows_are_those_of_the_accepted_baselines_and_a_range_starts_at_the_least_measured() -> None:
    shipped = json.loads((PACKAGE / "data" / "efficiency.json").read_text(encoding="utf-8"))
    assert sorted(map(str, shipped)) == sorted(map(str, rows())), "write them again: python -m tools.cards docs --costs"
    near, far = (efficiency("next-scale", "cuda", "graph", batch) for batch in (16, 64))
    assert near.least == near.typical < near.most == pytest.approx(FARTHER * near.typical)
    assert far.basis == "var-d30, graph, batch 64 on NVIDIA H200"
    assert far.typical < near.typical
    eager = efficiency("next-token", "cuda", "eager", 1)
    assert eager.launch > 0
    assert eager.span(1.0, 1000.0)[0] == pytest.approx(eager.least + 1000 * eager.launch)
    assert efficiency("next-token", "cpu", "eager", 1).basis.startswith("estimate")
