"""The next-scale models that can be named in a plan. Importing this file registers them."""

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
from .. import checkpoints, costs, var
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..tiny import tiny_msvq
from ..tiny.tiny_msvq import TinyMSVQ
from ..tiny.tiny_var import NAME as TINY_NAME
from ..tiny.tiny_var import TINY_VAR
from ..var import VAR, VARConfig
from ..vision import msvq
from ..vision.msvq import MSVQ, MSVQConfig, MultiScaleQuantizer
from ..weights import coder, embedded, embedded_identity, identities, transformer

ORIGIN = "FoundationVision/var on Hugging Face"
PAPER = Sampling(cfg_scale=1.5, cfg_schedule="linear", top_k=900, top_p=0.96)  # the authors' evaluation


def build(config: VARConfig) -> VAR:
    """The transformer on any device, for names and shapes."""
    return VAR(config, MultiScaleQuantizer(config.sides, config.vocab, config.width))


def _shape(config: VARConfig, sampling: Sampling, batch: int) -> Layout:
    return var.layout(config, range(batch), sampling, torch.float32, "cpu")


def _loaded(config: VARConfig, request: Request, images: TinyMSVQ | MSVQ, weights: str) -> Loaded:
    quantizer = images.quantizer if isinstance(images, TinyMSVQ) else images.quantize
    found, expected = (quantizer.sides, quantizer.width, quantizer.codes), (config.sides, config.width, config.vocab)
    if found != expected:
        raise BadCheckpoint(f"The image tokenizer has sides, channels, codes {found}; this model needs {expected}.",
                            remedy="Give the tokenizer that the model was trained with.")
    make = partial(VAR, config, quantizer, recompute=request.engine == "reference")
    if request.weights:
        var.check_sides(config, request.weights)
    model = transformer(make, request.weights, request, ignore=var.BUFFERS)
    return Loaded(model, images.decode, weights, [*model.parameters(), *images.parameters()])


def _register(name: str, config: VARConfig, paper: Sampling, images: Callable[[], TinyMSVQ | MSVQ], **others: Any) -> None:
    side = config.sides[-1]
    registry.models.add(name)(ModelEntry(
        name, "var", VAR.paradigm, (side, side), config.classes, partial(_shape, config),
        presets={"paper": paper, "greedy": replace(paper, temperature=0.0)},
        parameter_counts=partial(costs.var, config, lambda: images().decode), **others,
    ))


# -- the embedded model -----------------------------------------------------------------------------------------------
def _load_tiny(request: Request) -> Loaded:
    request = embedded(request, TINY_NAME, tiny_msvq.NAME)
    return _loaded(TINY_VAR, request, tiny_msvq.load(request.decoder_weights, device=request.device), _tiny_identity(request))


def _tiny_identity(request: Request) -> str:
    return embedded_identity(embedded(request, TINY_NAME, tiny_msvq.NAME), partial(build, TINY_VAR), tiny_msvq.check)


_register(TINY_NAME, TINY_VAR, Sampling(cfg_scale=1.5, cfg_schedule="linear"), TinyMSVQ, load=_load_tiny, identity=_tiny_identity,
          quality=("legend",), preset="scene", summary="A VAR of 2 M parameters trained on the embedded scene world, with its weights")


# -- the published ones -----------------------------------------------------------------------------------------------
def _tokenizer(config: VARConfig) -> partial[MSVQ]:
    return partial(MSVQ, MSVQConfig(config.sides, z=config.width, codes=config.vocab))


def _load_published(config: VARConfig, files: tuple[PublishedFile, ...], request: Request) -> Loaded:
    return _loaded(config, request, coder(_tokenizer(config), request, ignore=msvq.USED), _identity(config, files, request))


def _identity(config: VARConfig, files: tuple[PublishedFile, ...], request: Request) -> str:
    if request.weights:
        var.check_sides(config, request.weights)
    return identities(files, request)


def _files(size: str, config: VARConfig) -> tuple[PublishedFile, ...]:
    under, extras = checkpoints.WRAPPERS, checkpoints.EXTRAS
    return (PublishedFile("weights", f"var_{size.partition('-')[0]}.pth", ORIGIN, partial(build, config), under, (*extras, *var.BUFFERS)),
            PublishedFile("decoder_weights", "vae_ch160v4096z32.pth", ORIGIN, _tokenizer(config), under, (*extras, *msvq.USED)))


for _size, _config in var.SIZES.items():
    _register(
        f"var-{_size}", _config, PAPER, _tokenizer(_config), files=_files(_size, _config),
        load=partial(_load_published, _config, _files(_size, _config)), identity=partial(_identity, _config, _files(_size, _config)),
        summary=f"VAR-{_size}, {_config.depth} blocks, {len(_config.sides)} scales up to {_config.sides[-1]}×{_config.sides[-1]}; "
                "weights optional, else random",
    )
