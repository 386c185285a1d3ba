"""How many bytes of keys and values live while an image is made: what a method drops is gone from the curve."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachemark.core.result import Outcome
from cachemark.methods.ams_kv import ThresholdWarning
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plugins import loading as plugins
from cachemark.trial.child.bench import Bench
from support import examples
from support.examples import BATCH, CONFIG, short_plan
from support.measuring import run_case
from support.stages import forgetting

ENTRY = 2 * 2 * BATCH * CONFIG.layers * CONFIG.dim * 4  # K and V, both guidance rows, in fp32
ROLES = ("baseline", "candidate")
Measure = Callable[[str], dict[str, Outcome]]


@pytest.fixture
def measure(folder: Path, tmp_path: Path) -> Any:
    """Every full cache and candidate of a plan by label; no image is judged."""

    def measure(text: str) -> dict[str, Outcome]:
        (tmp_path / "plan.toml").write_text(text)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ThresholdWarning)
            planned = expand(plans.load(str(tmp_path / "plan.toml")))
        bench = Bench.load(planned[0])
        bench.loaded = replace(bench.loaded, weights="random:0")  # so that no image is judged
        found = {p.case.label: run_case(p, bench)[0] for p in planned if p.case.role in ROLES and not p.unsupported_reason}
        assert all(outcome.ok for outcome in found.values()), {label: outcome.log for label, outcome in found.items()}
        return found

    with forgetting():
        plugins.load(folder / "dot.py")
        yield measure


def test_what_goes_at_the_end_of_a_line_is_gone(measure: Measure) -> None:
    found = measure(examples.plan_text('"linear"'))
    full, linear = found["full"].facts.kv_by_step, found["linear 1/2"].facts.kv_by_step
    assert full.tokens == linear.tokens == [4, 5, 8, 9, 12, 13, 16]
    assert full.live == [ENTRY * entries for entries in (4, 5, 8, 9, 12, 13, 16)], "one of the condition, and what was fed"
    assert linear.live == [ENTRY * entries for entries in (4, 5, 8, 5, 8, 5, 8)], "two lines and the condition, less one line"
    assert found["linear 1/2"].samples["kv_logical"] == [ENTRY * 9], "the fullest moment is before anything goes"


def test_a_scale_that_is_not_kept_is_not_counted(measure: Measure) -> None:
    table = '{ name = "ams_kv", demanding = [4] }'
    found = measure(short_plan(f'model = "tiny-var"\nmethods = [{table}]\nbudgets = [{table}]'))
    full, candidate = (next(o for label, o in found.items() if label.startswith(name)) for name in ("full", "ams_kv"))
    assert candidate.facts.kv_by_step.tokens == full.facts.kv_by_step.tokens
    assert candidate.facts.kv_by_step.live[0] == full.facts.kv_by_step.live[0]
    assert candidate.facts.kv_by_step.live[-2:] == [candidate.samples["kv_logical"][0]] * 2, "the last scale, which nobody reads"
    assert full.facts.kv_by_step.live[-2] > candidate.facts.kv_by_step.live[-2]


def test_places_that_stand_from_the_beginning_make_no_curve(measure: Measure) -> None:
    padded = measure(examples.plan_text('"streaming"', cells='engine = "reference"'))["full"]
    assert padded.samples["kv_logical"][0] > 0, "it does keep something"
    assert padded.facts.kv_by_step is None
