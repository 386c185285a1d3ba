"""The models that can be named in a plan. Importing this file registers them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path

import torch

from .. import registry
from ..cache.geometry import Layout
from ..spec import Sampling
from . import checkpoints
from .llamagen import PAPER_CFG, SIZES, LlamaGen, LlamaGenConfig
from .protocol import Entry, Loaded, Request
from .tiny import vq as tiny_vq
from .vision.vq import VQ, VQ16

TINY_NAME = "tiny-llamagen"
TINY = LlamaGenConfig(layers=6, heads=5, dim=160, vocab=512, classes=10, grid=16)
TINY_WEIGHTS, TINY_DECODER = "tiny-llamagen.safetensors", "tiny-vq.safetensors"


def packaged(name: str) -> Path:
    """Path of a weights file that the package carries."""
    return Path(str(resources.files("cachemark") / "data" / "weights" / name))


def _shape(config: LlamaGenConfig, sampling: Sampling, batch: int) -> Layout:
    with torch.device("meta"):
        return LlamaGen(replace(config, layers=1)).layout(range(batch), sampling)


def _generator(config: LlamaGenConfig, path: str | Path, request: Request) -> LlamaGen:
    build = partial(LlamaGen, config)
    if path:
        return checkpoints.load(build, path, dtype=request.dtype, device=request.device)
    return build().initialise(request.seed).to(request.device, request.dtype).eval().requires_grad_(False)


def _load_tiny(request: Request) -> Loaded:
    generator = _generator(TINY, request.weights or packaged(TINY_WEIGHTS), request)
    decoder = tiny_vq.load(request.decoder_weights or packaged(TINY_DECODER), device=request.device)
    grid = (TINY.grid, TINY.grid)
    parameters = [*generator.parameters(), *decoder.parameters()]
    return Loaded(generator, lambda tokens: decoder.decode(tokens, grid), _tiny_identity(request), parameters)


def _tiny_identity(request: Request) -> str:
    return checkpoints.sha256(request.weights or packaged(TINY_WEIGHTS))


def _load_published(config: LlamaGenConfig, request: Request) -> Loaded:
    generator = _generator(config, request.weights, request)
    decoder = _decoder(request)
    grid = (config.grid, config.grid)
    parameters = [*generator.parameters(), *decoder.parameters()]
    return Loaded(generator, lambda tokens: decoder.decode(tokens, grid), _identity(request), parameters)


def _decoder(request: Request) -> VQ:
    """The image decoder stays in fp32 whatever the transformer's dtype, as in the authors' scripts."""
    if request.decoder_weights:
        return checkpoints.load(partial(VQ, VQ16), request.decoder_weights, dtype=torch.float32, device=request.device)
    torch.manual_seed(request.seed)
    return VQ(VQ16).to(request.device).eval().requires_grad_(False)


def _identity(request: Request) -> str:
    return checkpoints.sha256(request.weights) if request.weights else f"random:{request.seed}"


def _published(size: str, config: LlamaGenConfig) -> Entry:
    paper = Sampling(cfg_scale=PAPER_CFG[size])
    return Entry(
        f"llamagen-{size.lower()}", "llamagen", LlamaGen.paradigm, (config.grid, config.grid), config.classes,
        partial(_shape, config), partial(_load_published, config), _identity, {"paper": paper, "greedy": replace(paper, temperature=0.0)},
        summary=f"LlamaGen-{size}, {config.layers} layers, {config.grid}×{config.grid} tokens; weights optional, else random",
    )


def _register(entry: Entry) -> None:
    registry.models.add(entry.name)(entry)


_register(Entry(
    TINY_NAME, "llamagen", LlamaGen.paradigm, (TINY.grid, TINY.grid), TINY.classes, partial(_shape, TINY), _load_tiny, _tiny_identity,
    {"paper": Sampling(cfg_scale=1.5), "greedy": Sampling(cfg_scale=1.5, temperature=0.0)}, ("legend",),
    "A LlamaGen of 2 M parameters trained on the embedded scene world, with its weights",
))
for _size, _config in SIZES.items():
    _register(_published(_size, _config))
