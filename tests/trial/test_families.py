"""Cases of next-scale, masked, bitwise and prompted models: bytes, computation, fidelity, and what is stored of their tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from safetensors.torch import load as read

from cachemark.cache.arena import Memory
from cachemark.cache.engines import Graph
from cachemark.cache.layout import Layout, squares
from cachemark.cache.masked_layout import MaskedLayout
from cachemark.contract.method import Method
from cachemark.core import seeds
from cachemark.core.result import Outcome
from cachemark.core.spec import Sampling
from cachemark.kit.capture import CpuGraphs
from cachemark.methods.ams_kv import AMSKV
from cachemark.methods.full import Full
from cachemark.methods.registry import METHODS
from cachemark.methods.window import Window
from cachemark.metrics.base import ImageBatch, MetricContext
from cachemark.metrics.caption_scores import CaptionScore, PromptScore
from cachemark.metrics.registry import image_metrics
from cachemark.models.catalogue.text_to_image import TINY_TEXTS as TEXTS
from cachemark.models.infinity import Infinity, InfinityConfig
from cachemark.models.mar import MAR, MARConfig
from cachemark.models.protocol import Loaded, ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.models.vision.bsq import bits_of
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.plans.schema import load
from cachemark.roofline.flops_budget import work
from cachemark.trial.child.bench import Bench, FullCacheOutput, Job
from cachemark.trial.child.judge import divergence, hashed, storable
from support import measuring
from support.examples import BATCH, CONFIG, short_plan
from support.measuring import run_case
from support.stages import forgetting
from support.tiny_models import BUILDS

Results = dict[str, tuple[Outcome, dict[str, bytes]]]
AMS_KV = '{ name = "ams_kv", demanding = [4] }'


def cases(folder: Path, cells: str, **more: Any) -> list[Prepared]:
    (folder / "plan.toml").write_text(short_plan(cells, **more), encoding="utf-8")
    return [Prepared.of(each, case=replace(each.case, repeats=1)) for each in expand(load(str(folder / "plan.toml")))]


def named(p: Prepared) -> str:
    return p.case.method if p.case.role == "candidate" else p.case.role


def test_a_method_may_stand_for_its_own_size(tmp_path: Path) -> None:
    planned = cases(tmp_path, f'model = "tiny-var"\nmethods = [{AMS_KV}, "window", "streaming"]\nbudgets = [{AMS_KV}]\n')
    entry = MODELS.get("tiny-var")
    share = Fraction(274 + 5 * 149, 6 * 274)
    candidates = {p.case.method: p.case for p in planned if p.case.role == "candidate"}
    assert {case.budget for case in candidates.values()} == {str(share)}
    entries = int(share * entry.shape(entry.presets["paper"], 2).cacheable)
    assert candidates["window"].parameters["B"] == candidates["streaming"].parameters["B"] == entries
    ours = AMSKV.build(candidates["ams_kv"].parameters)
    assert (ours.c_max, ours.c_min, ours.demanding) == (405, 149, [4])


@pytest.fixture(scope="module")
def scales(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The bundled model with two samples: the full cache and two candidates."""
    planned = cases(tmp_path_factory.mktemp("plan"), f'model = "tiny-var"\nmethods = [{AMS_KV}]\nbudgets = [{AMS_KV}]\n'
                    '[[cells]]\nbatch = 2\nmodel = "tiny-var"\nmethods = ["fewer_scales"]\nbudgets = ["1/2"]')
    first = {named(p): p for p in reversed(planned) if p.case.role in ("baseline", "candidate")}
    bench = Bench.load(first["baseline"])
    return {name: run_case(p, bench)[0] for name, p in first.items()}


def test_what_a_method_computes_and_keeps_is_written_down(scales: dict[str, Outcome]) -> None:
    outcome = scales["fewer_scales"]
    assert outcome.facts.true_ratio == pytest.approx(0.444, abs=1e-3)
    assert outcome.samples["flops"] == [sum(outcome.facts.flops.values())]
    assert outcome.facts.generated == 274 / 530
    assert outcome.facts.footnotes == ["It generates 7 of 8 scales, with 51.7% of the tokens; values of tokens are over these.",
                                       "It stores 47.4% of the full cache's entries."]
    assert outcome.samples["token_agreement"] == [1.0] * outcome.case.samples
    assert max(outcome.samples["psnr"]) < 40, "the image lacks its last scale"
    assert scales["ams_kv"].facts.flops is None
    full, candidate = (scales[name].facts.kv_by_step for name in ("baseline", "ams_kv"))
    assert candidate.tokens == full.tokens
    assert candidate.live[0] == full.live[0]
    assert candidate.live[-2:] == [scales["ams_kv"].samples["kv_logical"][0]] * 2, "the last scale, which nobody reads"
    assert full.live[-2] > candidate.live[-2]


@pytest.mark.usefixtures("dot")
def test_what_goes_at_the_end_of_a_line_is_gone_and_places_that_stand_from_the_beginning_make_no_curve(folder: Path) -> None:
    """Random weights, so that no image is judged."""
    planned = [p for p in measuring.planned(folder, '"linear"', weights=None, repeats=1) if p.case.role in ("baseline", "candidate")]
    padded = measuring.planned(folder, '"streaming"', weights=None, repeats=1, cells='engine = "reference"')[0]
    bench, entry = Bench.load(planned[0]), 2 * 2 * BATCH * CONFIG.layers * CONFIG.dim * 4  # K and V, both guidance rows, in fp32
    full, linear, whole = (run_case(p, bench)[0] for p in (*planned, padded))
    curves = full.facts.kv_by_step, linear.facts.kv_by_step
    assert curves[0].tokens == curves[1].tokens == [4, 5, 8, 9, 12, 13, 16]
    assert curves[0].live == [entry * entries for entries in (4, 5, 8, 9, 12, 13, 16)], "one of the condition, and what was fed"
    assert curves[1].live == [entry * entries for entries in (4, 5, 8, 5, 8, 5, 8)], "two lines and the condition, less one line"
    assert linear.samples["kv_logical"] == [entry * 9], "the fullest moment is before anything goes"
    assert whole.samples["kv_logical"][0] > 0
    assert whole.facts.kv_by_step is None


MASKED = MARConfig(32, (4, 4), 2, 2, 16, grid=4, channels=4, classes=10, buffer=2, steps=6, diffusion=(4,))
GUIDED = Sampling(cfg_scale=2.0, cfg_schedule="linear")
NAME = "mar-of-these-tests"


def shape(sampling: Sampling, batch: int) -> MaskedLayout:
    return MASKED.layout(range(batch), sampling)


def made(_: Request) -> Loaded:
    """A picture is 12 × 12: each token's first three numbers, as a patch of one color."""
    model = MAR(MASKED).initialise(3).eval().requires_grad_(False)

    def decode(tokens: torch.Tensor) -> torch.Tensor:
        picture = tokens[..., :3].transpose(1, 2).unflatten(2, (4, 4))
        return picture.repeat_interleave(3, 2).repeat_interleave(3, 3).tanh()

    return Loaded(model, decode, "weights/decoder", list(model.parameters()))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """The full model, its reference rows, fewer steps, and LazyMAR with a schedule that refreshes at every third pass."""
    lazy = '{ name = "lazymar", start = 1, period = 20, count = 12, extra = 0, layer = 1 }'
    with forgetting():
        MODELS.add(NAME)(ModelEntry(NAME, "mar", "masked", (4, 4), 10, shape, made, lambda _: "weights/decoder", {"paper": GUIDED}))
        planned = cases(tmp_path_factory.mktemp("plan"), f'model = "{NAME}"\nmethods = [{lazy}]\nbudgets = [1]\n'
                        f'[[cells]]\nbatch = 2\nmodel = "{NAME}"\nmethods = ["fewer_steps"]\nbudgets = ["3/4"]\n', samples=4)
        bench = Bench.load(planned[0])
        yield {named(p): run_case(p, bench) for p in planned}


def test_every_masked_case_has_its_figures_distances_and_flops(masked: Results) -> None:
    timed = {"latency", "latency_tokens", "tokens_per_s_first", "tokens_per_s_last", "kv_logical", "kv_allocated", "kv_workspace",
             "kv_state", "peak_memory", "flops"}
    alike = {"token_distance", "psnr", "ssim"}
    assert {name: set(outcome.samples) for name, (outcome, _) in masked.items()} == {
        "other_seeds": alike, "other_batch": alike | {"forced_distance"},
        **dict.fromkeys(("baseline", "lazymar", "fewer_steps"), timed | alike | {"forced_distance"}),
    }  # fmt: skip
    samples = {name: outcome.samples for name, (outcome, _) in masked.items()}
    assert set(samples["baseline"]["token_distance"]) == set(samples["baseline"]["forced_distance"]) == {0.0}
    # Means: random weights give tokens of any size, so rounding is of any size too, and how large depends on the processor.
    for name in ("lazymar", "fewer_steps"):
        assert mean(samples[name]["forced_distance"]) > 3 * mean(samples["other_batch"]["forced_distance"])
    assert min(samples["other_seeds"]["token_distance"]) > max(samples["lazymar"]["token_distance"])
    full, lazy = (read(masked[name][1]["tokens.safetensors"])["tokens"] for name in ("baseline", "lazymar"))
    assert full.shape == (4, 16, 4)
    assert full.dtype == torch.float32
    assert samples["lazymar"]["token_distance"] == pytest.approx((lazy - full).double().square().mean((1, 2)).sqrt().tolist())
    full = masked["baseline"][0].samples
    for name in ("lazymar", "fewer_steps"):
        outcome = masked[name][0]
        assert outcome.samples["flops"] == [sum(work(METHODS.get(name).build(outcome.case.parameters), shape(GUIDED, 2)).values())]
        assert outcome.facts.true_ratio == pytest.approx(outcome.samples["flops"][0] / full["flops"][0])
    assert full["kv_allocated"] == full["kv_state"] == full["kv_logical"] == [0.0]
    assert masked["lazymar"][0].samples["kv_allocated"][0] > 0


BITS = 40


def bitwise(method: Callable[[], Method] = Full, memory: Memory | None = None) -> Job:
    draw = torch.Generator().manual_seed(0)
    texts = [torch.randn(length, 128, generator=draw) for length in (2, 5)]
    config = InfinityConfig(2, 2, 32, chunks=1, scales=squares((1, 2, 3, 4)), width=BITS, text=128, longest=5)
    model = Infinity(config, texts).initialise(0).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter *= 6
    loaded = Loaded(model, lambda tokens: tokens[:, None, :9].float().view(-1, 1, 3, 3), "random:0/random:0", token_dtype=torch.int64)
    subset = seeds.Subset("four", list(range(4)), [0, 1, 1, 0])
    return Job(loaded, method, memory or Memory(), Sampling(cfg_scale=2.0, temperature=0.5), subset, 2, "cpu")


def test_tokens_of_many_bits_are_stored_captured_and_compared_as_a_whole() -> None:
    eager, recorded = bitwise(), bitwise(memory=Memory(engine=Graph(CpuGraphs())))
    for part in recorded.chunks():
        for _ in range(2):
            assert torch.equal(recorded.generate(part), eager.generate(part))
    given = bitwise()
    tokens = given.generate(slice(2))
    stored = storable(given, tokens)
    assert torch.equal(stored, tokens)
    assert int(bits_of(tokens, BITS)[..., 32:].sum()) > 0
    other = tokens.clone()
    other[0, 0] ^= 1 << (BITS - 1)
    assert hashed(storable(given, other)) != hashed(stored)
    assert storable(replace(given, loaded=replace(given.loaded, token_dtype=torch.int32)), other % 100).dtype is torch.int32
    full, cut, part = FullCacheOutput(bitwise()), bitwise(lambda: Window(B=9)), slice(0, 2)
    assert divergence(bitwise(), full).tolist() == [0, 0, 0, 0]
    shown: list[torch.Tensor] = []
    cut.generate(part, full.tokens[part], lambda _, logits: shown.append((logits / 0.5).softmax(-1)))
    p, q = full.log_probs(part).exp().double(), torch.cat(shown, 1).double()
    divergences = divergence(cut, full)
    assert divergences.shape == (4,)
    torch.testing.assert_close(divergences[:2], (p * (p / q).log()).sum((2, 3)).mean(1), rtol=1e-3, atol=1e-6)
    assert (divergences > 1e-3).all()


def prompted() -> Job:
    model = BUILDS["janus"]().initialise(0).eval().requires_grad_(False)
    model.decoder.embed_tokens.weight.mul_(50)
    loaded = Loaded(model, lambda tokens: tokens, "random:0/random:0", prompted=True)
    return Job(loaded, Method, Memory(), Sampling(cfg_scale=3.0), seeds.Subset("six", list(range(6)), [0, 1, 1, 1, 1, 0]), 2, "cpu")


def test_prompts_of_other_lengths_give_the_same_samples_and_models_without_are_not_asked() -> None:
    """The second batch has other lengths than the first, the third its lengths again, the rows the other way round."""
    cut = prompted()
    parts = list(cut.chunks())
    together = replace(cut, batch=6, memory=Memory()).generate(slice(6))
    assert torch.equal(torch.cat([cut.generate(part) for part in parts]), together)
    assert [cut._layout(part).condition for part in parts] == [(3, 7, 3, 7), (7, 7, 7, 7), (7, 3, 7, 3)]
    assert len(together.unique(dim=0)) > 3
    class OfClasses:
        def layout(self, seeds: Sequence[int], sampling: Sampling) -> Layout:
            return Layout("next-token", (1,) * len(seeds), 3, 3, 4, 4, 16, 1)

    loaded: Any = Loaded(OfClasses(), lambda tokens: tokens, "random:0")  # type: ignore[arg-type]
    assert replace(prompted(), loaded=loaded).layout.condition == (1,) * 6


@pytest.mark.slow
def test_a_trial_scores_images_by_their_prompts_and_says_what_these_were(tmp_path: Path) -> None:
    candidate = next(p for p in cases(tmp_path, 'model = "tiny-t2i"\nmethods = ["window"]\nbudgets = ["1/4"]') if named(p) == "window")
    figures = [name for name, cls in image_metrics().items() if issubclass(cls, CaptionScore)]
    bench = Bench.load(candidate)
    outcome, files = run_case(candidate, bench)
    assert outcome.ok
    assert {name: len(outcome.samples.get(name, ())) for name in figures} == dict.fromkeys(figures, 2)
    assert outcome.facts.grid_prompts == [TEXTS[label] for label in outcome.facts.grid_classes]
    assert "grid.png" in files
    tokens = read(files["tokens.safetensors"])["tokens"]
    images, labels = bench.loaded.decode(tokens), seeds.subset("s64", len(TEXTS)).labels[:2]
    again = PromptScore().prepared(MetricContext(prompts=TEXTS)).measure(ImageBatch(images, images, tokens, tokens, labels, labels))
    assert outcome.samples["prompt_score"] == again.tolist()
