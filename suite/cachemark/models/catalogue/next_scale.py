"""Next-scale models that plans can name. Importing this file registers them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...core.errors import BadCheckpoint
from ...core.spec import Sampling
from .. import costs, var
from ..checkpoints import EXTRAS
from ..protocol import PublishedFile
from ..tiny.tokenizers import MSVQ_WEIGHTS, TinyMSVQ, TinyMSVQConfig
from ..var import VAR, VARConfig
from ..vision import msvq
from ..vision.msvq import MSVQ, MSVQConfig, MultiScaleQuantizer
from .family import SCENE_QUALITY, CatalogueModel, Family, register, with_greedy

TINY_NAME = "tiny-var"
_MAPS = TinyMSVQConfig()
TINY_VAR = VARConfig(depth=6, heads=4, dim=128, sides=_MAPS.sides, vocab=_MAPS.codes, classes=10, width=_MAPS.channels)
TINY_SIZES = {  # smaller ones refine the drafts of tiny-var, or compete with it at equal FLOPs
    TINY_NAME: TINY_VAR,
    "tiny-var-d2": replace(TINY_VAR, depth=2, heads=3, dim=48),
    "tiny-var-d3": replace(TINY_VAR, depth=3, heads=4, dim=64),
}
PAPER = Sampling(cfg_scale=1.5, cfg_schedule="linear", top_k=900, top_p=0.96)  # the authors' evaluation


def build(config: VARConfig, tokenizer: TinyMSVQ | MSVQ | None = None, engine: str = "eager") -> VAR:
    """Build the transformer on the tokenizer's quantizer. Raises BadCheckpoint for another model's.

    Without a tokenizer the model serves for names and shapes.
    """
    if tokenizer is None:
        return VAR(config, MultiScaleQuantizer(config.sides, config.vocab, config.width))
    quantizer = tokenizer.quantizer if isinstance(tokenizer, TinyMSVQ) else tokenizer.quantize
    actual, expected = (quantizer.sides, quantizer.width, quantizer.codes), (config.sides, config.width, config.vocab)
    if actual != expected:
        raise BadCheckpoint(f"The image tokenizer has sides, channels, codes {actual}; this model needs {expected}.",
                            remedy="Use the tokenizer that the model was trained with.")
    return VAR(config, quantizer, recompute=engine == "reference")


FAMILY = Family("var", VAR.paradigm, "FoundationVision/var on Hugging Face", build, costs.var, ignored=(*EXTRAS, *var.BUFFERS),
                check=var.check_sides, grid=lambda config: config.grid, classes_in=("class_emb.weight", 1))

for _name in (TINY_NAME, "tiny-var-d2"):  # the weights of the third are not bundled
    _config = TINY_SIZES[_name]
    _trained = "A VAR of 2 M parameters" if _name == TINY_NAME else f"A VAR of {_config.depth} blocks of width {_config.dim}"
    register(CatalogueModel(
        FAMILY, _name, _config, f"{_name}.safetensors", MSVQ_WEIGHTS, with_greedy(Sampling(cfg_scale=1.5, cfg_schedule="linear")),
        f"{_trained} trained on procedural scenes, with its weights", quality=SCENE_QUALITY, preset="scene",
    ))
for _size, _config in var.SIZES.items():
    _tokenizer = partial(MSVQ, MSVQConfig(sides=_config.sides, z=_config.width, codes=_config.vocab))
    _decoder = PublishedFile("decoder_weights", "vae_ch160v4096z32.pth", FAMILY.origin, _tokenizer, ignored=(*EXTRAS, *msvq.UNUSED))
    register(CatalogueModel(
        FAMILY, f"var-{_size}", _config, f"var_{_size.partition('-')[0]}.pth", _decoder, with_greedy(PAPER),
        f"VAR-{_size}, {_config.depth} blocks, {len(_config.sides)} scales up to {'×'.join(map(str, _config.grid))}",
    ))
