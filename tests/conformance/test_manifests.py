"""Names and shapes of the published LlamaGen checkpoints, and the golden weights through the checkpoint loader."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cachemark.models import llamagen_text
from cachemark.models.checkpoints import load
from cachemark.models.llamagen import SIZES, LlamaGen
from cachemark.models.llamagen_text import CaptionedLlamaGen

from .checks import Vector
from .discovery import DEFAULT
from .readers.llamagen import KINDS, Transformer, config_of

MANIFESTS = Path(__file__).parent / "llamagen"
GOLDEN = DEFAULT / "llamagen" / "golden_small.safetensors"


@pytest.mark.parametrize("size", SIZES)
def test_names_and_shapes_are_those_of_the_published_file(size: str) -> None:
    manifest = json.loads((MANIFESTS / f"manifest_{size}.json").read_text())
    with torch.device("meta"):
        model = LlamaGen(SIZES[size])
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == manifest["state_dict"]
    assert sum(p.numel() for p in model.parameters()) == manifest["info"]["num_parameters"]


def test_every_published_size_is_known() -> None:
    names = {path.stem.removeprefix("manifest_") for path in MANIFESTS.glob("manifest_*.json")}
    assert names == SIZES.keys() | {"t2i_XL", "vq16", "vq8"}


@pytest.mark.parametrize("pixels", llamagen_text.SIZES)
def test_the_model_of_texts_has_the_names_of_its_file(pixels: int) -> None:
    manifest = json.loads((MANIFESTS / "manifest_t2i_XL.json").read_text())
    with torch.device("meta"):
        model = CaptionedLlamaGen(llamagen_text.SIZES[pixels])
        other = CaptionedLlamaGen(replace(llamagen_text.XL, longest=77))
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == manifest["state_dict"]
    assert sum(p.numel() for p in model.parameters()) == manifest["info"]["num_parameters"]
    assert {name: list(tensor.shape) for name, tensor in other.state_dict().items()} != manifest["state_dict"]


def test_a_model_from_a_checkpoint_computes_what_the_vectors_say(tmp_path: Path) -> None:
    vector = Vector.load(GOLDEN)
    content = {"model": vector.weights() | {"freqs_cis": torch.zeros(3)}, "steps": 7, "args": argparse.Namespace(gpt_model="GPT-B")}
    torch.save(content, tmp_path / "tiny.pt")
    model = load(lambda: LlamaGen(config_of(vector.facts)), tmp_path / "tiny.pt")
    faults = [check.fault(Transformer(model), vector) for check in KINDS["small"].checks]
    assert not any(faults)
