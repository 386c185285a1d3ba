"""Plans over next-scale models, and one of them measured: bytes, halves, fidelity, and what the full cache's profile says."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from cachemark.cache.layout import Layout
from cachemark.core.result import Outcome
from cachemark.methods.ams_kv import AMSKV, ThresholdWarning
from cachemark.models.registry import MODELS
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.plans.schema import Plan, load
from cachemark.plugins import loading as plugins
from cachemark.trial.child.bench import Bench
from support import examples
from support.examples import BATCH, CONFIG, short_plan
from support.measuring import run_case
from support.stages import forgetting

Write = Callable[[str], Plan]


def shape() -> Layout:
    entry = MODELS.get("tiny-var")
    return entry.shape(entry.presets["paper"], 2)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(cells: str) -> Plan:
        (tmp_path / "plan.toml").write_text(short_plan(cells), encoding="utf-8")
        return load(str(tmp_path / "plan.toml"))

    return write


def test_a_method_may_stand_for_its_own_size(write: Write) -> None:
    table = '{ name = "ams_kv", demanding = [4] }'
    planned = expand(write(f'model = "tiny-var"\nmethods = [{table}, "window", "streaming"]\nbudgets = [{table}]\n'))
    entry = MODELS.get("tiny-var")
    layout = entry.shape(entry.presets["paper"], 2)
    share = AMSKV(demanding=[4]).own_budget(layout)
    assert share == Fraction(274 + 5 * 149, 6 * 274)
    candidates = {p.case.method: p.case for p in planned if p.case.role == "candidate"}
    assert {case.budget for case in candidates.values()} == {str(share)}
    assert candidates["window"].parameters["B"] == candidates["streaming"].parameters["B"] == int(share * layout.cacheable)
    assert candidates["streaming"].parameters["sinks"] == 5
    ours = AMSKV.build(candidates["ams_kv"].parameters)
    assert (ours.c_max, ours.c_min, ours.demanding) == (405, 149, [4])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The bundled model with two samples: the full cache and two candidates."""
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    table = '{ name = "ams_kv", demanding = [4] }'
    path.write_text(short_plan(f'model = "tiny-var"\nmethods = [{table}]\nbudgets = [{table}]\n'
                               '[[cells]]\nbatch = 2\nmodel = "tiny-var"\nmethods = ["fewer_scales"]\nbudgets = ["1/2"]'))  # fmt: skip
    planned: dict[str, Prepared] = {}
    for case in map(Prepared.of, expand(load(str(path)))):
        planned.setdefault(case.case.method if case.case.role == "candidate" else case.case.role, case)
    bench = Bench.load(planned["baseline"])
    return {name: run_case(planned[name], bench)[0] for name in ("baseline", "ams_kv", "fewer_scales")}


def test_what_a_method_computes_is_written_down(measured: dict[str, Outcome]) -> None:
    outcome = measured["fewer_scales"]
    assert outcome.facts.true_ratio == pytest.approx(0.444, abs=1e-3)
    assert outcome.samples["flops"] == [sum(outcome.facts.flops.values())]
    assert outcome.facts.generated == 274 / 530
    assert outcome.facts.footnotes == ["It generates 7 of 8 scales, with 51.7% of the tokens; values of tokens are over these.",
                                          "It stores 47.4% of the full cache's entries."]
    assert outcome.samples["token_agreement"] == [1.0] * outcome.case.samples
    assert max(outcome.samples["psnr"]) < 40, "the image lacks its last scale"
    assert measured["ams_kv"].facts.flops is None


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
            planned = [*map(Prepared.of, expand(plans.load(str(tmp_path / "plan.toml"))))]
        bench = Bench.load(planned[0])
        bench.loaded = replace(bench.loaded, weights="random:0")  # so that no image is judged
        by_label = {p.case.label: run_case(p, bench)[0] for p in planned if p.case.role in ROLES and not p.unsupported_reason}
        assert all(outcome.ok for outcome in by_label.values()), {label: outcome.log for label, outcome in by_label.items()}
        return by_label

    with forgetting():
        plugins.load(folder / "dot.py")
        yield measure


def test_what_goes_at_the_end_of_a_line_is_gone(measure: Measure) -> None:
    by_label = measure(examples.plan_text('"linear"'))
    full, linear = by_label["full"].facts.kv_by_step, by_label["linear 1/2"].facts.kv_by_step
    assert full.tokens == linear.tokens == [4, 5, 8, 9, 12, 13, 16]
    assert full.live == [ENTRY * entries for entries in (4, 5, 8, 9, 12, 13, 16)], "one of the condition, and what was fed"
    assert linear.live == [ENTRY * entries for entries in (4, 5, 8, 5, 8, 5, 8)], "two lines and the condition, less one line"
    assert by_label["linear 1/2"].samples["kv_logical"] == [ENTRY * 9], "the fullest moment is before anything goes"


def test_a_scale_that_is_not_kept_is_not_counted(measured: dict[str, Outcome]) -> None:
    full, candidate = measured["baseline"], measured["ams_kv"]
    assert candidate.facts.kv_by_step.tokens == full.facts.kv_by_step.tokens
    assert candidate.facts.kv_by_step.live[0] == full.facts.kv_by_step.live[0]
    assert candidate.facts.kv_by_step.live[-2:] == [candidate.samples["kv_logical"][0]] * 2, "the last scale, which nobody reads"
    assert full.facts.kv_by_step.live[-2] > candidate.facts.kv_by_step.live[-2]


def test_places_that_stand_from_the_beginning_make_no_curve(measure: Measure) -> None:
    padded = measure(examples.plan_text('"streaming"', cells='engine = "reference"'))["full"]
    assert padded.samples["kv_logical"][0] > 0, "it does keep something"
    assert padded.facts.kv_by_step is None
