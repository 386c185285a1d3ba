"""The weights that come with cachemark: described truly, belonging together, and good enough to measure with."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import pytest
import torch

from cachemark import registry
from cachemark.cache.slot import Memory
from cachemark.methods.full import Full
from cachemark.metrics.legend import legend
from cachemark.models.catalogue import TINY, TINY_DECODER, TINY_NAME, TINY_WEIGHTS, packaged
from cachemark.models.protocol import Request
from cachemark.models.tiny.vq import load
from cachemark.seeds import subset
from cachemark.spec import Sampling
from cachemark.train.scene import VERSION, scenes

BYTES = 8_000_000  # of the weights of one family: they are part of the wheel
FAMILIES = {"next-token": ("tiny-llamagen", "tiny-vq"), "next-scale": ("tiny-var", "tiny-msvq")}


def about(name: str) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(packaged(name).with_suffix(".json").read_text())
    return described


@pytest.mark.parametrize("name", [TINY_WEIGHTS, TINY_DECODER])
def test_the_description_is_of_this_file(name: str) -> None:
    told = about(name)
    assert told["sha256"] == hashlib.sha256(packaged(name).read_bytes()).hexdigest()
    assert told["finished"]
    assert told["data"] == VERSION
    last = json.loads(packaged(name).with_suffix(".log.jsonl").read_text().splitlines()[-1])
    assert last["step"] == told["steps"]
    assert told["held_out"].items() <= last.items()


def test_generator_and_tokenizer_speak_one_language() -> None:
    vq = load(packaged(TINY_DECODER))
    assert about(TINY_WEIGHTS)["language"] == about(TINY_DECODER)["language"] == vq.language
    assert about(TINY_WEIGHTS)["config"] == asdict(TINY)
    assert vq.config.codes == TINY.vocab


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_small(family: str) -> None:
    files = [f for name in FAMILIES[family] for f in packaged(TINY_WEIGHTS).parent.glob(f"{name}[.-]*")]
    assert 0 < sum(f.stat().st_size for f in files) <= BYTES


def test_every_file_belongs_to_a_family() -> None:
    starts = tuple(name for names in FAMILIES.values() for name in names)
    assert {f.name for f in packaged(TINY_WEIGHTS).parent.iterdir() if not f.name.startswith(starts)} == {"similarity.json"}


def test_the_tokenizer_reconstructs_new_scenes() -> None:
    vq, images = load(packaged(TINY_DECODER)), scenes(128, 987).images
    with torch.inference_mode():
        codes = vq.encode(images)
        shown = vq.decode(codes).clamp(-1, 1)
    psnr = 10 * torch.log10(4 / (shown - images).square().mean((1, 2, 3)))
    assert psnr.mean() >= 29
    assert codes.unique().numel() > 400


def test_the_full_cache_obeys_the_legend() -> None:
    model, chosen = registry.models.get(TINY_NAME).load(Request()), subset("tune64", TINY.classes)
    tokens = model.generator.generate(torch.tensor(chosen.labels), chosen.seeds, Full(), Sampling(cfg_scale=1.5), Memory())
    with torch.inference_mode():
        answers = legend(model.decode(tokens))
    assert answers.float().mean() >= 0.95
