"""Next-token models that plans can name. Importing this file registers them."""

from __future__ import annotations

from ...core.spec import Sampling
from .. import costs
from ..checkpoints import EXTRAS
from ..llamagen import PAPER_CFG, SIZES, LlamaGen, LlamaGenConfig
from ..protocol import PublishedFile
from ..tiny.tokenizers import VQ_WEIGHTS
from ..vision import vq
from ..vision.vq import VQ
from .family import SCENE_QUALITY, CatalogueModel, Family, register, with_greedy

TINY_NAME = "tiny-llamagen"
TINY = LlamaGenConfig(layers=6, heads=5, dim=160, vocab=512, classes=10, grid=16)
TINY_WEIGHTS, TINY_DECODER = "tiny-llamagen.safetensors", "tiny-vq.safetensors"


FAMILY = Family("llamagen", LlamaGen.paradigm, "FoundationVision/LlamaGen on Hugging Face",
                lambda config, tokenizer, engine: LlamaGen(config), costs.llamagen, tables=lambda model: [model.rope],
                classes_in=("cls_embedding.embedding_table.weight", 1))
DECODER = PublishedFile("decoder_weights", "vq_ds16_c2i.pt", FAMILY.origin, VQ, vq.WRAPPERS, ignored=(*EXTRAS, *vq.UNUSED))

register(CatalogueModel(
    FAMILY, TINY_NAME, TINY, TINY_WEIGHTS, VQ_WEIGHTS, with_greedy(Sampling(cfg_scale=1.5)),
    "A LlamaGen of 2 M parameters trained on procedural scenes, with its weights", quality=SCENE_QUALITY, preset="scene",
))
for _size, _config in SIZES.items():
    register(CatalogueModel(
        FAMILY, f"llamagen-{_size.lower()}", _config, f"c2i_{_size}_{16 * _config.grid}.pt", DECODER,
        with_greedy(Sampling(cfg_scale=PAPER_CFG[_size])),
        f"LlamaGen-{_size}, {_config.layers} layers, {_config.grid}×{_config.grid} tokens", pixels=16 * _config.grid,
    ))
