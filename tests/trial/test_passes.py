"""Cases under a decoder and of the graph engine: the full cache's tokens, the values of these, and an error where tokens are others."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cachemark.cache.engines import EAGER, Graph
from cachemark.cache.kernels import table
from cachemark.cache.kernels.mass import MASS
from cachemark.cache.kernels.plain import WRITTEN_OUT
from cachemark.core.errors import Unsupported
from cachemark.core.facts import CapturedPasses, Facts
from cachemark.core.limits import Rates
from cachemark.core.result import Outcome, Status
from cachemark.core.units import METRICS
from cachemark.decoders.jacobi import Jacobi
from cachemark.kit.capture import CpuGraphs
from cachemark.models import costs
from cachemark.plans import expand as expansion, schema as plans
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.trial.child import bench as benches, measure
from support import measuring
from support.examples import BATCH, CONFIG, REPEATS, SAMPLES, TOKENS, short_plan
from support.measuring import run_case

pytestmark = pytest.mark.usefixtures("dot")
DECODERS = 'decoders = [{ name = "jacobi", window = 8 }]'
RATES = Rates(bandwidth=1e10, peak_flops=1e11)


def planned(folder: Path, cells: str = DECODERS, methods: str = '"full"', **more: Any) -> dict[str, Prepared]:
    return {p.case.label: replace(p, rates=RATES) for p in measuring.planned(folder, methods, cells=cells, **more)}


def loaded(cases: dict[str, Prepared]) -> benches.Bench:
    bench = benches.Bench.load(cases["full"])
    bench.entry = replace(bench.entry, parameter_counts=partial(costs.llamagen, CONFIG, lambda: None))
    return bench


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Outcome]:
    cases = planned(folder, 'decoders = ["sequential", { name = "jacobi", window = 8 }]\ncodecs = ["native", "int8"]')
    bench = loaded(cases)
    return {label: run_case(p, bench)[0] for label, p in cases.items()}


def test_it_has_the_full_cache_s_tokens_and_the_figures_of_its_passes(results: dict[str, Outcome]) -> None:
    jacobi, full = results["full + jacobi 8"], results["full"]
    assert jacobi.ok, jacobi.log
    assert (set(jacobi.samples["token_agreement"]), jacobi.output_hash) == ({1.0}, full.output_hash)
    assert results["full int8 + jacobi 8"].output_hash == results["full int8"].output_hash, "exact beside every codec"
    assert jacobi.samples["kv_state"][0] > full.samples["kv_state"][0]
    assert jacobi.facts.different_kernel
    assert (jacobi.facts.decoder.rows, jacobi.facts.redrawn, jacobi.facts.slope) == ("together", 1.0, None)
    assert {results[label].facts.redrawn for label in ("full", "full int8 + jacobi 8")} == {None}, "int8 rounds too"
    passes, rejected = jacobi.samples["passes"], jacobi.samples["drafts_rejected"]
    timed = max(REPEATS, SAMPLES // BATCH)
    assert len(passes) == len(rejected) == timed * BATCH
    assert all(1 + -(-(TOKENS - 1) // 8) <= each < TOKENS for each in passes)
    again = SAMPLES // BATCH * BATCH
    assert passes[:BATCH] == passes[again : again + BATCH], "the first batch comes again after the last one"
    rate = jacobi.facts.tokens_per_pass
    assert rate.least <= rate.mean <= rate.most
    assert rate.mean == pytest.approx(sum(TOKENS / each for each in passes) / len(passes))
    assert len(jacobi.samples["flops"]) == timed
    assert not {"passes", "drafts_rejected", "flops"} & full.samples.keys()
    assert len(jacobi.samples["latency"]) == len(jacobi.facts.full_beside) == timed
    assert jacobi.facts.limit.by["attention"] < full.facts.limit.by["attention"], "keys are read in fewer passes"


def test_what_looks_past_a_line_is_exact_and_a_decoder_of_other_tokens_is_not_compared(
        folder: Path, results: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = '{ name = "jacobi", window = 8 }, { name = "jacobi", window = 8, look_ahead = true }'
    cases = planned(folder, f'decoders = ["sequential", {drawn}]', '"linear"', repeats=1)
    bench = loaded(cases)
    own, near, far = (run_case(cases[f"linear 1/2{beside}"], bench)[0] for beside in ("", " + jacobi 8", " + jacobi 8 ahead"))
    assert far.ok, far.log
    assert own.output_hash == near.output_hash == far.output_hash
    for bytes_held in ("kv_logical", "kv_allocated"):
        sizes = [one.samples[bytes_held][0] for one in (own, near, far)]
        assert sizes[0] == sizes[1] < sizes[2] <= sizes[0] * (TOKENS // 2 + 1 + 7) / (TOKENS // 2 + 1)
    assert far.facts.limit is not None
    monkeypatch.setattr(measure, "counted", lambda _: ({}, Facts()))
    for name, options, keeps, note in (("sjd", "", "distribution", "differ from them"), ("scd", "", "distribution", "differ from them"),
                                       ("sjd", ", group = 14", "", "do not follow the distribution")):
        case = planned(folder, f'decoders = [{{ name = "{name}", window = 8{options} }}]', repeats=1)[f"full + {name} 8"]
        outcome, files = run_case(case, bench)
        assert outcome.ok, outcome.log
        assert outcome.output_hash != results["full"].output_hash
        assert not {"token_agreement", "psnr", "ssim"} & outcome.samples.keys()
        assert max(outcome.samples["kl"]) < 1e-6, "a window's logits are those of single tokens"
        assert outcome.facts.decoder.keeps == keeps
        assert any(note in footnote for footnote in outcome.facts.footnotes)
        assert outcome.facts.tokens_per_pass.mean > 1
        assert files["grid.png"]


def test_other_tokens_in_fp32_are_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that keeps a draft which it has not drawn."""
    judge = Jacobi.judge

    def lenient(self: Jacobi, known: int, logits: torch.Tensor, tokens: torch.Tensor) -> int:
        drafts = tokens[:, known : known + logits.size(1) - 1].clone()
        kept = judge(self, known, logits, tokens)
        if kept < logits.size(1) and known > 2:
            tokens[:, known : known + kept] = torch.cat((drafts, tokens[:, known + drafts.size(1) :]), 1)[:, :kept]
        return kept

    monkeypatch.setattr(Jacobi, "judge", lenient)
    cases = planned(folder, repeats=1)
    outcome = run_case(cases["full + jacobi 8"], loaded(cases))[0]
    assert (outcome.status, outcome.samples) == (Status.ERROR, {})
    assert "of the tokens equal sequential decoding's" in outcome.log


def engine_cases(folder: Path, name: str, device: str = "cpu") -> list[Prepared]:
    return measuring.planned(folder, device=device, repeats=1, cells=f'engine = "{name}"')


def test_without_a_cuda_device_every_case_says_so_and_with_one_a_method_that_decides_on_the_host(folder: Path, tmp_path: Path) -> None:
    cases = engine_cases(folder, "graph")
    assert len(cases) > 3
    for case in cases:
        with pytest.raises(Unsupported, match="CUDA graphs"):
            run_case(case, benches.Bench.load(case))
    assert not any(p.unsupported_reason for p in engine_cases(folder, "graph", "cuda"))
    assert not any(p.unsupported_reason for p in engine_cases(folder, "eager"))
    online = '{ name = "ams_kv", demanding = [1], decide = "online" }'
    (tmp_path / "plan.toml").write_text(short_plan(f'model = "tiny-var"\nmethods = [{online}]\nbudgets = ["ams_kv"]\nengine = "graph"'))
    (candidate,) = (p for p in expand(plans.load(str(tmp_path / "plan.toml")), "cuda") if p.case.method == "ams_kv")
    assert "decides on the host" in candidate.unsupported_reason


@pytest.mark.slow
def test_images_are_those_of_the_eager_engine_and_recording_has_its_cost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expansion, "refused", lambda *_: "")
    monkeypatch.setattr(benches, "engine", lambda name, device: Graph(CpuGraphs()) if name == "graph" else EAGER)
    outcomes: dict[str, dict[str, Outcome]] = {}
    for name in ("eager", "graph"):
        cases = [p for p in engine_cases(folder, name) if p.case.role in ("baseline", "candidate")]
        bench = benches.Bench.load(cases[0])
        outcomes[name] = {p.case.label: run_case(p, bench)[0] for p in cases}
    for label, graph in outcomes["graph"].items():
        eager = outcomes["eager"][label]
        assert (graph.ok, graph.output_hash) == (True, eager.output_hash)
        exact = [name for name in eager.samples if METRICS[name].deterministic]
        assert {name: graph.samples[name] for name in exact} == {name: eager.samples[name] for name in exact}
        assert graph.samples.keys() - eager.samples.keys() == {"graph_pool", "capture_seconds"}
        assert min(graph.samples["graph_pool"][0], graph.samples["capture_seconds"][0]) > 0
        assert graph.samples["peak_memory"][0] > graph.samples["kv_allocated"][0]
        # the numbers 0 … budget of live entries, and the condition's pass
        assert graph.facts.graph == CapturedPasses(captured=TOKENS if label == "full" else TOKENS // 2 + 2, missed=0)
        assert eager.facts.graph is None
    assert outcomes["graph"]["h2o 1/2"].facts.quality_only is not None


def test_a_fused_kernel_with_mass_is_compared_at_its_price(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "TABLE", (replace(WRITTEN_OUT, name=MASS.name, fused=True), *table.TABLE))
    cases = {p.case.label: p for p in engine_cases(folder, "eager")}
    bench = benches.Bench.load(cases["full"])
    h2o, full = (run_case(cases[label], bench)[0].facts for label in ("h2o 1/2", "full"))
    assert (h2o.kernel, h2o.quality_only) == (MASS.name, None)
    assert MASS.name in str(h2o.different_kernel)
    assert full.different_kernel is None
