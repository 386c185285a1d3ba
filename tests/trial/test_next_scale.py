"""Plans over next-scale models, and one of them measured: bytes, halves, fidelity, and what the full cache's profile says."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from cachemark.cache.layout import Layout
from cachemark.core.result import Outcome
from cachemark.methods.ams_kv import AMSKV
from cachemark.models.registry import MODELS
from cachemark.plans.expand import Planned, expand
from cachemark.plans.schema import Plan, load
from cachemark.trial.child.bench import Bench
from support.examples import short_plan
from support.measuring import run_case

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
    """The bundled model with two samples: the full cache, its reference rows and three candidates."""
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    table = '{ name = "ams_kv", demanding = [4] }'
    path.write_text(short_plan(f'model = "tiny-var"\nmethods = [{table}]\nbudgets = [{table}]\n'
                               '[[cells]]\nbatch = 2\nmodel = "tiny-var"\nmethods = ["fewer_scales"]\nbudgets = ["1/2"]'))  # fmt: skip
    planned: list[Planned] = expand(load(str(path)))
    bench = Bench.load(planned[0])
    return {p.case.label.partition(" ")[0] if p.case.role == "candidate" else p.case.role: run_case(p, bench)[0] for p in planned}


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


def test_full_against_itself_is_exact_and_a_candidate_is_not(measured: dict[str, Outcome]) -> None:
    assert set(measured["baseline"].samples["kl"]) == {0.0}
    assert max(measured["other_batch"].samples["kl"]) < 1e-6
    assert min(measured["ams_kv"].samples["kl"]) > 1e-6
