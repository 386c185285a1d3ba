"""Plans over masked models, and one of them measured: computation instead of bytes, halves by steps, distances between vectors."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as read
from torch import Tensor

from cachemark.cache.masked_layout import MaskedLayout
from cachemark.core.result import Outcome
from cachemark.core.spec import Sampling
from cachemark.methods.registry import METHODS
from cachemark.metrics.base import ImageBatch
from cachemark.metrics.tokens import TokenDistance
from cachemark.models.mar import MAR, MARConfig
from cachemark.models.protocol import Loaded, ModelEntry, Request
from cachemark.models.registry import MODELS
from cachemark.plans.expand import expand
from cachemark.plans.planned import Prepared
from cachemark.plans.schema import Plan, load
from cachemark.roofline.flops_budget import work
from cachemark.trial.child.bench import Bench
from support.examples import short_plan
from support.measuring import run_case
from support.stages import forgetting

CONFIG = MARConfig(32, (4, 4), 2, 2, 16, grid=4, channels=4, classes=10, buffer=2, steps=6, diffusion=(4,))
SAMPLING = Sampling(cfg_scale=2.0, cfg_schedule="linear")
NAME = "mar-of-these-tests"
Results = dict[str, tuple[Outcome, dict[str, bytes]]]


def shape(sampling: Sampling, batch: int) -> MaskedLayout:
    return CONFIG.layout(range(batch), sampling)


def decode(tokens: Tensor) -> Tensor:
    """A picture of 12 × 12: each token's first three numbers, as a patch of one colour."""
    picture = tokens[..., :3].transpose(1, 2).unflatten(2, (4, 4))
    return picture.repeat_interleave(3, 2).repeat_interleave(3, 3).tanh()


def made(_: Request) -> Loaded:
    model = MAR(CONFIG).initialise(3).eval().requires_grad_(False)
    return Loaded(model, decode, "weights/decoder", list(model.parameters()))


@pytest.fixture(autouse=True, scope="module")
def _registered() -> Iterator[None]:
    with forgetting():
        entry = ModelEntry(NAME, "mar", "masked", (4, 4), 10, shape, made, lambda _: "weights/decoder", {"paper": SAMPLING})
        MODELS.add(NAME)(entry)
        yield


def plan(folder: Path, cells: str) -> Plan:
    (folder / "plan.toml").write_text(short_plan(f'model = "{NAME}"\n{cells}', samples=4), encoding="utf-8")
    return load(str(folder / "plan.toml"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The full model, its reference rows, fewer steps, and LazyMAR with a schedule that refreshes at every third pass."""
    lazy = '{ name = "lazymar", start = 1, period = 20, count = 12, extra = 0, layer = 1 }'
    cells = f'methods = [{lazy}]\nbudgets = [1]\n[[cells]]\nbatch = 2\nmodel = "{NAME}"\nmethods = ["fewer_steps"]\nbudgets = ["3/4"]\n'
    planned = [*map(Prepared.of, expand(plan(tmp_path_factory.mktemp("plan"), cells)))]
    bench = Bench.load(planned[0])
    return {p.case.method if p.case.role == "candidate" else p.case.role: run_case(p, bench) for p in planned}


def test_every_case_has_its_figures(results: Results) -> None:
    timed = {"latency", "latency_tokens", "tokens_per_s_first", "tokens_per_s_last", "kv_logical", "kv_allocated", "kv_workspace",
             "kv_state", "peak_memory", "flops"}
    alike = {"token_distance", "psnr", "ssim"}
    assert {name: set(outcome.samples) for name, (outcome, _) in results.items()} == {
        "baseline": timed | alike | {"forced_distance"}, "other_seeds": alike, "other_batch": alike | {"forced_distance"},
        "lazymar": timed | alike | {"forced_distance"}, "fewer_steps": timed | alike | {"forced_distance"},
    }  # fmt: skip


def test_the_full_model_is_at_no_distance_from_itself(results: Results) -> None:
    samples = results["baseline"][0].samples
    assert set(samples["token_distance"]) == set(samples["forced_distance"]) == {0.0}
    # Means: random weights give tokens of any size, so rounding is of any size too, and how large depends on the processor.
    itself = statistics.mean(results["other_batch"][0].samples["forced_distance"])
    for name in ("lazymar", "fewer_steps"):
        assert statistics.mean(results[name][0].samples["forced_distance"]) > 3 * itself
    assert min(results["other_seeds"][0].samples["token_distance"]) > max(results["lazymar"][0].samples["token_distance"])


def test_flops_are_those_of_the_method_and_the_full_model_keeps_nothing(results: Results) -> None:
    layout = shape(SAMPLING, 2)
    for name in ("lazymar", "fewer_steps"):
        outcome = results[name][0]
        method = METHODS.get(name).build(outcome.case.parameters)
        assert outcome.samples["flops"] == [sum(work(method, layout).values())]
        assert outcome.facts.true_ratio == pytest.approx(outcome.samples["flops"][0] / results["baseline"][0].samples["flops"][0])
    full = results["baseline"][0].samples
    assert full["kv_allocated"] == full["kv_state"] == full["kv_logical"] == [0.0]
    assert results["lazymar"][0].samples["kv_allocated"][0] > 0


def test_stored_tokens_are_the_vectors_that_were_judged(results: Results) -> None:
    full, lazy = (read(results[name][1]["tokens.safetensors"])["tokens"] for name in ("baseline", "lazymar"))
    assert full.shape == (4, 16, 4)
    assert full.dtype == torch.float32
    assert distance(lazy, full) == pytest.approx(results["lazymar"][0].samples["token_distance"])


def distance(tokens: torch.Tensor, full: torch.Tensor) -> list[float]:
    return list(TokenDistance().measure(ImageBatch(tokens, full, tokens, full, [], [])).tolist())


def test_distance_is_a_root_mean_square() -> None:
    zero = torch.zeros(2, 3, 2)
    assert distance(torch.stack((zero[0], zero[1] + 2)), zero) == [0.0, 2.0]
    assert distance(zero + torch.tensor([3.0, 4.0]), zero) == pytest.approx([12.5**0.5] * 2)
