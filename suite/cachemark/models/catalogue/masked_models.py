"""The masked models that can be named in a plan. Importing this file registers them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

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
from ..weights import coder, embedded, embedded_identity, identities, transformer

AVERAGED = ("model_ema", "model")  # entries of a published file: the averaged weights are those that were evaluated
ORIGIN = "the links in the README of LTH14/mar on GitHub"
PAPER_STEPS = 256
FEWER_STEPS = 64  # with which the papers on caches compare


def _shape(config: MARConfig, sampling: Sampling, batch: int) -> Layout:
    return mar.layout(config, range(batch), sampling, torch.float32, "cpu")


def _loaded(config: MARConfig, request: Request, decoder: KL | TinyKL, weights: str) -> Loaded:
    make = partial(MAR, config, eager_head=request.engine == "reference")
    model = transformer(make, request.weights, request, wrappers=AVERAGED)
    return Loaded(model, decoder.decode, weights, [*model.parameters(), *decoder.parameters()])


def _register(name: str, config: MARConfig, build: Callable[[], KL | TinyKL], **others: Any) -> None:
    registry.models.add(name)(ModelEntry(
        name, "mar", MAR.paradigm, (config.grid, config.grid), config.classes, partial(_shape, config),
        parameter_counts=partial(costs.mar, config, lambda: build().decode), **others,
    ))


# -- the embedded model -----------------------------------------------------------------------------------------------
def _load_tiny(request: Request) -> Loaded:
    request = embedded(request, TINY_NAME, tiny_kl.NAME)
    decoder = tiny_kl.load(request.decoder_weights, device=request.device)
    if decoder.config.channels != TINY_MAR.channels:
        raise BadCheckpoint(f"The image tokenizer has {decoder.config.channels} channels; this model needs {TINY_MAR.channels}.",
                            remedy="Give the tokenizer that the model was trained with.")
    return _loaded(TINY_MAR, request, decoder, _tiny_identity(request))


def _tiny_identity(request: Request) -> str:
    return embedded_identity(embedded(request, TINY_NAME, tiny_kl.NAME), partial(MAR, TINY_MAR), tiny_kl.check, wrappers=AVERAGED)


_register(TINY_NAME, TINY_MAR, TinyKL, load=_load_tiny, identity=_tiny_identity, quality=("legend",), preset="scene",
          presets={"paper": Sampling(cfg_scale=3.0, cfg_schedule="linear")},
          summary="A MAR of 3 M parameters trained on the embedded scene world, with its weights")


# -- the published ones -----------------------------------------------------------------------------------------------
def _load_published(config: MARConfig, files: tuple[PublishedFile, ...], request: Request) -> Loaded:
    weights = identities(files, request)
    return _loaded(config, request, coder(KL, request, ignore=kl.UNUSED), weights)


def _files(size: str, config: MARConfig) -> tuple[PublishedFile, ...]:
    folder = {"B": "mar_base", "L": "mar_large", "H": "mar_huge"}[size]
    ignored = (*checkpoints.EXTRAS, *kl.UNUSED)
    return (PublishedFile("weights", f"{folder}/checkpoint-last.pth", ORIGIN, partial(MAR, config), AVERAGED, checkpoints.EXTRAS),
            PublishedFile("decoder_weights", "kl16.ckpt", ORIGIN, KL, checkpoints.WRAPPERS, ignored))


def _presets(size: str) -> dict[str, Sampling]:
    paper = Sampling(cfg_scale=PAPER_CFG[size], cfg_schedule="linear", steps=PAPER_STEPS)
    return {"paper": paper, "fewer": replace(paper, steps=FEWER_STEPS)}


for _size, _config in mar.SIZES.items():
    _register(
        f"mar-{_size.lower()}", _config, KL, presets=_presets(_size), files=_files(_size, _config),
        load=partial(_load_published, _config, _files(_size, _config)), identity=partial(identities, _files(_size, _config)),
        summary=f"MAR-{_size}, {_config.depth[0]} + {_config.depth[1]} blocks and a diffusion head, {_config.grid}×{_config.grid} tokens; "
                "weights optional, else random",
    )
