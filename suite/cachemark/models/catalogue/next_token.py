"""The next-token models that can be named in a plan. Importing this file registers them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ...cache.layout import Layout
from ...core import registry
from ...core.spec import Sampling
from .. import checkpoints, costs
from ..llamagen import PAPER_CFG, SIZES, LlamaGen, LlamaGenConfig, layout
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..tiny import tiny_vq
from ..tiny.tiny_vq import TinyVQ
from ..vision.vq import VQ, VQ16
from ..weights import identity, packaged, transformer

ORIGIN = "FoundationVision/LlamaGen on Hugging Face"
TINY_NAME = "tiny-llamagen"
TINY = LlamaGenConfig(layers=6, heads=5, dim=160, vocab=512, classes=10, grid=16)
TINY_WEIGHTS, TINY_DECODER = "tiny-llamagen.safetensors", "tiny-vq.safetensors"


def _shape(config: LlamaGenConfig, sampling: Sampling, batch: int) -> Layout:
    return layout(config, range(batch), sampling, torch.float32, "cpu")


def _joined(generator: LlamaGen, decoder: TinyVQ | VQ, weights: str) -> Loaded:
    grid = (generator.config.grid, generator.config.grid)
    parameters = [*generator.parameters(), generator.rope, *decoder.parameters()]
    return Loaded(generator, lambda tokens: decoder.decode(tokens, grid), weights, parameters)


def _tiny_files(request: Request) -> tuple[str | Path, str | Path]:
    return request.weights or packaged(TINY_WEIGHTS), request.decoder_weights or packaged(TINY_DECODER)


def _load_tiny(request: Request) -> Loaded:
    weights, decoder = _tiny_files(request)
    model = transformer(partial(LlamaGen, TINY), weights, request)
    return _joined(model, tiny_vq.load(decoder, device=request.device), _tiny_identity(request))


def _tiny_identity(request: Request) -> str:
    weights, decoder = _tiny_files(request)
    checkpoints.check(partial(LlamaGen, TINY), weights)
    tiny_vq.check(decoder)
    return f"{checkpoints.sha256(weights)}/{checkpoints.sha256(decoder)}"


def _load_published(config: LlamaGenConfig, request: Request) -> Loaded:
    return _joined(transformer(partial(LlamaGen, config), request.weights, request), _decoder(request), _identity(config, request))


def _decoder(request: Request) -> VQ:
    """The image decoder stays in fp32 whatever the transformer's dtype, as in the authors' scripts."""
    if request.decoder_weights:
        return checkpoints.load(partial(VQ, VQ16), request.decoder_weights, dtype=torch.float32, device=request.device)
    torch.manual_seed(request.seed)
    return VQ(VQ16).to(request.device).eval().requires_grad_(False)


def _identity(config: LlamaGenConfig, request: Request) -> str:
    files: tuple[tuple[str, Callable[[], nn.Module]], ...]
    files = ((request.weights, partial(LlamaGen, config)), (request.decoder_weights, partial(VQ, VQ16)))
    return "/".join(identity(path, build, request.seed) for path, build in files)


def _files(size: str, config: LlamaGenConfig) -> tuple[PublishedFile, ...]:
    extras, pixels = (checkpoints.WRAPPERS, checkpoints.EXTRAS), 16 * config.grid
    return (PublishedFile("weights", f"c2i_{size}_{pixels}.pt", ORIGIN, partial(LlamaGen, config), *extras),
            PublishedFile("decoder_weights", "vq_ds16_c2i.pt", ORIGIN, partial(VQ, VQ16), *extras))


def _published(size: str, config: LlamaGenConfig) -> ModelEntry:
    paper = Sampling(cfg_scale=PAPER_CFG[size])
    return ModelEntry(
        f"llamagen-{size.lower()}", "llamagen", LlamaGen.paradigm, (config.grid, config.grid), config.classes,
        partial(_shape, config), partial(_load_published, config), partial(_identity, config),
        {"paper": paper, "greedy": replace(paper, temperature=0.0)},
        summary=f"LlamaGen-{size}, {config.layers} layers, {config.grid}×{config.grid} tokens; weights optional, else random",
        files=_files(size, config), parameter_counts=partial(costs.llamagen, config, partial(_decoding, partial(VQ, VQ16), config.grid)),
    )


def _decoding(build: Callable[[], TinyVQ | VQ], side: int) -> Callable[[Tensor], Tensor]:
    """Images from raster tokens by an image decoder of this kind."""
    return partial(build().decode, grid=(side, side))


def _register(entry: ModelEntry) -> None:
    registry.models.add(entry.name)(entry)


_register(ModelEntry(
    TINY_NAME, "llamagen", LlamaGen.paradigm, (TINY.grid, TINY.grid), TINY.classes, partial(_shape, TINY), _load_tiny, _tiny_identity,
    {"paper": Sampling(cfg_scale=1.5), "greedy": Sampling(cfg_scale=1.5, temperature=0.0)}, ("legend",), "scene",
    "A LlamaGen of 2 M parameters trained on the embedded scene world, with its weights",
    parameter_counts=partial(costs.llamagen, TINY, partial(_decoding, TinyVQ, TINY.grid)),
))
for _size, _config in SIZES.items():
    _register(_published(_size, _config))
