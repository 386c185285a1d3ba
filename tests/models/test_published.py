"""From a published layout to an image: verify and load."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import test_emu3
import test_glm_image
import test_infinity
import test_janus
import test_lumina
import test_mar
import test_var
import torch

from cachemark.cache.arena import Memory
from cachemark.core.errors import BadBudget, BadCheckpoint, UnknownName, Unsupported
from cachemark.core.spec import Sampling
from cachemark.kit.model_checks import MODEL, ModelExample
from cachemark.methods.registry import METHODS
from cachemark.models import hub, infinity_scales, janus, llamagen_text, lumina, text_features
from cachemark.models import infinity as infinity_module
from cachemark.models.catalogue import masked_models, next_scale, next_token, text_to_image
from cachemark.models.catalogue.family import CatalogueModel
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig
from cachemark.models.llamagen_text import CaptionConfig, CaptionedLlamaGen
from cachemark.models.prompts import FILE, path_beside
from cachemark.models.protocol import ModelEntry, PublishedFile, Request
from cachemark.models.publications import of_model, publications
from cachemark.models.registry import MODELS
from cachemark.models.vision.kl import KL, KLConfig
from cachemark.models.vision.msvq import MSVQ, MSVQConfig
from cachemark.models.vision.vq import VQ, VQConfig
from cachemark.workflows.verify import verify
from support.hub import REVISION, cached

GUIDED = Sampling(cfg_scale=2.0, temperature=0.0)
LINEAR = replace(GUIDED, cfg_schedule="linear", temperature=1.0)


TEXTS = ("red star", "a blue stripe below")


# -- every official layout at reduced size -------------------------------------------------------------------------------
def llamagen(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    config = LlamaGenConfig(2, 2, 32, vocab=32, classes=10, grid=4)
    decoder = PublishedFile("decoder_weights", "vq_ds16_c2i.pt", "x", lambda: VQ(VQConfig(32, (1, 1), 1, 16, 32)))
    state = LlamaGen(config).initialise(0).state_dict()
    torch.save({"model": {name: t * 0 for name, t in state.items()}, "ema": {**state, "freqs_cis": torch.zeros(3)}, "steps": 5,
                "args": argparse.Namespace(image_size=64)}, folder / "c2i_B_256.pt")
    torch.save({"model": decoder.build().state_dict(), "ema": {}}, folder / "vq_ds16_c2i.pt")
    return CatalogueModel(next_token.FAMILY, "llamagen-b", config, "c2i_B_256.pt", decoder, {"paper": GUIDED}, "", pixels=64).entry


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
    return CatalogueModel(next_scale.FAMILY, "var-d16", config, "var_d16.pth", decoder, {"paper": LINEAR}, "").entry


def mar(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    decoder = replace(masked_models.DECODER, build=lambda: KL(replace(KLConfig(), ch=32, ch_mult=(1, 1), num_res_blocks=1, z=4)))
    state = test_mar.build().state_dict()
    torch.save({"model": {name: t * 0 for name, t in state.items()}, "model_ema": state, "args": argparse.Namespace(lr=1)},
               folder / "checkpoint-last.pth")
    torch.save({"model": decoder.build().state_dict()}, folder / "kl16.ckpt")
    return CatalogueModel(masked_models.FAMILY, "mar-b", test_mar.CONFIG, "checkpoint-last.pth", decoder, {"paper": LINEAR}, "").entry


def infinity(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    patch.setitem(infinity_module.SIZES, "2B", test_infinity.CONFIG)
    patch.setitem(text_to_image.INFINITY_TOKENIZERS, "2B", test_infinity.TINY_BSQ)
    patch.setitem(infinity_scales.COUNTS, 256, 3)
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


def emu3_folder(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    folder.rmdir()
    test_emu3.published(folder)
    return test_emu3.tiny_entry()


def glm_image_folder(folder: Path, patch: pytest.MonkeyPatch) -> ModelEntry:
    test_glm_image.published(folder)
    return test_glm_image.tiny_entry()


OFFICIAL: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], ModelEntry], str, str]] = {
    # builder, transformer and image tokenizer in its folder
    "llamagen": (llamagen, "c2i_B_256.pt", "vq_ds16_c2i.pt"), "var": (var, "var_d16.pth", "vae_ch160v4096z32.pth"),
    "llamagen, texts": (llamagen_of_texts, "t2i_XL_stage1_256.pt", "vq_ds16_t2i.pt"),
    "mar": (mar, "checkpoint-last.pth", "kl16.ckpt"), "infinity": (infinity, "infinity_2b_reg.pth", "infinity_vae_d32reg.pth"),
    "janus": (janus_of("official"), "", ""), "janus, converted": (janus_of("converted"), "", ""),
    "lumina": (lumina_folder, "model.safetensors", "vqgan.ckpt"), "emu3": (emu3_folder, "", ""),
    "glm-image": (glm_image_folder, "vision_language_encoder", ""),
}


OF_CACHES = {"attention_equals_a_reference", "every_site_is_called_once_per_step", "evicting_methods_run", "neutral_methods_equal_full"}


@pytest.fixture(params=OFFICIAL)
def official(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelEntry, Request]:
    """The entry at reduced size, and what a plan names."""
    build, weights, images = OFFICIAL[request.param]
    (folder := tmp_path / "published").mkdir()
    torch.manual_seed(0)
    entry = build(folder, monkeypatch)
    registered(entry, monkeypatch)
    return entry, Request(weights=str(folder / weights), decoder_weights=str(folder / images) if images else "")


def registered(entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a model for a test. The one of this name is imported before, so that it comes back."""
    if entry.name in MODELS:
        MODELS.get(entry.name)
    monkeypatch.setitem(MODELS._entries, entry.name, entry)


def test_a_published_layout_goes_from_its_path_to_an_image(official: tuple[ModelEntry, Request]) -> None:
    entry, named = official
    verified = verify(entry.name, weights=named.weights, decoder_weights=named.decoder_weights)
    given = {"weights": named.weights, "decoder_weights": named.decoder_weights}
    assert {file.key: file.path for file in verified} == {key: path for key, path in given.items() if path}
    loaded = entry.load(named)
    tokens = loaded.generator.generate(torch.tensor([1]), [7], METHODS.get("full")(), entry.presets["paper"], Memory())
    assert loaded.decode(tokens).isfinite().all()


def test_a_published_layout_is_found_by_its_name(
    official: tuple[ModelEntry, Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the cache of huggingface_hub, where the text encoder has a repository of its own."""
    entry, named = official
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    home, weights = tmp_path / "published", Path(named.weights)
    repository = next((file.origin.name for file in of_model(entry.name) if file.key == "weights" and file.origin.on_hub), "somebody/model")
    files = {file.relative_to(home).as_posix(): file.read_bytes() for file in home.rglob("*") if file.is_file()}
    encoder = {name: content for name, content in files.items() if name.startswith(text_features.ENCODER)}
    cached(tmp_path / "hub", repository, {name: content for name, content in files.items() if name not in encoder})
    if encoder:
        cached(tmp_path / "hub", text_features.REPOSITORY, {name.partition("/")[2]: content for name, content in encoder.items()})
    if repository == "somebody/model":
        with pytest.raises(BadCheckpoint, match=r"is a pickle, checkpoint-last\.pth; pickles are read from.*catalogue only"):
            hub.located(entry.name, f"hf:{repository}:{weights.name}", "")
        return
    images = named.decoder_weights if entry.name.startswith("lumina") else ""
    located = hub.located(entry.name, f"hf:{repository}", images)
    assert all("/snapshots/" in path or path == images for path in located)
    assert bool(located[1]) == (bool(named.decoder_weights) or entry.name.startswith(("janus", "emu3")))
    request = Request(weights=located[0], decoder_weights=located[1])
    assert entry.identity(request) == entry.identity(named)
    assert hub.source(located[0]).repository == repository  # type: ignore[union-attr]
    assert hub.source(located[0]).revision == REVISION  # type: ignore[union-attr]


@pytest.mark.parametrize("model", sorted({file.model for file in publications() if file.key == "weights" and file.origin.on_hub}))
def test_every_published_checkpoint_has_a_name(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    files = {file.key: file for file in of_model(model) if file.origin.on_hub}
    name = f"hf:{files['weights'].origin.name}"
    with pytest.raises(BadCheckpoint, match=f"{name} is not in the cache.*cachemark weights fetch {model} --weights {name}"):
        hub.located(model, name, "x.pt")
    for file in files.values():
        cached(tmp_path, file.origin.name, {pattern.replace("*", f"{file.key}"): b"synthetic" for pattern in file.files})
    weights, images = hub.located(model, name, "")
    assert Path(weights).exists()
    assert Path(weights).parts[-len(Path(files["weights"].path).parts) or None :] == Path(files["weights"].path).parts or (
        files["weights"].path == "." and Path(weights).name == REVISION)
    assert bool(images) is ("decoder_weights" in files)
    assert hub.located(model, f"{name}@{REVISION}", "")[0] == weights
    with pytest.raises(BadCheckpoint, match="@v2 is not in the cache"):
        hub.located(model, f"{name}@v2", "")


def test_what_is_no_name_of_weights_is_refused() -> None:
    for name in ("hf:", "hf:org", "hf:org/repo@", "hf:org/repo:", "hf:org/repo:../../x", "hf:org/..", "hf:a/b/c", "hf:org/re po",
                 "hf:-org/repo", "hf:org/repo@a/../b"):
        with pytest.raises(UnknownName, match=r"Write hf:org/repo\[@revision\]\[:file\]"):
            hub.located("var-d16", name, "")


def test_a_published_layout_passes_the_models_kit(official: tuple[ModelEntry, Request]) -> None:
    """Masked models have no caches; maps of 5 tokens leave a budget no room next to the sinks."""
    entry, named = official
    example, left_out = ModelExample(entry, named), set()
    for check in MODEL:
        try:
            assert not list(check(example)), check.__name__
        except (Unsupported, BadBudget):
            left_out.add(check.__name__)
    small = {"neutral_methods_equal_full"} if entry.name.startswith("infinity") else set()
    assert left_out == (OF_CACHES if entry.paradigm == "masked" else small)


# -- what is refused -------------------------------------------------------------------------------------------------------
@pytest.fixture
def c2i(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelEntry, Path]:
    """A LlamaGen for 64 pixels by its training arguments, and its file."""
    entry = llamagen(tmp_path, monkeypatch)
    registered(entry, monkeypatch)
    return entry, tmp_path / "c2i_B_256.pt"


@pytest.mark.parametrize(("name", "argument", "message"), [
    ("c2i_B_64.pt", 384, "384 pixels by its training arguments; this model makes 64"),
    ("c2i_B_384.pt", None, "384 pixels by its name; this model makes 64"), ("c2i_B_384.pt", 64, ""), ("odd.pt", None, ""),
])
def test_weights_for_images_of_another_size_are_refused(
    c2i: tuple[ModelEntry, Path], name: str, argument: int | None, message: str
) -> None:
    entry, file = c2i
    content = torch.load(file, weights_only=False)
    content["args"] = argparse.Namespace(**({"image_size": argument} if argument else {}))
    torch.save(content, file.with_name(name))
    request = Request(weights=str(file.with_name(name)))
    if message:
        with pytest.raises(BadCheckpoint, match=message):
            entry.identity(request)
    else:
        assert entry.identity(request)


def test_a_partial_download_is_refused(c2i: tuple[ModelEntry, Path]) -> None:
    entry, file = c2i
    content = file.read_bytes()
    [verified] = verify(entry.name, weights=str(file))
    assert verified.sha256 == hashlib.sha256(content).hexdigest()
    file.write_bytes(content[:-100])
    with pytest.raises(BadCheckpoint):
        verify(entry.name, weights=str(file))


@pytest.mark.parametrize(("official", "file"), [
    ("janus", FILE), ("lumina", FILE), ("emu3", FILE), ("glm-image", f"../processor/{FILE}"),
    ("infinity", f"{text_features.ENCODER}/config.json"), ("llamagen, texts", f"{text_features.ENCODER}/config.json"),
], indirect=["official"])
def test_weights_need_what_reads_their_prompts(official: tuple[ModelEntry, Request], file: str) -> None:
    entry, named = official
    path_beside(named.weights, file).unlink()
    with pytest.raises(BadCheckpoint, match=file.removeprefix("../").partition("/")[0]):
        verify(entry.name, weights=named.weights)
    with pytest.raises(BadCheckpoint, match=file.removeprefix("../").partition("/")[0]):
        entry.load(named)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(BadCheckpoint, match="holds no weights: none of "):
        verify("janus-pro-1b", weights=str(tmp_path))
