"""The masked models that can be named in a plan. Importing this file registers them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from ...cache.layout import Layout
from ...core import registry
from ...core.errors import BadCheckpoint
from ...core.spec import Sampling
from .. import checkpoints, costs, mar
from ..mar import MAR, PAPER_CFG, MARConfig
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..tiny import tiny_kl
from ..tiny.tiny_kl import TinyKL
from ..tiny.tiny_mar import NAME as TINY_NAME
from ..tiny.tiny_mar import TINY_MAR
from ..vision import kl
from ..vision.kl import KL
from ..weights import identity, packaged, transformer

AVERAGED = ("model_ema", "model")  # entries of a published file: the averaged weights are those that were evaluated
ORIGIN = "the links in the README of LTH14/mar on GitHub"
PAPER_STEPS = 256
FEWER_STEPS = 64  # with which the papers on caches compare


def _shape(config: MARConfig, sampling: Sampling, batch: int) -> Layout:
    return mar.layout(config, range(batch), sampling, torch.float32, "cpu")


def _generator(config: MARConfig, request: Request) -> MAR:
    make = partial(MAR, config, eager_head=request.engine == "reference")
    return transformer(make, request.weights, request, wrappers=AVERAGED)


def _joined(model: MAR, coder: KL | TinyKL, weights: str) -> Loaded:
    return Loaded(model, coder.decode, weights, [*model.parameters(), *coder.parameters()])


# -- the embedded model -----------------------------------------------------------------------------------------------
def _tiny_files(request: Request) -> tuple[str, str]:
    return (request.weights or str(packaged(f"{TINY_NAME}.safetensors")),
            request.decoder_weights or str(packaged(f"{tiny_kl.NAME}.safetensors")))


def _load_tiny(request: Request) -> Loaded:
    path, decoder = _tiny_files(request)
    coder = tiny_kl.load(decoder, device=request.device)
    if coder.config.channels != TINY_MAR.channels:
        raise BadCheckpoint(f"The image tokenizer has {coder.config.channels} channels; this model needs {TINY_MAR.channels}.",
                            remedy="Give the tokenizer that the model was trained with.")
    return _joined(_generator(TINY_MAR, replace(request, weights=path)), coder, _tiny_identity(request))


def _tiny_identity(request: Request) -> str:
    path, decoder = _tiny_files(request)
    tiny_kl.check(decoder)
    return f"{identity(path, partial(MAR, TINY_MAR), 0, wrappers=AVERAGED)}/{checkpoints.sha256(decoder)}"


# -- the published ones -----------------------------------------------------------------------------------------------
def _decoder(request: Request) -> KL:
    """The autoencoder stays in fp32 whatever the transformer's dtype, as in the authors' scripts."""
    if request.decoder_weights:
        return checkpoints.load(KL, request.decoder_weights, dtype=torch.float32, device=request.device, ignore=kl.UNUSED)
    torch.manual_seed(request.seed)
    return KL().to(request.device).eval().requires_grad_(False)


def _load(config: MARConfig, request: Request) -> Loaded:
    weights = _identity(config, request)
    return _joined(_generator(config, request), _decoder(request), weights)


def _identity(config: MARConfig, request: Request) -> str:
    tokens = identity(request.weights, partial(MAR, config), request.seed, wrappers=AVERAGED)
    return f"{tokens}/{identity(request.decoder_weights, KL, request.seed, ignore=kl.UNUSED)}"


def _files(size: str, config: MARConfig) -> tuple[PublishedFile, ...]:
    folder = {"B": "mar_base", "L": "mar_large", "H": "mar_huge"}[size]
    ignored = (*checkpoints.EXTRAS, *kl.UNUSED)
    return (PublishedFile("weights", f"{folder}/checkpoint-last.pth", ORIGIN, partial(MAR, config), AVERAGED, checkpoints.EXTRAS),
            PublishedFile("decoder_weights", "kl16.ckpt", ORIGIN, KL, checkpoints.WRAPPERS, ignored))


def _published(size: str, config: MARConfig) -> ModelEntry:
    paper = Sampling(cfg_scale=PAPER_CFG[size], cfg_schedule="linear", steps=PAPER_STEPS)
    return ModelEntry(
        f"mar-{size.lower()}", "mar", MAR.paradigm, (config.grid, config.grid), config.classes, partial(_shape, config),
        partial(_load, config), partial(_identity, config), {"paper": paper, "fewer": replace(paper, steps=FEWER_STEPS)},
        summary=f"MAR-{size}, {config.depth[0]} + {config.depth[1]} blocks and a diffusion head, {config.grid}×{config.grid} tokens; "
                "weights optional, else random",
        files=_files(size, config), parameter_counts=partial(costs.mar, config, lambda: KL().decode),
    )


registry.models.add(TINY_NAME)(ModelEntry(
    TINY_NAME, "mar", MAR.paradigm, (TINY_MAR.grid,) * 2, TINY_MAR.classes, partial(_shape, TINY_MAR), _load_tiny, _tiny_identity,
    {"paper": Sampling(cfg_scale=3.0, cfg_schedule="linear")}, ("legend",), "scene",
    "A MAR of 3 M parameters trained on the embedded scene world, with its weights",
    parameter_counts=partial(costs.mar, TINY_MAR, lambda: TinyKL().decode),
))
for _size, _config in mar.SIZES.items():
    registry.models.add(f"mar-{_size.lower()}")(_published(_size, _config))
