"""From a published layout to an image: verify and load."""

import argparse
import hashlib
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from official import FILES, Official, llamagen_files, written

from cachemark.cache.arena import Memory
from cachemark.core.errors import BadBudget, BadCheckpoint, UnknownName, Unsupported
from cachemark.kit.model_checks import MODEL, ModelExample
from cachemark.methods.registry import METHODS
from cachemark.models import hub, text_features
from cachemark.models.prompts import FILE, path_beside
from cachemark.models.protocol import ModelEntry, Request
from cachemark.models.publications import of_model, publications
from cachemark.models.registry import MODELS
from cachemark.workflows.verify import verify
from support.hub import REVISION, cached

OF_CACHES = {"attention_equals_a_reference", "every_site_is_called_once_per_step", "evicting_methods_run", "neutral_methods_equal_full"}


@pytest.fixture(params=FILES)
def official(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Official:
    made = written(request.param, tmp_path / "published", monkeypatch)
    registered(made.entry, monkeypatch)
    return made


def registered(entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a model for a test. The one of this name is imported before, so that it comes back."""
    if entry.name in MODELS:
        MODELS.get(entry.name)
    monkeypatch.setitem(MODELS._entries, entry.name, entry)


def test_a_published_layout_goes_from_its_path_to_an_image(official: Official) -> None:
    entry, named, state = official
    verified = verify(entry.name, weights=named.weights, decoder_weights=named.decoder_weights)
    given = {"weights": named.weights, "decoder_weights": named.decoder_weights}
    assert {file.key: file.path for file in verified} == {key: path for key, path in given.items() if path}
    loaded = entry.load(named)
    assert loaded.weights == entry.identity(named)
    own = loaded.generator.state_dict()
    assert all(torch.equal(own[name], state[name]) for name in own.keys() & state.keys())
    tokens = loaded.generator.generate(torch.tensor([1]), [7], METHODS.get("full")(), entry.presets["paper"], Memory())
    assert loaded.decode(tokens).isfinite().all()


def test_a_published_layout_is_found_by_its_name(official: Official, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the cache of huggingface_hub, where the text encoder has a repository of its own."""
    entry, named, _ = official
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
    assert entry.identity(Request(weights=located[0], decoder_weights=located[1])) == entry.identity(named)
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


def test_what_is_no_name_of_weights_and_a_folder_without_any_are_refused(tmp_path: Path) -> None:
    for name in ("hf:", "hf:org", "hf:org/repo@", "hf:org/repo:", "hf:org/repo:../../x", "hf:org/..", "hf:a/b/c", "hf:org/re po",
                 "hf:-org/repo", "hf:org/repo@a/../b"):
        with pytest.raises(UnknownName, match=r"Write hf:org/repo\[@revision\]\[:file\]"):
            hub.located("var-d16", name, "")
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(BadCheckpoint, match="holds no weights: none of "):
        verify("janus-pro-1b", weights=str(tmp_path))


@pytest.mark.slow
def test_a_published_layout_passes_the_models_kit(official: Official) -> None:
    """Masked models have no caches; maps of 5 tokens leave a budget no room next to the sinks."""
    entry, named, _ = official
    if (Path(named.weights) / "model.safetensors.index.json").exists():
        pytest.skip("the same model in another layout")
    example, left_out = ModelExample(entry, named), set()
    for check in MODEL:
        try:
            assert not list(check(example)), check.__name__
        except (Unsupported, BadBudget):
            left_out.add(check.__name__)
    small = {"neutral_methods_equal_full"} if entry.name.startswith("infinity") else set()
    assert left_out == (OF_CACHES if entry.paradigm == "masked" else small)


def test_weights_for_images_of_other_sizes_and_partial_downloads_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, file = llamagen_files(tmp_path, monkeypatch).entry, tmp_path / "c2i_B_256.pt"
    registered(entry, monkeypatch)
    for name, argument, message in (
        ("c2i_B_64.pt", 384, "384 pixels by its training arguments; this model makes 64"),
        ("c2i_B_384.pt", None, "384 pixels by its name; this model makes 64"), ("c2i_B_384.pt", 64, ""), ("odd.pt", None, "")):
        content = torch.load(file, weights_only=False)
        content["args"] = argparse.Namespace(**({"image_size": argument} if argument else {}))
        torch.save(content, file.with_name(name))
        request = Request(weights=str(file.with_name(name)))
        with pytest.raises(BadCheckpoint, match=message) if message else nullcontext():
            assert entry.identity(request)
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
def test_weights_need_what_reads_their_prompts(official: Official, file: str) -> None:
    entry, named, _ = official
    path_beside(named.weights, file).unlink()
    for use in (lambda: verify(entry.name, weights=named.weights), lambda: entry.load(named)):
        with pytest.raises(BadCheckpoint, match=file.removeprefix("../").partition("/")[0]):
            use()
