"""The CLIP score with a small model in the published format, and errors for missing or damaged files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.metrics.base import MetricContext
from cachemark.metrics.compute import pretrained
from cachemark.metrics.compute.clip import FILES, PROMPT, Clip, ClipScore, class_names, identity
from cachemark.metrics.compute.scene_colors import CLASSES
from cachemark.metrics.text_similarity import TextSimilarity
from support.judges import clip_folder
from support.later import later

transformers = later("transformers")
later("torchvision")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write random weights with published names, a tokenizer of letters and small preprocessing."""
    return clip_folder(tmp_path_factory.mktemp("clip"))


def pictures(count: int = 4) -> Tensor:
    return torch.rand(count, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 2 - 1


def test_it_is_the_cosine_that_the_model_itself_gives(folder: Path) -> None:
    """The model's own forward pass on one prompt and one image at a time, without any of our batches."""
    model = transformers.CLIPModel.from_pretrained(str(folder)).eval()
    tokenizer, ready = (kind.from_pretrained(str(folder)) for kind in (transformers.CLIPTokenizer, transformers.CLIPImageProcessor))
    labels = [*range(10), *range(10)]
    expected = []
    for image, label in zip(pictures(20), labels, strict=True):
        pixels = ((image + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
        with torch.no_grad():
            outputs = model(**tokenizer([PROMPT.format(CLASSES[label])], return_tensors="pt"), **ready(pixels, return_tensors="pt"))
        expected.append(100 * max(0.0, float((outputs.text_embeds * outputs.image_embeds).sum())))
    scores = ClipScore(Clip(str(folder)), CLASSES)(pictures(20), labels)
    assert scores.tolist() == pytest.approx(expected, abs=1e-3)
    assert {value > 0 for value in expected} == {True, False}, "opposite views count as none"


def test_the_class_counts(folder: Path) -> None:
    score = ClipScore(Clip(str(folder)), CLASSES)
    assert not torch.equal(score(pictures(), [0, 1, 2, 3]), score(pictures(), [1, 2, 3, 4]))


def test_worlds_have_their_names() -> None:
    assert class_names("scene") == CLASSES
    assert (len(class_names("adm")), class_names("adm")[0]) == (1000, "tench")


@pytest.mark.parametrize("missing", FILES)
def test_a_missing_file_is_named_with_how_to_get_it(folder: Path, tmp_path: Path, missing: str) -> None:
    for file in folder.iterdir():
        if file.name != missing:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(Unsupported, match=rf"not measured: needs {missing} in .*get it with: hf download"):
        identity(str(tmp_path))


@pytest.mark.parametrize("library", ["transformers", "torchvision"])
def test_without_a_library_the_extra_is_named(folder: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    identity(str(folder))
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(Unsupported, match=rf"not measured: needs {library}, get it with: pip install 'cachemark\[clip\]'"):
        TextSimilarity.identity(MetricContext(options={"weights": str(folder)}))


def test_the_names_of_classes_need_the_extra_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert class_names("scene") == CLASSES
    with pytest.raises(Unsupported, match=r"needs torchvision, get it with: pip install 'cachemark\[clip\]'"):
        class_names("adm")


def test_a_damaged_file_is_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(BadCheckpoint, match="contains no readable CLIP model"):
        Clip(str(tmp_path))


@pytest.mark.parametrize("changed", [*FILES, "tokenizer.json"])
def test_other_weights_another_preparation_or_tokenizer_are_another_case(folder: Path, tmp_path: Path, changed: str) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "README.md").write_text("of no weight")
    assert identity(str(tmp_path)) == identity(str(folder))
    (tmp_path / changed).write_bytes((folder / changed).read_bytes() + b" ")
    assert identity(str(tmp_path)) != identity(str(folder))


def test_a_file_is_read_once_and_again_when_it_has_changed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    read: list[str] = []
    monkeypatch.setattr(pretrained, "sha256", lambda path: read.append(path.name) or str(len(read)))
    first = identity(str(tmp_path))
    assert set(FILES) <= set(read)
    assert len(read) == len(set(read))
    read.clear()
    assert identity(str(tmp_path)) == first
    assert read == []
    (tmp_path / "config.json").write_text("{}")
    identity(str(tmp_path))
    assert read == ["config.json"]
