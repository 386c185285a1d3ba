"""Masked models that plans can name. Importing this file registers them."""

from __future__ import annotations

from dataclasses import replace

from ...core.errors import BadCheckpoint
from ...core.spec import Sampling
from .. import costs, mar
from ..checkpoints import EXTRAS
from ..mar import MAR, PAPER_CFG, MARConfig
from ..protocol import PublishedFile
from ..tiny.tokenizers import KL_WEIGHTS, Sizes, TinyKL
from ..vision import kl
from ..vision.kl import KL
from .family import SCENE_QUALITY, CatalogueModel, Family, register

PAPER_STEPS = 256
FEWER_STEPS = 64  # the one in papers on caches
FOLDERS = {"B": "mar_base", "L": "mar_large", "H": "mar_huge"}
TINY_NAME = "tiny-mar"
# Its head takes one step per 25 times of the process, the least noisy one, and so starts at time 960. The published models start at 999,
# where the token is almost pure noise and an error in the predicted noise is magnified a thousandfold, which requires longer training.
TINY_MAR = MARConfig(
    dim=160, depth=(4, 4), heads=5, head_depth=3, head_width=128, grid=16, channels=Sizes().channels, classes=10, buffer=8, steps=20,
    diffusion=(1,) * 25,
)


def build(config: MARConfig, tokenizer: TinyKL | KL | None = None, engine: str = "eager") -> MAR:
    """Build transformer and head. Raises BadCheckpoint for an image tokenizer of another model."""
    if isinstance(tokenizer, TinyKL) and tokenizer.config.channels != config.channels:
        raise BadCheckpoint(f"The image tokenizer has {tokenizer.config.channels} channels; this model needs {config.channels}.",
                            remedy="Use the tokenizer that the model was trained with.")
    return MAR(config, eager_head=engine == "reference")


FAMILY = Family("mar", MAR.paradigm, "the links in the README of LTH14/mar on GitHub", build, costs.mar,
                classes_in=("class_emb.weight", 0))
DECODER = PublishedFile("decoder_weights", "kl16.ckpt", FAMILY.origin, KL, ignored=(*EXTRAS, *kl.UNUSED))

register(CatalogueModel(
    FAMILY, TINY_NAME, TINY_MAR, f"{TINY_NAME}.safetensors", KL_WEIGHTS, {"paper": Sampling(cfg_scale=3.0, cfg_schedule="linear")},
    "A MAR of 3 M parameters trained on procedural scenes, with its weights", quality=SCENE_QUALITY, preset="scene",
))
for _size, _config in mar.SIZES.items():
    _paper = Sampling(cfg_scale=PAPER_CFG[_size], cfg_schedule="linear", steps=PAPER_STEPS)
    register(CatalogueModel(
        FAMILY, f"mar-{_size.lower()}", _config, f"{FOLDERS[_size]}/checkpoint-last.pth", DECODER,
        {"paper": _paper, "fewer": replace(_paper, steps=FEWER_STEPS)},
        f"MAR-{_size}, {_config.depth[0]} + {_config.depth[1]} blocks and a diffusion head, {_config.grid}×{_config.grid} tokens",
    ))
