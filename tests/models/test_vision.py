"""Image tokenizers: what decoders of published ones refuse; arithmetic, files of the bundled ones."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.models.tiny import tokenizers
from cachemark.models.tiny.captions import AXES
from cachemark.models.tiny.networks import CONSISTENT, FEATURE_WEIGHTS, HEADS, READER_WEIGHTS, FeaturesConfig, TinyFeatures
from cachemark.models.tiny.tokenizers import Sizes, TinyKL, TinyMSVQ, TinyMSVQConfig, TinyVQ, TinyVQConfig
from cachemark.models.vision.kl import grid_of
from cachemark.models.vision.vq import VQ, VQConfig
from cachemark.models.weights import packaged
from tools.train.caption_scene import caption_scenes

FILES: dict[str, Any] = {
    "tiny-vq": (tokenizers.VQ_WEIGHTS, TinyVQ(TinyVQConfig(codes=12, channels=4, width=16, blocks=1))),
    "tiny-msvq": (tokenizers.MSVQ_WEIGHTS, TinyMSVQ(TinyMSVQConfig(codes=12, channels=4, width=16, blocks=1))),
    "tiny-kl": (tokenizers.KL_WEIGHTS, TinyKL(Sizes(channels=4, width=16, blocks=1))),
    "tiny-features": (FEATURE_WEIGHTS, TinyFeatures(FeaturesConfig(width=16, squeezed=4, features=16)))}


def test_images_are_fp32_and_not_clamped_and_tokens_must_fill_the_grid() -> None:
    low = VQ(VQConfig(ch=32, ch_mult=(1, 2, 1), num_res_blocks=1, z_channels=8, codebook_size=24, codebook_dim=4)).requires_grad_(False)
    low.decoder.conv_out.bias.fill_(3.0)
    image = low.bfloat16().decode(torch.zeros(1, 4, dtype=torch.int32), (2, 2))
    assert image.dtype == torch.float32
    assert image.max() > 1
    with pytest.raises(Unsupported, match=r"\(1, 5\) do not fill a grid of 2×2"):
        low.decode(torch.zeros(1, 5, dtype=torch.int64), (2, 2))
    for shape in ((1, 15, 4), (1, 0, 4), (16, 4)):
        with pytest.raises(Unsupported, match="no square"):
            grid_of(torch.zeros(shape))


def write(path: Path, state: dict[str, torch.Tensor], about: dict[str, str]) -> Path:
    save_file({name: tensor.detach().half() for name, tensor in state.items()}, path, metadata={"cachemark": json.dumps(about)})
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_the_same_model_and_one_of_something_else_is_refused(name: str, tmp_path: Path) -> None:
    files, model = FILES[name]
    state, about = model.state_dict(), files.metadata(model.config)
    path = write(tmp_path / "x.safetensors", state, about)
    files.check(path)
    loaded = files.load(path)
    assert (loaded.config, loaded.training) == (model.config, False)
    assert all(torch.equal(tensor, state[key].half().float()) for key, tensor in loaded.state_dict().items())
    strange = {**about, "config": json.dumps({**asdict(model.config), "colour": 3})}
    for other, words in (({"model": "tiny-gan", "config": "{}"}, "'tiny-gan'"), ({}, "'nothing'"), (strange, "colour")):
        refuse(name, write(path, state, other), words)
    path.write_text("no weights")
    refuse(name, path, "header")
    refuse(name, tmp_path / "none.safetensors", "is not a file")
    lacking = next(iter(state))
    write(path, {key: tensor for key, tensor in state.items() if key != lacking}, about)
    with pytest.raises(BadCheckpoint, match=lacking):
        files.load(path)


def refuse(name: str, path: Path, words: str) -> None:
    files, _ = FILES[name]
    for reader in (files.load, files.check):
        with pytest.raises(BadCheckpoint, match=words) as caught:
            reader(path)
        assert f"tools.train {name}" in caught.value.remedy


def test_features_are_standardised_and_the_reader_reads_new_pictures() -> None:
    torch.manual_seed(0)
    features, images = TinyFeatures().eval().requires_grad_(False), torch.rand(3, 3, 64, 64) * 2 - 1
    plain, logits = features(images)
    features.centre.fill_(0.5)
    features.deviation.fill_(4.0)
    moved, same = features(images)
    assert torch.allclose(moved, (plain - 0.5) / 4)
    assert torch.equal(logits, same)
    answers = features.judge(features.embed(images))
    assert {name: t.shape[1] for name, t in answers.items()} == {**HEADS, "consistent": len(CONSISTENT)}
    assert torch.equal(answers["class"], logits)
    reader = READER_WEIGHTS.load(packaged("tiny-reader.safetensors"))
    scene = caption_scenes(200, 987)
    read, of_bytes = reader.read(scene.images), reader.read(((scene.images + 1) * 127.5).round().byte())
    for axis, choices in AXES.items():
        assert (read[axis] == scene.shown[axis]).float().mean() >= 0.95, axis
        assert torch.equal(read[axis], of_bytes[axis])
        assert reader(scene.images[:2])[axis].shape == (2, len(choices))
    with pytest.raises(ValueError, match=r"tiny-reader needs images of shape \(B, 3, 64, 64\), got \(2, 3, 32, 32\)"):
        reader(torch.zeros(2, 3, 32, 32))
