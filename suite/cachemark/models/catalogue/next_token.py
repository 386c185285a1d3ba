"""The next-token models that can be named in a plan. Importing this file registers them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...cache.layout import Layout
from ...core import registry
from ...core.spec import Sampling
from .. import checkpoints, costs
from ..llamagen import PAPER_CFG, SIZES, LlamaGen, LlamaGenConfig, layout
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..tiny import tiny_vq
from ..tiny.tiny_vq import TinyVQ
from ..vision.vq import VQ, VQ16
from ..weights import coder, embedded, embedded_identity, identities, transformer

ORIGIN = "FoundationVision/LlamaGen on Hugging Face"
TINY_NAME = "tiny-llamagen"
TINY = LlamaGenConfig(layers=6, heads=5, dim=160, vocab=512, classes=10, grid=16)
TINY_WEIGHTS, TINY_DECODER = "tiny-llamagen.safetensors", "tiny-vq.safetensors"


def _shape(config: LlamaGenConfig, sampling: Sampling, batch: int) -> Layout:
    return layout(config, range(batch), sampling, torch.float32, "cpu")


def _decoding(build: Callable[[], TinyVQ | VQ], side: int) -> Callable[[Tensor], Tensor]:
    """Images from raster tokens by an image decoder of this kind."""
    return partial(build().decode, grid=(side, side))


def _loaded(config: LlamaGenConfig, request: Request, decoder: TinyVQ | VQ, weights: str) -> Loaded:
    model = transformer(partial(LlamaGen, config), request.weights, request)
    decode = partial(decoder.decode, grid=(config.grid, config.grid))
    return Loaded(model, decode, weights, [*model.parameters(), model.rope, *decoder.parameters()])


def _register(name: str, config: LlamaGenConfig, paper: Sampling, build: Callable[[], TinyVQ | VQ], **others: Any) -> None:
    registry.models.add(name)(ModelEntry(
        name, "llamagen", LlamaGen.paradigm, (config.grid, config.grid), config.classes, partial(_shape, config),
        presets={"paper": paper, "greedy": replace(paper, temperature=0.0)},
        parameter_counts=partial(costs.llamagen, config, partial(_decoding, build, config.grid)), **others,
    ))


# -- the embedded model -----------------------------------------------------------------------------------------------
def _load_tiny(request: Request) -> Loaded:
    request = embedded(request, TINY_NAME, tiny_vq.NAME)
    return _loaded(TINY, request, tiny_vq.load(request.decoder_weights, device=request.device), _tiny_identity(request))


def _tiny_identity(request: Request) -> str:
    return embedded_identity(embedded(request, TINY_NAME, tiny_vq.NAME), partial(LlamaGen, TINY), tiny_vq.check)


_register(TINY_NAME, TINY, Sampling(cfg_scale=1.5), TinyVQ, load=_load_tiny, identity=_tiny_identity, quality=("legend",), preset="scene",
          summary="A LlamaGen of 2 M parameters trained on the embedded scene world, with its weights")


# -- the published ones -----------------------------------------------------------------------------------------------
def _load_published(config: LlamaGenConfig, files: tuple[PublishedFile, ...], request: Request) -> Loaded:
    return _loaded(config, request, coder(partial(VQ, VQ16), request), identities(files, request))


def _files(size: str, config: LlamaGenConfig) -> tuple[PublishedFile, ...]:
    extras, pixels = (checkpoints.WRAPPERS, checkpoints.EXTRAS), 16 * config.grid
    return (PublishedFile("weights", f"c2i_{size}_{pixels}.pt", ORIGIN, partial(LlamaGen, config), *extras),
            PublishedFile("decoder_weights", "vq_ds16_c2i.pt", ORIGIN, partial(VQ, VQ16), *extras))


for _size, _config in SIZES.items():
    _register(
        f"llamagen-{_size.lower()}", _config, Sampling(cfg_scale=PAPER_CFG[_size]), partial(VQ, VQ16),
        load=partial(_load_published, _config, _files(_size, _config)), identity=partial(identities, _files(_size, _config)),
        files=_files(_size, _config),
        summary=f"LlamaGen-{_size}, {_config.layers} layers, {_config.grid}×{_config.grid} tokens; weights optional, else random",
    )
