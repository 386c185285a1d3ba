"""Random weights of every family, drawn without a first, random initialization, and image decoding in chunks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cachemark.cache.layout import squares
from cachemark.models import checkpoints, weights
from cachemark.models.emu3 import Emu3, Emu3Config
from cachemark.models.glm_image import GlmImage, GlmImageConfig
from cachemark.models.infinity import Infinity, InfinityConfig
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.lined import ImageIds
from cachemark.models.llama import LlamaConfig
from cachemark.models.llamagen import LlamaGen, LlamaGenConfig
from cachemark.models.llamagen_text import CaptionConfig, CaptionedLlamaGen
from cachemark.models.lumina import Lumina, LuminaConfig, Vocabulary
from cachemark.models.mar import MAR, MARConfig
from cachemark.models.prompts import Prompts
from cachemark.models.protocol import PublishedFile, Request
from cachemark.models.var import VAR, VARConfig
from cachemark.models.vision.msvq import MultiScaleQuantizer

GRID = LlamaGenConfig(2, 2, 32, vocab=32, classes=10, grid=3)
SCALES = VARConfig(2, 2, 32, sides=(1, 2, 4), vocab=32, classes=10, width=8)
LINED = LuminaConfig(LlamaConfig(2, 4, 64, 80, 128, qk_norm=True), 3, 1, Vocabulary(4, 64, 75, 0, 69, 70, 76))
TURNED = GlmImageConfig(LlamaConfig(2, 4, 128, 80, 128, kv_heads=2, qkv_bias=True), 48, 64, 4, 2, (2, 3, 3))
QUANTIZER = MultiScaleQuantizer(SCALES.sides, SCALES.vocab, SCALES.width)
BUILDS = {
    "llamagen": lambda: LlamaGen(GRID),
    "llamagen-t2i": lambda: CaptionedLlamaGen(CaptionConfig(GRID, text=12, longest=6)),
    "janus": lambda: Janus(JanusConfig(LlamaConfig(2, 4, 64, 96, 128, kv_heads=2), codes=48, grid=4), Prompts()),
    "emu3": lambda: Emu3(Emu3Config(LlamaConfig(2, 4, 64, 80, 128, kv_heads=2), 3, 4, ImageIds(4, 64, 75)), Prompts()),
    "glm-image": lambda: GlmImage(TURNED, Prompts()),
    "lumina": lambda: Lumina(LINED, Prompts()),
    "var": lambda: VAR(SCALES, QUANTIZER),
    "infinity": lambda: Infinity(InfinityConfig(2, 2, 32, chunks=2, scales=squares((1, 2, 4)), width=5, text=128, longest=6)),
    "mar": lambda: MAR(MARConfig(32, (1, 1), 2, 1, 24, grid=4, channels=4, classes=10, buffer=3, steps=5, diffusion=(6, 0))),
}


class Poisoned(checkpoints.NoDraws):
    """Fill with NaN what the initialization is skipped for."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(function, types, args, kwargs)
        return made.data.fill_(float("nan")) if function.__name__ in checkpoints.DRAWS else made


@pytest.mark.parametrize("family", BUILDS)
def test_every_random_weight_is_drawn(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PublishedFile("weights", "x", "x", BUILDS[family])
    first = weights.transformer(file, Request()).state_dict()
    monkeypatch.setattr(checkpoints, "NoDraws", Poisoned)
    torch.manual_seed(7)
    again = weights.transformer(file, Request()).state_dict()
    for name, value in first.items():
        assert torch.equal(value, again[name]), name


def test_images_are_decoded_in_chunks_of_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []

    def decode(tokens: Tensor) -> Tensor:
        batches.append(len(tokens))
        return tokens[:, :1, None, None].expand(-1, 3, 8, 8).float()

    monkeypatch.setattr(weights, "PIXELS", 3 * 8 * 8)
    tokens = torch.arange(7)[:, None].repeat(1, 4)
    decoder = weights.in_chunks(decode)
    assert torch.equal(decoder(tokens), decode(tokens))
    assert batches == [1, 3, 3, 1, 7]
    decoder(tokens[:2])
    assert batches[5:] == [2]
