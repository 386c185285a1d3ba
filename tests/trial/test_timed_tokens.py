"""Tokens of timed generations are those of the judged ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachemark.plugins import loading as plugins
from cachemark.trial.child.bench import Bench
from support.examples import REPEATS
from support.measuring import planned, run_case

pytestmark = pytest.mark.usefixtures("dot")
PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
import cachemark as cm
from cachemark.methods.window import Window

@cm.method("NAME")
@dataclass
class Hurries(Window):
    made: ClassVar[int] = 0
    source: ClassVar[str] = "the tests"

    def begin(self, layout, sites, memory):
        super().begin(layout, sites, memory)
        type(self).made += 1
        if type(self).made <= FIRST:
            self.B = 1
"""


@pytest.mark.parametrize("first", [0, 1 + REPEATS])
def test_a_plug_in_that_hurries_while_it_is_timed_has_no_speed(first: int, folder: Path, tmp_path: Path) -> None:
    """The generations before the judged ones: one in which bytes are counted, which warms up, and the timed ones."""
    file = tmp_path / "hurries.py"
    name = f"hurries_{first}"
    file.write_text(PLUGIN.replace("FIRST", str(first)).replace("NAME", name))
    plugins.load(file)
    cases = planned(folder, f'"{name}", "window"')
    bench = Bench.load(cases[0])
    outcomes = {p.case.method: run_case(p, bench)[0] for p in cases if p.case.method in (name, "window")}
    assert outcomes[name].output_hash == outcomes["window"].output_hash, "what is judged is the same"
    assert outcomes["window"].facts.quality_only is None
    reason = outcomes[name].facts.quality_only or ""
    assert reason == ("Timed generations gave other tokens than the evaluated ones in 1 of 1 batches." if first else "")
