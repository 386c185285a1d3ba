"""Human preference scores, by stubs of the two packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from cachemark.core.errors import BadCheckpoint, Unsupported
from cachemark.metrics.compute.preference import PREFERENCES, PreferenceScore

IMAGE_REWARD = """
class Model:
    def score(self, prompt, image):
        return len(prompt) + image.getpixel((0, 0))[0] / 255

def load(name, device, med_config):
    print("load checkpoint from", name)
    assert open(name).read() and open(med_config).read() == "{}" and device == "cpu"
    return Model()
"""
HPSV2 = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, image, text):
        return {"image_features": image.flatten(1)[:, :2] * self.weight, "text_features": text}

def create_model_and_transforms(name, pretrained, precision, device, output_dict):
    assert (name, pretrained) == ("ViT-H-14", None), "nothing is fetched"
    return Model(), None, lambda image: torch.tensor([[image.getpixel((0, 0))[0] / 255, 1.0]])

def get_tokenizer(name):
    return lambda texts: torch.tensor([[len(text), 1.0] for text in texts])
"""


@pytest.fixture(autouse=True)
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("ImageReward/__init__.py", IMAGE_REWARD), ("hpsv2/__init__.py", ""), ("hpsv2/src/__init__.py", ""),
                       ("hpsv2/src/open_clip.py", HPSV2)):
        (tmp_path / "packages" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "packages" / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ImageReward", "hpsv2")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "weights"
    made.mkdir()
    (made / "ImageReward.pt").write_text("weights")
    (made / "med_config.json").write_text("{}")
    torch.save({"state_dict": {"weight": torch.full((1,), 2.0)}}, made / "HPS_v2.1_compressed.pt")
    return made


@pytest.mark.parametrize(("name", "expected"), [("image_reward", [4.0, 6.0]), ("hpsv2", [2 * 0 + 2, 2 * 5 + 2])])
def test_each_image_is_scored_with_its_own_prompt(
    folder: Path, name: str, expected: list[float], capsys: pytest.CaptureFixture[str],
) -> None:
    score = PreferenceScore(["a dog", "a ca"], PREFERENCES[name].load(str(folder)))
    images = torch.stack([torch.full((3, 4, 4), value) for value in (-1.0, 1.0)])
    assert score(images, [1, 0]).tolist() == expected
    assert capsys.readouterr().out == "", "what others print is no word of a trial"


@pytest.mark.parametrize(("name", "file"), [(name, file) for name, preference in PREFERENCES.items() for file in preference.files])
def test_what_is_missing_is_named_with_how_to_get_it(folder: Path, name: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = PREFERENCES[name].identity(str(folder))
    (folder / file).write_bytes((folder / file).read_bytes() + b" ")
    assert PREFERENCES[name].identity(str(folder)) != before, "other weights are another case"
    (folder / file).unlink()
    with pytest.raises(Unsupported, match=rf"not measured: needs {file} in .*get it with: hf download {PREFERENCES[name].published} "):
        PREFERENCES[name].identity(str(folder))
    monkeypatch.setattr(sys, "path", [place for place in sys.path if "packages" not in place or "site-packages" in place])
    with pytest.raises(Unsupported, match=rf"not measured: needs {PREFERENCES[name].package}, get it with: pip install "):
        PREFERENCES[name].identity(str(folder))


def test_weights_that_are_none_are_refused(folder: Path) -> None:
    (folder / "HPS_v2.1_compressed.pt").write_bytes(b"noise")
    with pytest.raises(BadCheckpoint, match="contains no readable hpsv2"):
        PREFERENCES["hpsv2"].load(str(folder))
