"""A plug-in whose layers keep different numbers of entries, as its page has it: measured and counted to the byte."""

from __future__ import annotations

from pathlib import Path

from cachemark.cache.layout import Site
from cachemark.contract.heads import HeadGroups
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
from cachemark.plugins import loading as plugins
from cachemark.trial.child.bench import Bench
from support.measuring import planned, run_case
from support.wheels import ROOT
from test_docs import blocks

PAGE = ROOT / "docs" / "reference" / "method-interface.md"


def test_it_is_measured_and_its_bytes_are_those_of_its_budgets(dot: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "pyramid.py"
    text = next(block.text for block in blocks(PAGE.read_text(encoding="utf-8")) if block.file == plugin.name)
    plugin.write_text(text.replace("least: int = 8", "least: int = 2"))  # of images of 16 tokens
    plugins.load(plugin)
    cases = {p.case.method: p for p in planned(dot, '"h2o", "pyramid"', cells='codecs = ["int8"]')}
    bench = Bench.load(cases["h2o"])
    uniform, mine = (run_case(cases[name], bench)[0] for name in ("h2o", "pyramid"))
    assert mine.ok
    layout = MODELS.get(mine.case.model).shape(mine.case.sampling, mine.case.batch)
    method = METHODS.get("pyramid").build(mine.case.parameters)
    method.resolve(layout)
    assert isinstance(method, HeadGroups)
    budgets = [group.method.B for group in method.groups]  # type: ignore[attr-defined]
    entries = sum(method.entries(layout, Site("decoder", layer)) for layer in range(layout.layers))
    assert len({*budgets}) == layout.layers > 1
    entries_of_one = uniform.case.parameters["B"] + 1 + layout.longest_condition
    each = uniform.samples["kv_logical"][0] / (layout.layers * layout.kv_heads * entries_of_one)
    assert mine.samples["kv_logical"] == [entries * each]
    assert mine.samples["kv_workspace"][0] > 0
