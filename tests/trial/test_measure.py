"""One case in a loaded model, in this process: which values it gives, and that they are those of the definitions."""

import hashlib
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load
from torch.nn import functional

from cachemark.cache.arena import Memory
from cachemark.cache.kernels.plain import SDPA, WRITTEN_OUT
from cachemark.core import seeds
from cachemark.core.facts import Facts
from cachemark.core.result import Outcome, Status
from cachemark.core.spec import FORCED_SAMPLES, REFERENCE_SAMPLES, Case
from cachemark.core.units import METRICS
from cachemark.machine.load import STAT
from cachemark.metrics.base import Costs
from cachemark.plans.planned import Prepared
from cachemark.plans.reuse import KnownSeeds
from cachemark.trial.child import bench as benches, judge, measure
from cachemark.trial.child.bench import Bench, case_job
from cachemark.trial.child.measure import RANDOM
from support.examples import BATCH, CONFIG, REPEATS, SAMPLES, TOKENS, WARMUP, weights
from support.measuring import planned, run_case, run_side

pytestmark = pytest.mark.usefixtures("dot")
SPEED_ORDER = ("latency", "latency_tokens", "tokens_per_s_first", "tokens_per_s_last")
SPEED = set(SPEED_ORDER)
BYTES = {"kv_logical", "kv_allocated", "kv_workspace", "kv_state", "peak_memory"}
LIKENESS = {"token_agreement", "psnr", "ssim"}
Results = dict[str, tuple[Outcome, dict[str, bytes]]]
Patch = pytest.MonkeyPatch


def run_all(cases: list[Prepared], bench: Bench | None = None) -> Results:
    bench = bench or Bench.load(cases[0])
    return {p.case.label: run_case(p, bench) for p in cases}


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return run_all(planned(folder, cells='codecs = ["native", "int8"]'))


class Recorder:
    def __init__(self, generator: Any) -> None:
        self._generator, self.layout = generator, generator.layout
        self.calls: list[dict[str, Any]] = []

    def generate(self, labels: torch.Tensor, seeds: Any, method: Any, sampling: Any, memory: Any, **more: Any) -> torch.Tensor:
        self.calls.append({"labels": labels.tolist(), "seeds": list(seeds), "method": method, "memory": memory, **more})
        return self._generator.generate(labels, seeds, method, sampling, memory, **more)

    @property
    def seeds(self) -> list[int]:
        return [seed for call in self.calls for seed in call["seeds"]]

def recorded(cases: list[Prepared]) -> tuple[Bench, Recorder]:
    bench = Bench.load(cases[0])
    recorder = Recorder(bench.loaded.generator)
    bench.loaded = replace(bench.loaded, generator=recorder)
    return bench, recorder


def test_a_case_has_all_its_figures_and_artifacts_which_are_consistent_and_facts_say_what_they_rest_on(results: Results) -> None:
    """Speeds follow from one another; the full cache is exactly like itself, up to rounding in other batches, and others differ."""
    whole = SPEED | BYTES | LIKENESS | {"kl"}
    names = {"full": whole, "full (other seeds)": LIKENESS, "full (other batch)": LIKENESS | {"kl"}}  # KL needs the same seeds
    for label, (outcome, _) in results.items():
        assert (outcome.ok, outcome.unjudged, set(outcome.samples)) == (True, "", names.get(label, whole)), label
        for name, values in outcome.samples.items():
            assert len(values) == {"speed": REPEATS, "energy": REPEATS, "memory": 1, "fidelity": SAMPLES}[METRICS[name].kind], name
    for outcome, _ in results.values():
        for whole, tokens, first, last in zip(*(outcome.samples.get(n, ()) for n in SPEED_ORDER), strict=True):
            assert 0 < tokens < whole
            assert BATCH * TOKENS / 2 / first + BATCH * TOKENS / 2 / last == pytest.approx(tokens)
    full = results["full"][0].samples
    assert (full["token_agreement"], full["ssim"], full["psnr"], full["kl"]) == tuple([value] * SAMPLES for value in (1.0, 1.0, 60.0, 0.0))
    assert max(map(abs, results["full (other batch)"][0].samples["kl"])) < 1e-5
    assert min(results["streaming 1/2"][0].samples["kl"]) > 0
    assert len({results[label][0].output_hash for label in ("full", "full (other seeds)", "streaming 1/2")}) == 3
    streaming, h2o = results["streaming 1/2"][0].facts, results["h2o 1/2"][0].facts
    assert (streaming.kernel, h2o.kernel) == (SDPA.name, WRITTEN_OUT.name)
    assert streaming.true_ratio == h2o.true_ratio == 8 / 16
    assert "fused kernel" in h2o.quality_only
    assert streaming.quality_only is None
    assert results["full"][0].facts.true_ratio is None
    timed = (results[label][0] for label in ("full", "streaming 1/2"))
    assert {each.facts.other_load is not None for each in timed} == {STAT.exists()}, "the load of the machine is stated"
    for label, (outcome, files) in results.items():
        tokens = load(files["tokens.safetensors"])["tokens"]
        assert tokens.shape == (SAMPLES, TOKENS)
        assert hashlib.sha256(tokens.numpy().tobytes()).hexdigest() == outcome.output_hash
        assert ("grid.png" in files) == (outcome.case.role == "candidate"), label
    outcome, files = results["streaming 1/2"]
    tiles = SAMPLES + min(judge.FIXED, SAMPLES)  # the worst, of which there are fewer than asked for, then the first
    assert Image.open(io.BytesIO(files["grid.png"])).size == (16 * tiles, 16 * 2)
    subset = seeds.subset("s64", 10).first(SAMPLES)
    by_psnr = sorted(range(SAMPLES), key=lambda i: outcome.samples["psnr"][i])
    assert outcome.facts.grid_seeds == [subset.seeds[i] for i in [*by_psnr, *range(SAMPLES)]]
    assert outcome.facts.grid_classes == [subset.labels[i] for i in [*by_psnr, *range(SAMPLES)]]


@pytest.fixture
def untimed(monkeypatch: Patch) -> None:
    """Cases are judged alone."""
    monkeypatch.setattr(measure, "_costs", lambda planned, *_, **__: (Costs(planned.case.batch), Facts(), {}))


@pytest.mark.usefixtures("untimed")
def test_kl_is_the_mean_over_positions_at_the_temperature_and_without_truncation(folder: Path) -> None:
    """Along the full cache's own tokens, sample by sample, in float64, by torch's own function."""
    cases = planned(folder, '"streaming"', cells="sampling = { temperature = 0.5, top_k = 4 }")
    bench = Bench.load(cases[0])
    outcomes = run_all(cases, bench)
    tokens, subset = load(outcomes["full"][1]["tokens.safetensors"])["tokens"].long(), seeds.subset("s64", 10).first(SAMPLES)

    def log_probs(case: Case) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        job = benches.Job(bench.loaded, benches.method_factory(case), Memory("cpu"), case.sampling, subset, SAMPLES, "cpu")
        job.generate(slice(SAMPLES), forced=tokens, see=lambda _, logits: seen.append(logits))
        return (torch.cat(seen, 1).double() / 0.5).log_softmax(-1)

    full, streaming = (log_probs(planned.case) for planned in (cases[0], cases[3]))
    expected = functional.kl_div(streaming, full, log_target=True, reduction="none").sum(-1).mean(1)
    assert outcomes["streaming 1/2"][0].samples["kl"] == pytest.approx(expected.tolist(), abs=1e-6)
    assert expected.min() > 1e-4


ROWS, VECTOR = 2 * BATCH, CONFIG.head_dim * 4  # both rows of guidance; bytes of a key in fp32
PAIR = CONFIG.layers * ROWS * CONFIG.heads * 2  # keys and values of one entry, over layers, rows and heads


@pytest.mark.parametrize(("label", "logical", "workspace"), [
    ("full", PAIR * VECTOR * TOKENS, 0),  # the class and all tokens but the last
    ("streaming 1/2", PAIR * VECTOR * (1 + 8 + 1), 0),  # the class, B, and the one to be evicted
    ("full int8", PAIR * (CONFIG.head_dim + 4) * TOKENS, PAIR // CONFIG.layers * VECTOR * TOKENS)])  # one layer's, in fp32
def test_bytes_are_those_of_the_formula(label: str, logical: int, workspace: int, results: Results) -> None:
    samples = results[label][0].samples
    assert [samples[f"kv_{name}"] for name in ("logical", "workspace", "allocated")] == [[logical], [workspace], [logical + workspace]]
    assert samples["peak_memory"][0] > samples["kv_allocated"][0] + samples["kv_state"][0]


def test_the_reference_is_generated_once_and_that_of_the_batch_size_at_another_batch(folder: Path) -> None:
    cases = planned(folder)
    bench, recorder = recorded(cases)
    run_case(cases[0], bench)
    assert len(recorder.calls) == WARMUP + REPEATS + 2 * SAMPLES // BATCH  # timing; reference and KL
    recorder.calls.clear()
    run_case(cases[1], bench)
    subset = seeds.subset("s64", 10).first(SAMPLES)
    assert [label for call in recorder.calls for label in call["labels"]] == subset.labels
    assert not {*recorder.seeds} & {*subset.seeds}
    recorder.calls.clear()
    run_case(cases[3], bench)
    assert len(recorder.calls) == 2 * (WARMUP + REPEATS) + 2 * SAMPLES // BATCH  # the full cache is timed beside the side again
    for batch, other in ((4, [2, 2]), (3, [1] * 4)):
        cases = planned(folder, batch=batch)
        bench, recorder = recorded(cases)
        bench.reference(cases[2].case, case_job(cases[2].case, bench))
        recorder.calls.clear()
        outcome, _ = run_case(cases[2], bench)
        assert [len(c["seeds"]) for c in recorder.calls] == other * 2  # free-running, then forced
        assert sum(c.get("forced") is not None for c in recorder.calls) == len(other)
        assert len(outcome.samples["token_agreement"]) == SAMPLES


@pytest.mark.usefixtures("untimed")
def test_a_row_of_few_samples_runs_the_whole_batch_of_the_stored_baseline(folder: Path, tmp_path: Path) -> None:
    full, rows = planned(folder)[0], list[int]()
    first, resumed = Bench.load(full), Bench.load(full, rows.append)
    outcome, artifacts = run_case(full, first)
    (file := tmp_path / "tokens").write_bytes(artifacts["tokens.safetensors"])
    known = KnownSeeds("source", str(file), outcome.output_hash, SAMPLES, BATCH, [])
    log_probs = resumed.reference(full.case, case_job(full.case, resumed).first(1), known).log_probs(slice(0, 1))
    assert sum(rows) == BATCH
    assert torch.equal(log_probs, first.reference(full.case, case_job(full.case, first).first(1)).log_probs(slice(0, 1)))


def test_random_weights_are_timed_but_not_judged_and_what_is_not_finite_is_neither(folder: Path, request: pytest.FixtureRequest) -> None:
    by_label = run_all(planned(folder, weights=None, repeats=1))
    assert set(by_label) == {"full", "streaming 1/2", "h2o 1/2"}
    for outcome, files in by_label.values():
        assert (outcome.ok, outcome.unjudged, outcome.output_hash, files) == (True, RANDOM, "", {})
        assert set(outcome.samples) == SPEED | BYTES
    request.getfixturevalue("untimed")
    for spoilt in ("weights", "images"):
        file = weights(folder / "spoilt.safetensors", value=float("nan") if spoilt == "weights" else None)
        cases = planned(folder, '"streaming"', weights=file)
        bench, sides = Bench.load(cases[0]), []
        if spoilt == "images":
            decode = bench.loaded.decode
            bench.loaded = replace(bench.loaded, decode=lambda tokens, decode=decode: decode(tokens) * torch.inf)
            sides = [run_side(cases[0], bench)]
        for outcome, files in (*run_all(cases, bench).values(), *sides):
            assert (outcome.status, outcome.samples, files) == (Status.NAN_OUTPUT, {}, {})
            assert "NaN" in outcome.log or spoilt == "images"


def test_partial_batches_masks_and_dropped_probabilities_change_nothing(
        folder: Path, results: Results, monkeypatch: Patch, request: pytest.FixtureRequest) -> None:
    full, _ = run_case(case := planned(folder, '"full"', repeats=1, cells='engine = "reference"')[0], Bench.load(case))
    places = 24  # the class and 16 tokens, rounded up to eights
    assert (full.samples["kv_allocated"], full.samples["token_agreement"]) == ([PAIR * VECTOR * places], [1.0] * SAMPLES)
    assert ("mask" in full.facts.kernel, max(full.samples["kl"]) < 1e-6) == (True, True)
    request.getfixturevalue("untimed")
    by_label = run_all(planned(folder, '"streaming"', batch=3, samples=5))
    for outcome, files in by_label.values():
        assert outcome.ok
        assert len(outcome.samples["psnr"]) == 5
        assert load(files["tokens.safetensors"])["tokens"].shape == (5, TOKENS)
    assert by_label["full"][0].samples["kl"] == [0.0] * 5
    monkeypatch.setattr(benches, "KEPT_BYTES", 0)
    again = run_all(planned(folder, '"streaming"'))
    for label in ("full", "full (other batch)", "streaming 1/2"):
        assert again[label][0].samples["kl"] == pytest.approx(results[label][0].samples["kl"], abs=1e-6)


@pytest.mark.usefixtures("untimed")
def test_reference_rows_and_the_full_cache_s_own_tokens_take_the_samples_that_a_plan_gives_them(folder: Path) -> None:
    """In any order, and the reference of the candidates is made once."""
    few = [replace(p, case=replace(p.case, evaluation={REFERENCE_SAMPLES: 3, FORCED_SAMPLES: 2})) for p in planned(folder, '"streaming"')]
    bench, recorder = recorded(few)
    by_role = {p.case.role: run_case(p, bench)[0] for p in (few[1], few[0], few[2], few[3])}
    observed = [c for c in recorder.calls if c.get("see") is not None and c.get("forced") is None]
    assert sum(len(c["seeds"]) for c in observed) == 3 + SAMPLES, "of the different-seed reference, which came first, then of all"
    lengths = {role: {name: len(values) for name, values in outcome.samples.items() if name in ("token_agreement", "kl", "psnr")}
               for role, outcome in by_role.items()}
    everything = {"token_agreement": SAMPLES, "psnr": SAMPLES}
    assert lengths == {"other_seeds": {"token_agreement": 3, "psnr": 3}, "baseline": everything | {"kl": 2},
                       "other_batch": {"token_agreement": 3, "psnr": 3, "kl": 2}, "candidate": everything | {"kl": 2}}
    whole = {outcome.case.role: outcome for outcome, _ in run_all(planned(folder, '"streaming"')).values()}
    assert by_role["other_batch"].samples["kl"] == pytest.approx(whole["other_batch"].samples["kl"][:2], abs=1e-6)
    assert by_role["candidate"].samples["kl"] == pytest.approx(whole["candidate"].samples["kl"][:2], abs=1e-6)
