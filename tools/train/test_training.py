"""Training of the bundled weights, in small: pinned data, runs that continue after a kill, and files that say what they hold."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from cachemark.models.janus import JanusConfig
from cachemark.models.llama import LlamaConfig
from cachemark.models.llamagen import LlamaGenConfig
from cachemark.models.mar import MARConfig
from cachemark.models.tiny.captions import AXES, VOCABULARY
from cachemark.models.tiny.networks import FeaturesConfig
from cachemark.models.tiny.tokenizers import KL_WEIGHTS, MSVQ_WEIGHTS, VQ_WEIGHTS, Sizes, TinyMSVQConfig, TinyVQConfig
from cachemark.models.var import VARConfig
from tools.train import caption_scene, scene
from tools.train.captioned import CaptionedTask, ReaderTask
from tools.train.continuous import LatentsTask, MaskedTask
from tools.train.feature_network import FeaturesTask
from tools.train.generators import GeneratorTask, ScalesTask
from tools.train.loops import TrainingRun, TrainingTask, train
from tools.train.tokenizers import CodesTask, DecoderTask, ScaleCodesTask

VQ, MSVQ = TinyVQConfig(codes=8, channels=2, width=16, blocks=1), TinyMSVQConfig(codes=8, channels=4, width=16, blocks=1)
KL, FEATURES = Sizes(channels=4, width=16, blocks=1), FeaturesConfig(width=16, squeezed=4, features=16)
LLAMAGEN = LlamaGenConfig(layers=1, heads=2, dim=32, vocab=8, classes=10, grid=16)
CAPTIONED = JanusConfig(LlamaConfig(1, 2, 32, 48, len(VOCABULARY)), codes=8, code_dim=2, grid=16)
VAR = VARConfig(depth=2, heads=2, dim=32, sides=MSVQ.sides, vocab=8, classes=10, width=4)
MAR = MARConfig(dim=32, depth=(1, 1), heads=2, head_depth=1, head_width=16, channels=4, classes=10, buffer=2, steps=4, diffusion=(1,) * 4)
STEPS = 4

Coders = dict[str, Path]
TASKS: dict[str, tuple[Callable[[Coders], TrainingTask], str]] = {  # the task, and the tokenizer whose language it speaks
    "tiny-vq-codes": (lambda coders: CodesTask(config=VQ, batch=2), ""),
    "tiny-vq": (lambda coders: DecoderTask(coders["vq"], batch=2), "vq"),
    "tiny-msvq": (lambda coders: ScaleCodesTask(config=MSVQ, batch=2), ""),
    "tiny-kl": (lambda coders: LatentsTask(config=KL, batch=2), ""),
    "tiny-features": (lambda coders: FeaturesTask(config=FEATURES, batch=4), ""),
    "tiny-reader": (lambda coders: ReaderTask(coders["vq"], batch=8), "vq"),
    "tiny-llamagen": (lambda coders: GeneratorTask(coders["vq"], config=LLAMAGEN, batch=2), "vq"),
    "tiny-var": (lambda coders: ScalesTask(coders["msvq"], config=VAR, batch=2), "msvq"),
    "tiny-t2i": (lambda coders: CaptionedTask(coders["vq"], config=CAPTIONED, batch=2), "vq"),
    "tiny-mar": (lambda coders: MaskedTask(coders["kl"], config=MAR, batch=2), "kl"),
}
DAILY = ("tiny-features", "tiny-llamagen", "tiny-mar")
LOADERS: dict[str, Callable[[Path], Any]] = {"vq": VQ_WEIGHTS.load, "msvq": MSVQ_WEIGHTS.load, "kl": KL_WEIGHTS.load}


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Few held-out scenes, and few encoded ahead."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("tokenizers", "generators", "feature_network"):
            patch.setattr(f"tools.train.{module}.HELD_OUT", 8)
        patch.setattr("tools.train.captioned.READ", 32)
        patch.setattr("tools.train.generators.CHUNK", 2)
        yield


@pytest.fixture(scope="module")
def coders(tmp_path_factory: pytest.TempPathFactory) -> Coders:
    """Weights of tokenizers trained for a step."""
    folder = tmp_path_factory.mktemp("coders")
    tasks = {"vq": CodesTask(config=VQ, batch=2), "msvq": ScaleCodesTask(config=MSVQ, batch=2), "kl": LatentsTask(config=KL, batch=2)}
    return {name: train(task, TrainingRun(folder, 1, threads=1)) for name, task in tasks.items()}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in DAILY else [pytest.mark.slow]) for name in TASKS])
def test_a_killed_run_ends_as_an_uninterrupted_one(
    name: str, coders: Coders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    make, coder = TASKS[name]
    weights, task = train(make(coders), TrainingRun(tmp_path / "whole", STEPS, every=2, threads=1)), make(coders)
    loss = task.loss

    def killed(step: int, draws: torch.Generator) -> torch.Tensor:
        if step == STEPS - 1:
            raise KeyboardInterrupt
        return loss(step, draws)

    monkeypatch.setattr(task, "loss", killed)
    run = TrainingRun(tmp_path / "parts", STEPS, every=2, threads=1)
    with pytest.raises(KeyboardInterrupt):
        train(task, run)
    whole, continued = load_file(weights), load_file(train(make(coders), run))
    assert whole.keys() == continued.keys()
    assert all(torch.equal(whole[key], continued[key]) for key in whole)

    about = json.loads(weights.with_suffix(".json").read_text())
    assert about["sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert (about["seed"], about["step"], about["finished"]) == (0, STEPS, True)
    assert about["data"] == (caption_scene if name in ("tiny-t2i", "tiny-reader") else scene).VERSION
    assert not coder or about["language"] == LOADERS[coder](coders[coder]).language


def test_a_version_of_the_data_pins_its_draws() -> None:
    """The bundled weights were trained on these: other draws need another version, and new weights."""
    scenes = scene.scenes(4, 2024)
    assert (scene.VERSION, scenes.classes.tolist()) == ("scene-v2", [2, 0, 4, 0])
    assert scenes.object_hue.tolist() == pytest.approx([0.490225, 0.338839, 0.674925, 0.833487], abs=1e-5)
    assert scenes.horizon.tolist() == pytest.approx([0.578579, 0.482913, 0.470485, 0.574018], abs=1e-5)
    choices = caption_scene.caption_scenes(64, caption_scene.stream(0, "pinned")).shown
    digest = hashlib.sha256(b"".join(choices[axis].numpy().tobytes() for axis in AXES)).hexdigest()
    assert (caption_scene.VERSION, digest[:16]) == ("captions-v1", "f2c5d207cc5bd748")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_draws_the_same_scenes() -> None:
    here, there = scene.scenes(32, 7), scene.scenes(32, 7, device="cuda")
    assert torch.equal(here.classes, there.classes.cpu())
    assert (here.images - there.images.cpu()).abs().max() < 1e-3
