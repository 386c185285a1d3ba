"""What every training task owes: a killed run ends as an uninterrupted one, a step has its own data, everything is trained, and the file
says on what."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from cachemark.core.errors import Unsupported
from cachemark.metrics.color_consistency import matching_colors
from cachemark.metrics.compute.distribution import distribution
from cachemark.metrics.compute.extractor import Extractor
from cachemark.metrics.compute.image_features import ImageFeatures, RealImages
from cachemark.models import checkpoints
from cachemark.models.catalogue.next_token import TINY_DECODER
from cachemark.models.janus import JanusConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.llamagen import LlamaGenConfig
from cachemark.models.mar import MARConfig
from cachemark.models.tiny.captions import VOCABULARY
from cachemark.models.tiny.networks import FEATURE_WEIGHTS, FeaturesConfig
from cachemark.models.tiny.tokenizers import KL_WEIGHTS, MSVQ_WEIGHTS, VQ_WEIGHTS, Sizes, TinyMSVQConfig, TinyVQConfig
from cachemark.models.var import VARConfig
from cachemark.models.weights import packaged
from metrics.toys import drawn, reference
from tools.train import caption_scene, generators, loops, scene
from tools.train import feature_network as features
from tools.train.__main__ import train as train_command
from tools.train.captioned import CaptionedTask, ReaderTask
from tools.train.continuous import READ, WIDE, LatentsTask, MaskedTask
from tools.train.feature_network import FeaturesTask, corrupted, real_floor, real_scenes, write_reference
from tools.train.generators import GeneratorTask, ScalesTask
from tools.train.loops import TrainingRun, TrainingTask, generator_of, train
from tools.train.muon import Muon
from tools.train.scene import scenes
from tools.train.tokenizers import CodesTask, DecoderTask, ScaleCodesTask

pytestmark = pytest.mark.usefixtures("quick")
VQ, MSVQ = TinyVQConfig(codes=8, channels=2, width=16, blocks=1), TinyMSVQConfig(codes=8, channels=4, width=16, blocks=1)
KL, FEATURES = Sizes(channels=4, width=16, blocks=1), FeaturesConfig(width=16, squeezed=4, features=16)
LLAMAGEN = LlamaGenConfig(layers=1, heads=2, dim=32, vocab=8, classes=10, grid=16)
CAPTIONED = JanusConfig(LlamaConfig(1, 2, 32, 48, len(VOCABULARY)), codes=8, code_dim=2, grid=16)
VAR = VARConfig(depth=2, heads=2, dim=32, sides=MSVQ.sides, vocab=8, classes=10, width=4)
MAR = MARConfig(dim=32, depth=(1, 1), heads=2, head_depth=1, head_width=16, channels=4, classes=10, buffer=2, steps=4, diffusion=(1,) * 4)

Coders = dict[str, Path]
TASKS: dict[str, Callable[[Coders, int], TrainingTask]] = {
    "tiny-vq-codes": lambda coders, seed: CodesTask(seed, config=VQ, batch=2),
    "tiny-vq": lambda coders, seed: DecoderTask(coders["vq"], seed, batch=2),
    "tiny-msvq": lambda coders, seed: ScaleCodesTask(seed, config=MSVQ, batch=2),
    "tiny-kl": lambda coders, seed: LatentsTask(seed, config=KL, batch=2),
    "tiny-features": lambda coders, seed: FeaturesTask(seed, config=FEATURES, batch=4),
    "tiny-reader": lambda coders, seed: ReaderTask(coders["vq"], seed, batch=8),
    "tiny-llamagen": lambda coders, seed: GeneratorTask(coders["vq"], seed, config=LLAMAGEN, batch=2),
    "tiny-var": lambda coders, seed: ScalesTask(coders["msvq"], seed, config=VAR, batch=2),
    "tiny-t2i": lambda coders, seed: CaptionedTask(coders["vq"], seed, config=CAPTIONED, batch=2),
    "tiny-mar": lambda coders, seed: MaskedTask(coders["kl"], seed, config=MAR, batch=2),
}
LANGUAGES = {"tiny-reader": "vq", "tiny-llamagen": "vq", "tiny-var": "msvq", "tiny-t2i": "vq", "tiny-mar": "kl", "tiny-vq": "vq"}
LOADERS: dict[str, Callable[[Path], Any]] = {"vq": VQ_WEIGHTS.load, "msvq": MSVQ_WEIGHTS.load, "kl": KL_WEIGHTS.load}
PREDICTORS, OF_CODES = ("tiny-llamagen", "tiny-var", "tiny-t2i", "tiny-mar"), ("tiny-llamagen", "tiny-var", "tiny-t2i")


@pytest.fixture(scope="module")
def coders(quick: None, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Coders:
    """Weights of tokenizers trained for a step."""
    folder = tmp_path_factory.mktemp("coders")
    tasks = {"msvq": ScaleCodesTask(config=MSVQ, batch=2), "kl": LatentsTask(config=KL, batch=2)}
    return {"vq": tokenizer, **{name: train(task, TrainingRun(folder, 1, threads=1)) for name, task in tasks.items()}}


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", TASKS)
def test_a_killed_run_ends_as_an_uninterrupted_one(name: str, coders: Coders, ends_as_uninterrupted: Callable[..., Path]) -> None:
    weights = ends_as_uninterrupted(lambda: TASKS[name](coders, 0), 4)
    about = json.loads(weights.with_suffix(".json").read_text())
    assert weights.stem == about["model"].replace("tiny-vq", name)
    assert about["data"] == (caption_scene if name in ("tiny-t2i", "tiny-reader") else scene).VERSION
    if name in LANGUAGES:
        coder = LANGUAGES[name]
        assert about["language"] == LOADERS[coder](coders[coder]).language


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_step_has_its_own_data_whatever_came_before(name: str, coders: Coders) -> None:
    first, second, other = (TASKS[name](coders, seed) for seed in (0, 0, 1))
    steps = (0, 1, generators.CHUNK - 1, generators.CHUNK, 2 * generators.CHUNK + 1)
    in_order = {step: first.fresh(step) for step in steps}  # type: ignore[attr-defined]
    for step in reversed(steps):
        assert all(map(torch.equal, in_order[step], second.fresh(step)))  # type: ignore[attr-defined]
    tokens = in_order[0][1]
    assert tokens.shape[:2] == (2, sum(side**2 for side in MSVQ.sides) if name == "tiny-var" else 256)
    for different in (in_order[1], in_order[generators.CHUNK], other.fresh(0)):  # type: ignore[attr-defined]
        assert not torch.equal(tokens, different[1])


@pytest.mark.parametrize("name", PREDICTORS)
def test_muon_takes_the_matrices_of_the_blocks_and_adam_the_rest(name: str, coders: Coders) -> None:
    task: Any = TASKS[name](coders, 0)
    trained = [parameter for optimiser in task.optimisers for group in optimiser.param_groups for parameter in group["params"]]
    modules = [task.model, *([task.reader] if name == "tiny-mar" else [])]
    assert sorted(map(id, trained)) == sorted(id(parameter) for module in modules for parameter in module.parameters())
    chosen = {id(parameter) for group in task.muon.param_groups for parameter in group["params"]}
    by_muon = {key for key, parameter in task.model.named_parameters() if id(parameter) in chosen}
    blocks = {key for key, parameter in task.model.named_parameters() if parameter.dim() == 2 and ("blocks." in key or "layers." in key)}
    assert by_muon == {key for key in blocks if not any(part in key for part in ("emb", "ada_lin", "adaLN", "final", "gen_aligner"))}
    assert by_muon


@pytest.mark.parametrize("name", OF_CODES)
def test_training_starts_from_uniform_predictions_and_lowers_the_loss(name: str, coders: Coders, tmp_path: Path) -> None:
    task = TASKS[name](coders, 0)
    before = task.validate()["nats_per_token"]
    assert before == pytest.approx(torch.tensor(8.0).log().item(), abs=1e-3)
    train(task, TrainingRun(tmp_path, 12, threads=1))
    assert task.validate()["nats_per_token"] < before - 0.02


def descend(task: LatentsTask | MaskedTask, steps: int) -> list[float]:
    """The losses of some updates at full learning rate."""
    losses = []
    for step in range(steps):
        loss = task.loss(step, generator_of(0, step))
        loss.backward()
        for optimiser in task.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.fixture(scope="module")
def kl_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(LatentsTask(config=KL, batch=2), TrainingRun(tmp_path_factory.mktemp("kl"), 2, threads=1))


@pytest.fixture
def masked(kl_tokenizer: Path) -> MaskedTask:
    return MaskedTask(kl_tokenizer, config=MAR, batch=2)


# -- the autoencoder --------------------------------------------------------------------------------------------------


def test_tokens_end_up_with_mean_0_and_variance_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.train.tokenizers.FOLLOW", 0.3)  # a few steps stand for the hundred of a real run
    task = LatentsTask(config=KL, batch=8)
    with torch.no_grad():
        for step in range(15):
            task.loss(step, draws(step))
        images = scenes(32, 5).images
        tokens, plain = task.model.encode(images, draws()).flatten(0, 1), task.model.moments(images)[0]
    assert (plain.std((0, 2, 3)) - 1).abs().max() > 0.3, "they have not by themselves"
    assert tokens.mean(0).abs().max() < 0.15
    assert (tokens.std(0) - 1).abs().max() < 0.15


# -- the masked model -------------------------------------------------------------------------------------------------
def test_the_model_learns_and_says_what_it_was_trained_on(masked: MaskedTask) -> None:
    before = masked.validate()["noise_mse"]
    assert before == pytest.approx(1.0, abs=0.02), "it starts from a prediction of zero"
    losses = descend(masked, 30)
    assert sum(losses[-5:]) < sum(losses[:5]) - 5 * READ * math.log(1 / 0.8), "a fifth of the read-out's error is gone"
    assert masked.validate()["noise_mse"] < 0.9 * before
    assert masked.metadata()["language"] == masked.tokenizer.language


def test_as_many_tokens_are_hidden_as_in_the_steps_of_a_generation(masked: MaskedTask) -> None:
    hidden = sorted(masked._masked(WIDE, generator_of(0, step)) for step in range(400))
    assert (hidden[0], hidden[-1]) == (8, 256)
    scheduled = [math.ceil(256 * math.cos(math.pi / 2 * (k + 0.5) / 20)) for k in range(20)][::-1]
    middles = [hidden[20 * k + 10] for k in range(20)]
    assert all(abs(a - b) < 16 for a, b in zip(scheduled, middles, strict=True)), "the schedule of twenty passes"


def task(seed: int = 0) -> FeaturesTask:
    return FeaturesTask(seed, config=FEATURES, batch=8)


def test_every_spoilt_picture_has_a_fault_and_the_rest_of_it_stays() -> None:
    images = scenes(256, 5).images
    bad = corrupted(images, draws())
    changed = (bad - images).abs().amax(1) > 0.05
    assert changed.flatten(1).any(1).float().mean() > 0.99
    assert changed.float().mean() < 0.7
    assert torch.equal(bad, corrupted(images, draws()))
    assert matching_colors(images).all()
    shares = matching_colors(bad).float().mean(0)
    assert ((shares > 0.2) & (shares < 0.95)).all(), "each region is corrupted now and then, and not always"


def test_the_reference_is_small_belongs_to_its_weights_and_holds_new_scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.train.feature_network.HELD_OUT", 8)
    monkeypatch.setattr("tools.train.feature_network.CHUNK", 60)
    monkeypatch.setattr("tools.train.feature_network.FLOORS", (40, 60))
    weights = train(task(), TrainingRun(tmp_path, 1, threads=1))
    path = write_reference(weights, count=120)
    extractor = Extractor(checkpoints.sha256(weights), lambda: FEATURE_WEIGHTS.load(weights))
    reference = RealImages.load(path, extractor.name)
    assert path.name == "tiny-features.reference.safetensors"
    assert (reference.extractor, reference.count, len(reference.features)) == (extractor.name, 120, 120)
    again = distribution(ImageFeatures.of(real_scenes(120), extractor), reference, kid=False, isc_splits=1)
    assert again["fid"] == pytest.approx(0, abs=1e-3)
    first = load_file(path)
    write_reference(weights, count=120)
    assert all(torch.equal(tensor, first[key]) for key, tensor in load_file(path).items())
    assert not torch.equal(real_scenes(8), real_scenes(8, purpose="held out"))


def test_the_floor_is_the_fid_of_other_real_images() -> None:
    real = reference()
    floor = real_floor(drawn(500, 9), real, 200)
    assert floor.value == distribution(drawn(500, 9).first(200), real, kid=False, isc=False, prc=False)["fid"] > 0
    with pytest.raises(Unsupported, match="200 of 200 images are in the reference itself"):
        real_floor(real.image_features, real, 200)
    with pytest.raises(Unsupported, match="501 images are needed"):
        real_floor(drawn(500, 9), real, 501)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon before 2.9")
def test_it_moves_as_torchs_own() -> None:
    generator = torch.Generator().manual_seed(3)
    ours = [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in ((32, 16), (16, 32), (16, 16))]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    muon, two = Muon(ours, lr=0.02, momentum=0.95), torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.0)
    start = [p.detach().clone() for p in ours]
    for _ in range(5):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        muon.step()
        two.step()
    for p, q, origin in zip(ours, theirs, start, strict=True):
        assert (p - q).norm() < 0.02 * (p - origin).norm()  # theirs iterates in bf16


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[loops.Task, loops.TrainingRun]]:
    """What the command asks the library to do, without doing it."""
    recorded: list[tuple[loops.Task, loops.TrainingRun]] = []

    def record(task: loops.Task, run: loops.TrainingRun) -> Path:
        recorded.append((task, run))
        return run.out / f"{task.name}.safetensors"

    monkeypatch.setattr(loops, "train", record)
    for name in ("keep_memory", "flush_denormals"):  # they would change the process that runs the tests
        monkeypatch.setattr(loops, name, lambda device: None)
    return recorded


def test_the_tokenizer_is_trained_in_two_stages(runs: list[tuple[loops.Task, loops.TrainingRun]], tmp_path: Path) -> None:
    shutil.copy(packaged(TINY_DECODER), tmp_path / "tiny-vq-codes.safetensors")  # what the first stage would have written
    done = CliRunner().invoke(train_command, ["tiny-vq", "--out", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output == f"{tmp_path / 'tiny-vq.safetensors'}\n"
    (codes, first), (decoder, second) = runs
    assert isinstance(codes, CodesTask)
    assert first == loops.TrainingRun(tmp_path, codes.steps, warmup=codes.warmup, decay=codes.decay)
    assert isinstance(decoder, DecoderTask)
    assert second == loops.TrainingRun(tmp_path, decoder.steps, warmup=decoder.warmup, decay=decoder.decay)


def test_the_feature_network_is_followed_by_its_reference(
    runs: list[tuple[loops.Task, loops.TrainingRun]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[Path, int, str]] = []
    monkeypatch.setattr(features, "write_reference", lambda weights, seed, *, device: written.append((weights, seed, device)))
    CliRunner().invoke(train_command, ["tiny-features", "--out", str(tmp_path), "--seed", "3"], catch_exceptions=False)
    ((task, run),) = runs
    assert isinstance(task, features.FeaturesTask)
    assert run == loops.TrainingRun(tmp_path, task.steps, seed=3, warmup=task.warmup, decay=task.decay)
    assert written == [(tmp_path / "tiny-features.safetensors", 3, "cpu")]
