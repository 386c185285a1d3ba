"""The next-scale models that can be named in a plan. Importing this file registers them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

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
from ..weights import identity, packaged, transformer

ORIGIN = "FoundationVision/var on Hugging Face"
PAPER = Sampling(cfg_scale=1.5, cfg_schedule="linear", top_k=900, top_p=0.96)  # the authors' evaluation


def build(config: VARConfig) -> VAR:
    """The transformer on any device, for names and shapes."""
    return VAR(config, MultiScaleQuantizer(config.sides, config.vocab, config.width))


def _shape(config: VARConfig, sampling: Sampling, batch: int) -> Layout:
    return var.layout(config, range(batch), sampling, torch.float32, "cpu")


def _joined(config: VARConfig, path: str, coder: TinyMSVQ | MSVQ, weights: str, request: Request) -> Loaded:
    quantizer = coder.quantizer if isinstance(coder, TinyMSVQ) else coder.quantize
    found, expected = (quantizer.sides, quantizer.width, quantizer.codes), (config.sides, config.width, config.vocab)
    if found != expected:
        raise BadCheckpoint(f"The image tokenizer has sides, channels, codes {found}; this model needs {expected}.",
                            remedy="Give the tokenizer that the model was trained with.")
    make = partial(VAR, config, quantizer, recompute=request.engine == "reference")
    if path:
        var.check_sides(config, path)
    model = transformer(make, path, request, ignore=var.BUFFERS)
    return Loaded(model, coder.decode, weights, [*model.parameters(), *coder.parameters()])


# -- the embedded model -----------------------------------------------------------------------------------------------
def _tiny_files(request: Request) -> tuple[str, str]:
    return (request.weights or str(packaged(f"{TINY_NAME}.safetensors")),
            request.decoder_weights or str(packaged(f"{tiny_msvq.NAME}.safetensors")))


def _load_tiny(request: Request) -> Loaded:
    path, decoder = _tiny_files(request)
    return _joined(TINY_VAR, path, tiny_msvq.load(decoder, device=request.device), _tiny_identity(request), request)


def _tiny_identity(request: Request) -> str:
    path, decoder = _tiny_files(request)
    tiny_msvq.check(decoder)
    return f"{identity(path, partial(build, TINY_VAR), 0)}/{checkpoints.sha256(decoder)}"


# -- the published ones -----------------------------------------------------------------------------------------------
def _tokenizer(config: VARConfig) -> MSVQConfig:
    return MSVQConfig(config.sides, z=config.width, codes=config.vocab)


def _load_published(config: VARConfig, request: Request) -> Loaded:
    return _joined(config, request.weights, _decoder(config, request), _identity(config, request), request)


def _decoder(config: VARConfig, request: Request) -> MSVQ:
    """The image tokenizer stays in fp32 whatever the transformer's dtype, as in the authors' scripts."""
    make = partial(MSVQ, _tokenizer(config))
    if request.decoder_weights:
        return checkpoints.load(make, request.decoder_weights, dtype=torch.float32, device=request.device, ignore=msvq.USED)
    torch.manual_seed(request.seed)
    return make().to(request.device).eval().requires_grad_(False)


def _identity(config: VARConfig, request: Request) -> str:
    if request.weights:
        var.check_sides(config, request.weights)
    tokens = identity(request.weights, partial(build, config), request.seed, ignore=var.BUFFERS)
    return f"{tokens}/{identity(request.decoder_weights, partial(MSVQ, _tokenizer(config)), request.seed, ignore=msvq.USED)}"


def _files(size: str, config: VARConfig) -> tuple[PublishedFile, ...]:
    under, extras = checkpoints.WRAPPERS, checkpoints.EXTRAS
    make = partial(MSVQ, _tokenizer(config))
    return (PublishedFile("weights", f"var_{size.partition('-')[0]}.pth", ORIGIN, partial(build, config), under, (*extras, *var.BUFFERS)),
            PublishedFile("decoder_weights", "vae_ch160v4096z32.pth", ORIGIN, make, under, (*extras, *msvq.USED)))


def _published(size: str, config: VARConfig) -> ModelEntry:
    side = config.sides[-1]
    return ModelEntry(
        f"var-{size}", "var", VAR.paradigm, (side, side), config.classes, partial(_shape, config), partial(_load_published, config),
        partial(_identity, config), {"paper": PAPER, "greedy": replace(PAPER, temperature=0.0)},
        summary=f"VAR-{size}, {config.depth} blocks, {len(config.sides)} scales up to {side}×{side}; weights optional, else random",
        files=_files(size, config), parameter_counts=partial(costs.var, config, lambda: MSVQ(_tokenizer(config)).decode),
    )


def _register(entry: ModelEntry) -> None:
    registry.models.add(entry.name)(entry)


_register(ModelEntry(
    TINY_NAME, "var", VAR.paradigm, (TINY_VAR.sides[-1],) * 2, TINY_VAR.classes, partial(_shape, TINY_VAR), _load_tiny, _tiny_identity,
    {"paper": Sampling(cfg_scale=1.5, cfg_schedule="linear"), "greedy": Sampling(cfg_scale=1.5, cfg_schedule="linear", temperature=0.0)},
    ("legend",), "scene", "A VAR of 2 M parameters trained on the embedded scene world, with its weights",
    parameter_counts=partial(costs.var, TINY_VAR, lambda: TinyMSVQ().decode),
))
for _size, _config in var.SIZES.items():
    _register(_published(_size, _config))
