"""The names of ``import cachemark as cm``, and generation and measurement as the guide shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cachemark as cm
from cachemark.core.errors import BadBudget, BadParameter, BadPlan, CachemarkError, UnknownName, Unsupported
from cachemark.core.spec import Budget
from cachemark.methods.registry import METHODS
from cachemark.models.registry import MODELS
from cachemark.workflows import generate
from cachemark.workflows.generate import ImageModel
from support import stages
from test_docs import ROOT, blocks

GUIDE = ROOT / "docs" / "how-to" / "use-from-python.md"


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return cm.load("tiny-var")


def test_a_generation_is_that_of_its_method_and_seeds(model: ImageModel) -> None:
    full = model.generate(labels=[3, 7], seeds=[0, 1])
    tight = model.generate(labels=[3, 7], seeds=[0, 1], method="window", budget="1/2")
    assert full.images.shape == (2, 3, 64, 64)
    assert full.kv_bytes == 2 * tight.kv_bytes
    assert tight.case.label == "window 1/2"
    assert not torch.equal(full.tokens, tight.tokens)
    assert torch.equal(model.generate(labels=[7], seeds=[1]).tokens, full.tokens[1:])
    assert torch.equal(model.generate(labels=[3, 7], method="window", budget=1).tokens, full.tokens)


def test_images_are_shown_as_a_grid(model: ImageModel) -> None:
    from io import BytesIO

    from PIL import Image

    five = model.generate(seeds=5)
    assert len(set(five.labels)) == 5, "classes are balanced"
    with Image.open(BytesIO(five._repr_png_())) as grid:
        assert grid.size == (3 * 64, 2 * 64)
    assert five._repr_html_().startswith('<figure><img alt="generated images" src="data:image/png;base64,iVBORw0KGgo')


def test_a_model_draws_prompts() -> None:
    captioned = cm.load("tiny-t2i")
    drawn = captioned.generate(prompts=["two red stars above blue stripes", "two red\nstars"], method="window")
    assert (len(drawn.images), drawn.labels, drawn.case.budget) == (2, (0, 1), "1/2")


def test_a_masked_model_has_the_own_sizes_of_its_method() -> None:
    drawn = cm.load("tiny-mar").generate(method="lazymar")
    shape = MODELS.get("tiny-mar").shape(drawn.case.sampling, 1)
    assert drawn.case.budget == str(Budget(METHODS.get("lazymar")().own_budget(shape)))


@pytest.mark.parametrize(("given", "error", "words"), [
    ({"method": "windo"}, UnknownName, "Did you mean 'window'"),
    ({"labels": [99]}, UnknownName, "no class 99.*0 … 9"),
    ({"labels": [1], "seeds": [1, 2]}, BadPlan, "2 seeds were given for 1 images"),
    ({"labels": [1], "prompts": ["a"]}, BadPlan, "labels and prompts cannot be combined"),
    ({"prompts": ["a"]}, BadPlan, "no model of this plan is given prompts"),
    ({"seeds": [-1]}, BadPlan, "out of range"),
    ({"seeds": 0}, BadPlan, "0 images were requested"),
    ({"method": "window", "budget": 2}, BadBudget, "outside"),
    ({"method": "lazymar"}, BadBudget, "does not run on next-scale models"),
    ({"method": "window", "sinkz": 2}, UnknownName, "sinkz"),
    ({"method": "window", "B": -1}, (BadParameter, BadBudget), "B = -1"),
])  # fmt: skip
def test_a_generation_that_is_refused(model: ImageModel, given: dict[str, Any], error: type[CachemarkError], words: str) -> None:
    with pytest.raises(error, match=words):
        model.generate(**given)


def test_a_hub_repository_is_that_of_the_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "fetch", lambda name: {"weights": tmp_path / "a", "decoder_weights": tmp_path / "b"})
    assert generate._published("llamagen-b", "FoundationVision/LlamaGen", "") == (tmp_path / "a", tmp_path / "b")
    with pytest.raises(UnknownName, match=r"repository of llamagen-b.*FoundationVision/LlamaGen"):
        cm.load("llamagen-b", "hf:somebody/LlamaGen")


def test_the_guide_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick_pairs: None) -> None:
    """As written there, on a model of a few parameters."""
    (block,) = (b for b in blocks(GUIDE.read_text(encoding="utf-8")) if b.file == "measure.py")
    stages.stage(tmp_path)
    monkeypatch.chdir(tmp_path)
    text, space = block.text, dict[str, Any]()
    smaller = {'"tiny-var"': '"dot", plugins=["dot.py"], batch=2, weights="dot.safetensors"', '"ams_kv"': '"streaming"', "=64": "=4",
               ', "1/4"]': "]"}
    for old, new in smaller.items():
        text = text.replace(old, new)
    with stages.forgetting():
        exec(text, space)
    run = space["run"]
    assert {o.case.label for o in run.outcomes} >= {"full", "window 1/2", "streaming 1/2"}
    assert all(o.ok for o in run.outcomes)
    assert run["window 1/2"].images().startswith(b"\x89PNG")
    assert Path("report.html").stat().st_size > 1000


def test_a_method_of_a_notebook_is_not_measured() -> None:
    with stages.forgetting():
        cm.method("mine")(type("Mine", (cm.Scored,), {"__module__": "__main__", "score": lambda self, step, slots: slots.keys()[..., 0]}))
        with pytest.raises(Unsupported, match="plugins="):
            cm.measure("tiny-llamagen", methods=["mine"])
        METHODS.drop("__main__")


def test_the_library_is_imported_quickly() -> None:
    code = "import sys, cachemark; print(*{m.partition('.')[0] for m in sys.modules} & {'torch', 'pandas', 'sqlalchemy', 'numpy'})"
    assert not subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_every_name_is_handed_on() -> None:

    assert cm.report is sys.modules["cachemark.workflows.report"].report
    assert cm.plan("demo").name == "demo"
    assert cm.method == METHODS.add
    assert all(getattr(cm, name) is not None for name in cm.__all__)
    with pytest.raises(AttributeError, match="measur"):
        getattr(cm, "measur")  # noqa: B009
