"""Speedups on a machine whose speed drifts: the full cache runs in turns with each candidate, so both see the same machine."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.analysis.report_row import derive
from cachemark.cache.arena import Memory
from cachemark.core.result import Outcome
from cachemark.gate import baseline_check
from cachemark.plans.planned import Prepared
from cachemark.plans.price import batches
from cachemark.plugins import loading as plugins
from cachemark.trial.child import measure
from cachemark.trial.child.bench import Bench, case_job
from support import measuring
from support.examples import REPEATS
from support.measuring import planned, run_case

pytestmark = pytest.mark.usefixtures("dot")


def cases(folder: Path) -> dict[str, Prepared]:
    return {case.case.label: case for case in measuring.planned(folder, '"streaming"')}


def test_a_case_says_of_every_batch_that_it_was_made_and_no_more_than_were_counted(folder: Path) -> None:
    """So that its share of the whole can be told while it runs."""
    for case in cases(folder).values():
        progress: list[int] = []
        bench = Bench.load(case, progress.append)
        bench.reference(case.case, measure._judged_job(case.case, case_job(case.case, bench)))
        made = sum(progress) if case.case.role == "baseline" else 0  # by it, and by the first case of a process else
        progress.clear()
        assert run_case(case, bench)[0].ok
        assert made + sum(progress) == sum(size * times for size, times in batches(case, forced=1.0)), case.case.label


class SlowDecoder:
    """Decodes as the model does, and takes so many seconds more."""

    def __init__(self, decode: Callable[[Tensor], Tensor]) -> None:
        self._decode, self.seconds = decode, 0.0

    def __call__(self, tokens: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return self._decode(tokens)


@pytest.fixture(scope="module")
def drifted(folder: Path) -> tuple[Outcome, Outcome]:
    """The full cache, and a candidate that was measured when everything had become many times as slow."""
    planned = cases(folder)
    candidate = next(case for case in planned.values() if case.case.role == "candidate")
    bench = Bench.load(planned["full"])
    decoder = SlowDecoder(bench.loaded.decode)
    bench.loaded = replace(bench.loaded, decode=decoder)
    full, _ = run_case(planned["full"], bench)
    decoder.seconds = 20 * (full.median("latency") or 0.0)
    return full, run_case(candidate, bench)[0]


def test_a_slower_machine_is_no_slower_method(drifted: tuple[Outcome, Outcome]) -> None:
    full, candidate = drifted
    assert len(candidate.facts.full_beside) == REPEATS == len(candidate.samples["latency"])
    assert full.facts.full_beside is None
    row = derive(candidate, full, {})
    assert 0.5 < row.speedup.value < 2
    alone = derive(replace(candidate, facts=replace(candidate.facts, full_beside=None)), full, {})
    assert alone.speedup.value < 0.2  # what a store from before says


def test_the_gate_compares_the_same_ratio(drifted: tuple[Outcome, Outcome]) -> None:
    full, candidate = drifted
    ratio = baseline_check._ratio("latency", candidate, {full.case.cell: full})
    assert ratio is not None
    assert 0.5 < ratio < 2


def test_a_full_cache_that_does_not_fit_beside_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Exhausted(Memory):
        def zeros(self, *arguments: Any, **more: Any) -> Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    planned = cases(folder)
    candidate = next(case for case in planned.values() if case.case.role == "candidate")
    monkeypatch.setattr(measure, "Memory", Exhausted)
    outcome, _ = run_case(candidate, Bench.load(candidate))
    assert outcome.ok
    assert outcome.facts.full_beside is None


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
