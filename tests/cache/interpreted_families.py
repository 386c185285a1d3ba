"""Compares generations of Janus-Pro, Emu3, Lumina-mGPT and GLM-Image in Triton's interpreter; run by test_fused_norms.py."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from interpreting import run

from cachemark.cache.arena import Memory
from cachemark.cache.kernels import fused
from cachemark.core.spec import Sampling
from cachemark.methods.linear import Linear
from cachemark.methods.registry import METHODS
from cachemark.models.emu3 import Emu3, Emu3Config
from cachemark.models.glm_image import GlmImage
from cachemark.models.janus import Janus, JanusConfig
from cachemark.models.lumina import Lumina
from support.tiny_models import DECODER, EMU3_SIZES, GLM_IMAGE_SIZES, LUMINA_SIZES, PROMPTS

ONE, ALONE = replace(DECODER, layers=1), replace(DECODER, layers=1, heads=2, dim=32, kv_heads=None)
ALL = {"add_norm", "silu_mul", "rotate_append", "sample"}  # the condition rotates alone
FAMILIES: dict[str, tuple[Callable[[], Any], set[str]]] = {  # heads have their own keys or share them, as in the published models
    "janus": (lambda: Janus(JanusConfig(ALONE, codes=48, grid=3), PROMPTS), ALL | {"attend_turned"}),
    "emu3": (lambda: Emu3(Emu3Config(ONE, 2, 3, EMU3_SIZES.ids), PROMPTS), ALL),
    "lumina": (lambda: Lumina(replace(LUMINA_SIZES, decoder=replace(ALONE, qk_norm=True), height=1, width=1), PROMPTS),
               ALL | {"attend_turned"}),
    "glm-image": (lambda: GlmImage(replace(GLM_IMAGE_SIZES, decoder=replace(ONE, qkv_bias=True), grid=2, preview=2), PROMPTS), ALL),
}


def families() -> None:
    """Rows of different conditions draw the same tokens as by plain operations, also where entries go."""
    for name, (build, expected) in FAMILIES.items():
        model = build().initialise(0).eval().requires_grad_(False)
        for parameter in model.parameters():
            parameter.data *= 4 if parameter.dim() > 1 else 1  # so that attention is far from uniform
        method = Linear(B=6) if name == "janus" else METHODS.get("full").build({})
        sampling, launched, made = Sampling(cfg_scale=3.0, top_k=20), set[str](), []
        for on in (False, True):
            with fused.fusing(on), fused.launches(lambda name, *tensors, launched=launched: launched.add(name)):
                made.append(model.generate(torch.tensor([0, 1]), [3, 4], replace(method), sampling, Memory()))
        assert torch.equal(*made), name
        assert launched == expected | ({"attended", "choose", "move"} if name == "janus" else set()), (name, launched)


if __name__ == "__main__":
    run((), {"families": families}, anything=())
