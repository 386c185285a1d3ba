"""Cases of the graph engine: which plans have them, and that their values are those of the eager engine and two more.

There is no CUDA device here: an emulator stands in for CUDA graphs, below the same engine.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cachemark.cache.engines import EAGER, Graph
from cachemark.cache.kernels import table
from cachemark.cache.kernels.mass import MASS
from cachemark.cache.kernels.plain import FUSED, WRITTEN_OUT, fused
from cachemark.core.errors import Unsupported
from cachemark.core.facts import CapturedPasses
from cachemark.core.result import Outcome
from cachemark.core.units import METRICS
from cachemark.kit.capture import CpuGraphs
from cachemark.plans import expand as expansion
from cachemark.plans import schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.trial.child import bench as benches
from cachemark.trial.child.bench import Bench
from support import measuring
from support.examples import TOKENS
from support.measuring import run_case

pytestmark = pytest.mark.usefixtures("dot")


def planned(folder: Path, name: str, device: str = "cpu") -> list[Prepared]:
    return measuring.planned(folder, device=device, cells=f'engine = "{name}"')


def test_without_a_cuda_device_every_case_says_so(folder: Path) -> None:
    cases = planned(folder, "graph")
    assert len(cases) > 3
    for case in cases:
        with pytest.raises(Unsupported, match="CUDA graphs"):
            run_case(case, Bench.load(case))
    assert not any(p.unsupported_reason for p in planned(folder, "graph", "cuda"))
    assert not any(p.unsupported_reason for p in planned(folder, "eager"))


def test_a_method_that_decides_on_the_host_says_so(tmp_path: Path) -> None:
    text = """name = "online"
[[cells]]
model = "tiny-var"
methods = [{ name = "ams_kv", demanding = [1], decide = "%s" }]
budgets = ["ams_kv"]
engine = "%s"
"""
    bound = {}
    for decide in ("profile", "online"):
        for name in ("eager", "graph"):
            (tmp_path / "plan.toml").write_text(text % (decide, name))
            (candidate,) = (p for p in expand(plans.load(str(tmp_path / "plan.toml")), "cuda") if p.case.method == "ams_kv")
            bound[decide, name] = "decides on the host" in candidate.unsupported_reason
    assert bound == {("profile", "eager"): False, ("profile", "graph"): False, ("online", "eager"): False, ("online", "graph"): True}


@pytest.fixture(scope="module")
def outcomes(dot: Path) -> dict[str, dict[str, Outcome]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expansion, "refused", lambda *_: "")
        patch.setattr(benches, "engine", lambda name, device: Graph(CpuGraphs()) if name == "graph" else EAGER)
        by_engine = {}
        for name in ("eager", "graph"):
            cases = [p for p in planned(dot, name) if p.case.role in ("baseline", "candidate")]
            bench = Bench.load(cases[0])
            by_engine[name] = {p.case.label: run_case(p, bench)[0] for p in cases}
    return by_engine


@pytest.mark.slow
def test_images_and_bytes_are_those_of_the_eager_engine(outcomes: dict[str, dict[str, Outcome]]) -> None:
    assert outcomes["graph"].keys() == outcomes["eager"].keys()
    for label, graph in outcomes["graph"].items():
        eager = outcomes["eager"][label]
        assert (graph.status, graph.output_hash) == (eager.status, eager.output_hash)
        exact = [name for name in eager.samples if METRICS[name].deterministic]
        assert {name: graph.samples[name] for name in exact} == {name: eager.samples[name] for name in exact}


@pytest.mark.slow
def test_what_recording_costs_is_among_the_figures(outcomes: dict[str, dict[str, Outcome]]) -> None:
    for label in ("full", "streaming 1/2"):
        graph, eager = (outcomes[name][label] for name in ("graph", "eager"))
        assert graph.samples.keys() - eager.samples.keys() == {"graph_pool", "capture_seconds"}
        assert graph.samples["graph_pool"][0] > 0
        assert graph.samples["capture_seconds"][0] > 0
        assert graph.samples["peak_memory"][0] > graph.samples["kv_allocated"][0]
        # the numbers 0 … budget of live entries, and the condition's pass
        assert graph.facts.graph == CapturedPasses(captured=TOKENS if label == "full" else TOKENS // 2 + 2, missed=0)
        assert eager.facts.graph is None
    assert outcomes["graph"]["h2o 1/2"].facts.quality_only is not None


def test_a_fused_kernel_with_mass_is_compared_at_its_price(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "TABLE", (replace(WRITTEN_OUT, name=MASS.name, fused=True), *table.TABLE))
    cases = {p.case.label: p for p in planned(folder, "eager")}
    bench = Bench.load(cases["full"])
    h2o, full = (run_case(cases[label], bench)[0].facts for label in ("h2o 1/2", "full"))
    assert (h2o.kernel, h2o.quality_only) == (MASS.name, None)
    assert MASS.name in str(h2o.different_kernel)
    assert full.different_kernel is None


def test_on_a_cuda_device_the_written_out_formula_is_shut_out() -> None:
    before = torch.backends.cuda.math_sdp_enabled()
    with fused("cuda"):
        assert not torch.backends.cuda.math_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.math_sdp_enabled() is before
    assert "MATH" not in {backend.name for backend in FUSED}


def test_held_tensors_belong_to_one_case() -> None:
    kept = Graph(CpuGraphs())
    tensor = kept.hold("seeds", torch.tensor([1, 2]))
    assert kept.hold("seeds", torch.tensor([3, 4])) is tensor
    assert tensor.tolist() == [3, 4]
    with pytest.raises(ValueError, match="one engine serves one case"):
        kept.hold("seeds", torch.tensor([1]))
