"""Small models of every family, for random weights."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from cachemark.cache.layout import squares
from cachemark.models import emu3, glm_image, infinity, janus, llamagen, llamagen_text, lumina, mar, var
from cachemark.models.lined import ImageIds
from cachemark.models.llama import LlamaConfig
from cachemark.models.prompts import Prompts
from cachemark.models.vision.msvq import MultiScaleQuantizer

PROMPTS = Prompts(((1, 40, 3), (1, 17, 90, 41, 66, 7, 3), (1, 5, 33, 3)), ((1, 2, 3), (1, 2, 2, 2, 2, 2, 3), (1, 2, 2, 3)))
DECODER = LlamaConfig(2, 4, 64, 96, 112, kv_heads=2)
LLAMAGEN_SIZES = llamagen.LlamaGenConfig(2, 2, 32, vocab=32, classes=10, grid=5)
CAPTIONED_SIZES = llamagen_text.CaptionConfig(LLAMAGEN_SIZES, text=12, longest=6)
JANUS_SIZES = janus.JanusConfig(DECODER, codes=48, grid=5)
EMU3_SIZES = emu3.Emu3Config(DECODER, 5, 4, ImageIds(first=80, codes=32, line_end=70))
LUMINA_SIZES = lumina.LuminaConfig(replace(DECODER, qk_norm=True), 2, 3, lumina.Vocabulary(4, 32, 42, 0, 40, 41, 44))
GLM_IMAGE_SIZES = glm_image.GlmImageConfig(replace(DECODER, qkv_bias=True), 48, 56, 4, 2, (1, 2, 1))
VAR_SIZES = var.VARConfig(depth=3, heads=2, dim=32, sides=(1, 2, 3, 4), vocab=32, classes=10, width=8)
INFINITY_SIZES = infinity.InfinityConfig(4, 2, 32, chunks=2, scales=squares((1, 2, 4)), width=5, text=128, longest=6)
MAR_SIZES = mar.MARConfig(32, (2, 3), 2, 2, 24, grid=4, channels=4, classes=10, buffer=3, steps=5, diffusion=(6, 0))
QUANTIZER = MultiScaleQuantizer(VAR_SIZES.sides, VAR_SIZES.vocab, VAR_SIZES.width)
BUILDS: dict[str, Callable[[], Any]] = {
    "llamagen": lambda: llamagen.LlamaGen(LLAMAGEN_SIZES), "llamagen-t2i": lambda: llamagen_text.CaptionedLlamaGen(
        CAPTIONED_SIZES, [torch.ones(length, CAPTIONED_SIZES.text) for length in (2, 6, 3)]),
    "janus": lambda: janus.Janus(JANUS_SIZES, PROMPTS), "emu3": lambda: emu3.Emu3(EMU3_SIZES, PROMPTS),
    "lumina": lambda: lumina.Lumina(LUMINA_SIZES, PROMPTS), "glm-image": lambda: glm_image.GlmImage(GLM_IMAGE_SIZES, PROMPTS),
    "var": lambda: var.VAR(VAR_SIZES, QUANTIZER),
    "infinity": lambda: infinity.Infinity(INFINITY_SIZES), "mar": lambda: mar.MAR(MAR_SIZES),
}
