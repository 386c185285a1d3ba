"""What every training task owes: a killed run ends as an uninterrupted one, a step has its own data, everything is trained, and the file
says on what."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cachemark.models import janus
from cachemark.models.janus import JanusConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.llamagen import LlamaGenConfig
from cachemark.models.mar import MARConfig
from cachemark.models.tiny import tiny_kl, tiny_msvq, tiny_vq
from cachemark.models.tiny.captions import VOCABULARY, WordTokenizer
from cachemark.models.tiny.tiny_features import FeaturesConfig
from cachemark.models.tiny.tiny_kl import TinyKLConfig
from cachemark.models.tiny.tiny_msvq import TinyMSVQConfig
from cachemark.models.tiny.tiny_vq import TinyVQConfig
from cachemark.models.var import VARConfig
from tools.train import caption_scene, generators, scene
from tools.train.captioned import CaptionedTask, ReaderTask
from tools.train.continuous import LatentsTask, MaskedTask
from tools.train.feature_network import FeaturesTask
from tools.train.generators import GeneratorTask, ScalesTask
from tools.train.loops import TrainingRun, TrainingTask, train
from tools.train.tokenizers import CodesTask, DecoderTask, ScaleCodesTask

pytestmark = pytest.mark.usefixtures("quick")
VQ, MSVQ = TinyVQConfig(codes=8, channels=2, width=16, blocks=1), TinyMSVQConfig(codes=8, channels=4, width=16, blocks=1)
KL, FEATURES = TinyKLConfig(channels=4, width=16, blocks=1), FeaturesConfig(width=16, squeezed=4, features=16)
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
LOADERS: dict[str, Callable[[Path], Any]] = {"vq": tiny_vq.load, "msvq": tiny_msvq.load, "kl": tiny_kl.load}
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


@pytest.mark.parametrize("name", ["tiny-llamagen", "tiny-t2i"])
def test_one_label_in_ten_is_left_out(name: str, coders: Coders, monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = TASKS[name](coders, 0)
    labels_fed: list[Any] = []
    teacher, generator = task.model.teacher, draws()
    monkeypatch.setattr(task.model, "teacher", lambda labels, codes: labels_fed.extend(labels) or teacher(labels, codes))
    for step in range(100):
        task.loss(step % generators.CHUNK, generator)
    if name == "tiny-llamagen":
        missing = [label for label in labels_fed if label == LLAMAGEN.classes]
    else:
        words = WordTokenizer()
        pad = words.special(janus.PAD)
        missing = [row for row in labels_fed if pad in row]
        assert all(row == janus.unconditional(row, pad) for row in missing)
        assert all(row[-1] == words.special(janus.IMAGE) for row in labels_fed)
    assert 0.03 < len(missing) / len(labels_fed) < 0.2


@pytest.mark.parametrize(("name", "frozen"), [
    ("tiny-vq-codes", ("codebook",)), ("tiny-msvq", ("quantizer.embedding.weight",)), ("tiny-kl", ()), ("tiny-features", ()),
])  # fmt: skip
def test_the_loss_reaches_all_but_the_codebook(name: str, frozen: tuple[str, ...], coders: Coders) -> None:
    task = TASKS[name](coders, 0)
    task.loss(0, draws()).backward()
    state = dict(task.model.named_parameters()) | {key: getattr(task.model, key) for key in frozen if key == "codebook"}
    reached = {key for key, parameter in state.items() if parameter.grad is not None and parameter.grad.abs().sum() > 0}
    assert reached >= {key for key, parameter in task.model.named_parameters() if parameter.dim() > 1 and key not in frozen}
    assert not reached & set(frozen)
    if name == "tiny-kl":
        assert task.model.encoder[-1].bias.grad[KL.channels :].abs().min() > 0, "the variance is learned too"
    if name == "tiny-features":
        assert not torch.equal(task.model.centre, torch.zeros(16))
        assert not torch.equal(task.model.deviation, torch.ones(16))
