"""From a published layout to an image: verify, convert, load."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_infinity
import test_janus
import test_lumina
import test_mar
import test_var
import torch
from safetensors import safe_open
from torch import Tensor, nn

from cachemark.cache.arena import Memory
from cachemark.core.errors import BadBudget, BadCheckpoint, CachemarkError, Unsupported
from cachemark.core.spec import Sampling
from cachemark.kit.model_checks import MODEL, ModelExample
from cachemark.methods.registry import METHODS
from cachemark.models import checkpoints, conversion, janus, llamagen_text, lumina, text_features
from cachemark.models import infinity as infinity_module
from cachemark.models.catalogue import (
    masked_models,
    next_scale,
    next_token,
    text_to_image,
)
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig
from cachemark.models.llamagen_text import CaptionConfig, CaptionedLlamaGen
from cachemark.models.prompts import FILE
from cachemark.models.protocol import ModelEntry, PublishedFile, Request
from cachemark.models.registry import MODELS
from cachemark.models.vision.kl import KL, KLConfig
from cachemark.models.vision.msvq import MSVQ, MSVQConfig
from cachemark.models.vision.vq import VQ, VQConfig
from cachemark.workflows.convert import convert, verify

GUIDED = Sampling(cfg_scale=2.0, temperature=0.0)
LINEAR = replace(GUIDED, cfg_schedule="linear", temperature=1.0)


TEXTS = ("red star", "a blue stripe below")


# -- every official layout at reduced size -------------------------------------------------------------------------------
def llamagen(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    config = LlamaGenConfig(2, 2, 32, vocab=32, classes=10, grid=4)
    decoder = PublishedFile("decoder_weights", "vq_ds16_c2i.pt", "x", lambda: VQ(VQConfig(32, (1, 1), 1, 16, 32)))
    state = LlamaGen(config).initialise(0).state_dict()
    torch.save({"model": {**state, "freqs_cis": torch.zeros(3)}, "ema": {name: t * 0 for name, t in state.items()}, "steps": 5,
                "args": argparse.Namespace(image_size=64)}, folder / "c2i_B_256.pt")
    torch.save({"model": decoder.build().state_dict(), "ema": {}}, folder / "vq_ds16_c2i.pt")
    return next_token.FAMILY.published("llamagen-b", config, "c2i_B_256.pt", decoder, {"paper": GUIDED}, "", pixels=64).entry


def llamagen_of_texts(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    patch.setitem(llamagen_text.SIZES, 256, CaptionConfig(LlamaGenConfig(2, 2, 32, vocab=32, grid=4), text=128, longest=6))
    images = replace(text_to_image.LLAMAGEN_IMAGES, build=lambda: VQ(VQConfig(32, (1, 1), 1, 16, 32)))
    patch.setattr(text_to_image, "LLAMAGEN_IMAGES", images)
    torch.save({"model": CaptionedLlamaGen(llamagen_text.SIZES[256]).initialise(0).state_dict()}, folder / "t2i_XL_stage1_256.pt")
    torch.save({"model": images.build().state_dict()}, folder / "vq_ds16_t2i.pt")
    test_infinity.encoder(folder / text_features.ENCODER, 128)
    return text_to_image.llamagen_t2i(256).asking(TEXTS)


def var(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    config = test_var.CONFIG
    decoder = PublishedFile("decoder_weights", "vae_ch160v4096z32.pth", "x", lambda: MSVQ(
        MSVQConfig(sides=config.sides, ch=32, ch_mult=(1, 1), num_res_blocks=1, z=config.width, codes=config.vocab)))
    test_var.published_file(config, folder / "var_d16.pth", spread=0.2)
    torch.save(decoder.build().state_dict(), folder / "vae_ch160v4096z32.pth")
    return next_scale.FAMILY.published("var-d16", config, "var_d16.pth", decoder, {"paper": LINEAR}, "").entry


def mar(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    decoder = replace(masked_models.DECODER, build=lambda: KL(replace(KLConfig(), ch=32, ch_mult=(1, 1), num_res_blocks=1, z=4)))
    state = test_mar.build().state_dict()
    torch.save({"model": {name: t * 0 for name, t in state.items()}, "model_ema": state, "args": argparse.Namespace(lr=1)},
               folder / "checkpoint-last.pth")
    torch.save({"model": decoder.build().state_dict()}, folder / "kl16.ckpt")
    return masked_models.FAMILY.published("mar-b", test_mar.CONFIG, "checkpoint-last.pth", decoder, {"paper": LINEAR}, "").entry


def infinity(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    patch.setitem(infinity_module.SIZES, "2B", test_infinity.CONFIG)
    patch.setitem(text_to_image.INFINITY_TOKENIZERS, "2B", test_infinity.TINY_BSQ)
    patch.setitem(infinity_module.SCALES, 256, 3)
    folder.rmdir()
    test_infinity.published(folder)
    return text_to_image.infinity_model("2B", 256).asking(TEXTS)


def janus_of(layout: str) -> Callable[[Path, pytest.MonkeyPatch], ModelEntry]:
    def made(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
        patch.setitem(janus.SIZES, "1B", test_janus.CONFIG)
        patch.setattr(janus, "TOKENIZER", test_janus.TINY_VQ)
        folder.rmdir()
        test_janus.published(folder, layout)
        return text_to_image.janus_pro("1B").entry

    return made


def lumina_folder(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    patch.setitem(lumina.SIZES, "7B-768", test_lumina.CONFIG)
    patch.setattr(lumina, "TOKENIZER", test_lumina.TINY)
    folder.rmdir()
    test_lumina.published(folder)
    return text_to_image.lumina_mgpt("7B-768").asking(("red star", "blue star red"))


OFFICIAL: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], ModelEntry], str, str, int]] = {
    # builder, transformer and image tokenizer in its folder, names beside the weights that are known (of Janus with the image tokenizer's)
    "llamagen": (llamagen, "c2i_B_256.pt", "vq_ds16_c2i.pt", 1), "var": (var, "var_d16.pth", "vae_ch160v4096z32.pth", 5),
    "llamagen, texts": (llamagen_of_texts, "t2i_XL_stage1_256.pt", "vq_ds16_t2i.pt", 0),
    "mar": (mar, "checkpoint-last.pth", "kl16.ckpt", 0), "infinity": (infinity, "infinity_2b_reg.pth", "infinity_vae_d32reg.pth", 3),
    "janus": (janus_of("official"), "", "", 5 + 151), "janus, converted": (janus_of("converted"), "", "", 3 + 151),
    "lumina": (lumina_folder, "model.safetensors", "vqgan.ckpt", 2),
}


OF_CACHES = {"attention_equals_a_reference", "every_site_is_called_once_per_step", "evicting_methods_run", "neutral_methods_equal_full"}


@pytest.fixture(params=OFFICIAL)
def official(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModelEntry, Request, int]]:
    """The entry at reduced size, what a plan names, and the number of ignored names."""
    build, weights, images, beside = OFFICIAL[request.param]
    (folder := tmp_path / "published").mkdir()
    before = MODELS.entries()
    torch.manual_seed(0)
    entry = build(folder, monkeypatch)
    MODELS.restore({**before, entry.name: entry})
    named = Request(weights=str(folder / weights), decoder_weights=str(folder / images) if images else "")
    yield entry, named, beside
    MODELS.restore(before)


def image(entry: ModelEntry, request: Request) -> Tensor:
    loaded = entry.load(request)
    method: Any = METHODS.get("full")()
    tokens = loaded.generator.generate(torch.tensor([1]), [7], method, entry.presets["paper"], Memory())
    return loaded.decode(tokens)


def test_a_published_layout_goes_from_its_path_to_an_image(official: tuple[ModelEntry, Request, int], tmp_path: Path) -> None:
    entry, named, beside = official
    verified = verify(entry.name, weights=named.weights, decoder_weights=named.decoder_weights)
    assert [found.key for found in verified] == ["weights", "decoder_weights"]
    assert len(verified[0].passed) == beside
    assert {weights.published for weights in verified} == {"not published"}
    made = convert(entry.name, tmp_path / "made", weights=named.weights, decoder_weights=named.decoder_weights, shard=1 << 17,
                   pixels=entry.files[0].pixels)
    again = verify(entry.name, weights=str(made["weights"]), decoder_weights=str(made["decoder_weights"]))
    assert [(v.tensors, v.nbytes, v.dtypes, v.passed, v.published) for v in again] == [
        (v.tensors, v.nbytes, v.dtypes, (), "as converted") for v in verified]
    assert len(checkpoints.parts(made["weights"])) > 1
    converted = Request(weights=str(made["weights"]), decoder_weights=str(made["decoder_weights"]))
    found, expected = image(entry, converted), image(entry, named)
    assert found.shape[0] == 1
    assert torch.equal(found, expected)
    assert not list((tmp_path / "made").glob(".*"))


def test_a_published_layout_passes_the_models_kit(official: tuple[ModelEntry, Request, int]) -> None:
    """Masked models have no caches; maps of 5 tokens leave a budget no room next to the sinks."""
    entry, named, _ = official
    example, left_out = ModelExample(entry, named), set()
    for check in MODEL:
        try:
            assert not list(check(example)), check.__name__
        except (Unsupported, BadBudget):
            left_out.add(check.__name__)
    small = {"neutral_methods_equal_full"} if entry.name.startswith("infinity") else set()
    assert left_out == (OF_CACHES if entry.paradigm == "masked" else small)


# -- what is refused -------------------------------------------------------------------------------------------------------
class Net(nn.Module):
    """A stack of linear layers."""

    def __init__(self, layers: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(layers))


def net(folder: Path, layers: int = 6, dim: int = 64, name: str = "net.pt") -> tuple[PublishedFile, Path]:
    state = {f"layers.{i}.weight": torch.arange(dim * dim, dtype=torch.float32).view(dim, dim) + i for i in range(layers)}
    torch.save({"model": state}, folder / name)
    return PublishedFile("weights", "c2i_B_256.pt", "x", lambda: Net(layers, dim), pixels=256), folder / name


@pytest.mark.parametrize(("name", "words"), [("c2i_B_384.pt", "of 384 pixels, as its name says; this model makes 256"),
                                            ("odd.pt", "The image size of .* is unknown")])
def test_a_size_that_shapes_do_not_tell_must_be_stated(tmp_path: Path, name: str, words: str) -> None:
    file, source = net(tmp_path, name=name)
    with pytest.raises(BadCheckpoint, match=words) as caught:
        conversion.convert(file, source, tmp_path / "made")
    assert "--pixels 256" in caught.value.remedy
    conversion.convert(file, source, tmp_path / "made", pixels=256)
    other = replace(file, pixels=384)
    with pytest.raises(BadCheckpoint, match="256 pixels, as was stated when it was converted; this model makes 384"):
        conversion.trained_size.check(other, tmp_path / "made")
    (tmp_path / "made").rename(tmp_path / "c2i_B_384")
    assert conversion.trained_size.check(file, tmp_path / "c2i_B_384") == 256, "what was stated counts more than a name"


def test_a_plan_may_not_name_weights_for_another_size(tmp_path: Path) -> None:
    (folder := tmp_path / "published").mkdir()
    entry = llamagen(folder, pytest.MonkeyPatch())
    assert entry.identity(Request(weights=str(folder / "c2i_B_256.pt")))  # its training says 64, whatever its name
    content = torch.load(folder / "c2i_B_256.pt", weights_only=False)
    content["args"].image_size = 384
    torch.save(content, folder / "c2i_B_64.pt")
    with pytest.raises(BadCheckpoint, match="384 pixels, as its training says; this model makes 64"):
        entry.identity(Request(weights=str(folder / "c2i_B_64.pt")))


@pytest.mark.parametrize("dtype", [torch.int32, torch.float8_e4m3fn])
def test_numbers_of_another_kind_are_named(tmp_path: Path, dtype: torch.dtype) -> None:
    file, source = net(tmp_path, name="c2i_B_256.pt")
    content = torch.load(source)
    content["model"]["layers.3.weight"] = content["model"]["layers.3.weight"].to(dtype)
    torch.save(content, source)
    with pytest.raises(BadCheckpoint, match=rf"1 of another kind of number \(layers\.3\.weight {str(dtype).removeprefix('torch.')}\)"):
        conversion.contents(file, source)


def test_a_changed_shard_is_found(tmp_path: Path, official_llamagen: tuple[ModelEntry, Path]) -> None:
    entry, folder = official_llamagen
    made = convert(entry.name, tmp_path / "made", weights=str(folder / "c2i_B_256.pt"))
    shard = checkpoints.parts(made["weights"])[0]
    with shard.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    with pytest.raises(BadCheckpoint, match=r"has the SHA-256 .* not ") as caught:
        verify(entry.name, weights=str(made["weights"]))
    assert "convert it again" in caught.value.remedy


@pytest.fixture
def official_llamagen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModelEntry, Path]]:
    (folder := tmp_path / "published").mkdir()
    before, entry = MODELS.entries(), llamagen(folder, monkeypatch)
    MODELS.restore({**before, entry.name: entry})
    yield entry, folder
    MODELS.restore(before)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file, source = net(tmp_path, name="c2i_B_256.pt")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "thesis.tex").write_text("x")
    with pytest.raises(CachemarkError, match="exists already"):
        conversion.convert(file, source, tmp_path / "made")
    assert [entry.name for entry in (tmp_path / "made").iterdir()] == ["thesis.tex"]


def test_a_part_of_a_download_is_refused_in_one_sentence(tmp_path: Path, official_llamagen: tuple[ModelEntry, Path]) -> None:
    entry, folder = official_llamagen
    source = folder / "c2i_B_256.pt"
    content = source.read_bytes()
    facts = {"bytes": len(content), "sha256": checkpoints.sha256(source)}
    (folder / ".published.json").write_text(json.dumps({"files": {source.name: facts}}))
    [verified] = verify(entry.name, weights=str(source))
    assert verified.published == "as published"
    source.write_bytes(content[:-100])
    with pytest.raises(BadCheckpoint, match=rf"has {len(content) - 100} of {len(content)} bytes: its download is not whole") as refused:
        verify(entry.name, weights=str(source))
    assert "cachemark weights fetch llamagen-b" in refused.value.remedy
    source.write_bytes(content[:-1] + b"\x07")
    with pytest.raises(BadCheckpoint, match="has the SHA-256"):
        verify(entry.name, weights=str(source))


def test_a_tokenizer_without_weights_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(BadCheckpoint, match="holds no weights: none of ") as caught:
        verify("janus-pro-1b", weights=str(tmp_path))
    assert "Use the folder of one model as it was published" in caught.value.remedy
    with pytest.raises(BadCheckpoint, match=f"has no {FILE} next to it"):
        verify("janus-pro-1b", weights=str(net(tmp_path.parent, name="pytorch_model.bin")[1]))


def test_tensors_in_any_order_of_memory_are_written_in_theirs(tmp_path: Path) -> None:
    odd = {"turned": torch.arange(12.0).view(3, 4).t(), "scalar": torch.tensor(3), "none": torch.zeros(0, 4), "half": torch.ones(2).half(),
           "flags": torch.tensor([True, False]), "brain": torch.arange(5).bfloat16()}
    conversion._shard(tmp_path / "x.safetensors", odd)
    with safe_open(tmp_path / "x.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(odd)
        read = {name: file.get_tensor(name) for name in odd}
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in odd.items())
