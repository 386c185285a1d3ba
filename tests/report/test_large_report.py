"""The benchmark of large pages, at a small size: its store is a run with every case, and its page shows them all."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from cachemark.store.db import Store

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "large_report.py"


def test_its_page_holds_every_case(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("large_report", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    large = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(large)
    count = large.fill(tmp_path / "s.sqlite", models=2, methods=3, budgets=2)
    with Store.open(tmp_path / "s.sqlite", create=False) as store:
        outcomes = store.outcomes(1)
    assert len(outcomes) == count == 14
    assert all(sum(map(len, o.samples.values())) == 200 for o in outcomes)  # a million in five thousand cases
    large.made(tmp_path / "s.sqlite", tmp_path / "p.html")
    assert (tmp_path / "p.html").read_text(encoding="utf-8").count('class="case"') == count
