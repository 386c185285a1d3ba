"""Arithmetic cost per token of each family's networks, computed from their sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..cache.codecs import codec
from ..cache.layout import Step
from ..contract.method import Method
from ..core.spec import Case
from ..roofline.bill import bill
from ..roofline.operations import Bill
from ..roofline.passes import ParameterCounts
from .glm_image import GlmImageConfig
from .infinity import InfinityConfig
from .janus import JanusConfig
from .lined import LinedConfig
from .llama import LlamaConfig
from .llamagen import LlamaGenConfig
from .llamagen_text import CaptionConfig
from .mar import MARConfig
from .protocol import ModelEntry
from .var import VARConfig

Image = Callable[[], object]  # decodes one image to count its FLOPs

# Numbers per token and block that kernels hand to one another: at every norm, projection, attention and gate what is read and what is
# written, elementwise arithmetic fused into them, in widths of the model and of its MLP.
RASTER, SCALES = (12, 4), (14, 2)


def llamagen(config: LlamaGenConfig, image: Image) -> ParameterCounts:
    """Count a LlamaGen."""
    return ParameterCounts(*_llama(config), image, config.dim * config.vocab, config.vocab)


def captioned_llamagen(config: CaptionConfig, image: Image, text: int) -> ParameterCounts:
    """Count a LlamaGen that projects ``text`` tokens once per row."""
    counts, dim = llamagen(config.transformer, image), config.transformer.dim
    projected = config.text * dim + dim**2
    return replace(counts, row=text * projected, row_weights=projected)


def janus(config: JanusConfig, image: Image) -> ParameterCounts:
    """Count a Janus; its head and its embedding of sampled codes are MLPs."""
    dim, codes = config.decoder.dim, config.codes
    return ParameterCounts(*_llama(config.decoder), image, dim**2 + dim * codes, codes, config.code_dim * dim + dim**2)


def lined(config: LinedConfig, image: Image) -> ParameterCounts:
    """Count a Lumina or an Emu3, whose head covers the whole vocabulary, text included."""
    c = config.decoder
    return ParameterCounts(*_llama(c), image, c.dim * c.vocab, c.vocab)


def glm_image(config: GlmImageConfig, image: Image) -> ParameterCounts:
    """Count GLM-Image's autoregressive stage."""
    c = config.decoder
    return ParameterCounts(*_llama(c), image, c.dim * config.outputs, config.codes)


def _llama(c: LlamaGenConfig | LlamaConfig) -> tuple[int, int]:
    """Return the weights of a block, and the numbers passed between its products."""
    attention = (c.heads + 2 * c.groups) * c.head_dim * c.dim + c.dim**2
    return attention + 3 * c.dim * c.hidden, RASTER[0] * c.dim + RASTER[1] * c.hidden


def var(config: VARConfig, image: Image) -> ParameterCounts:
    """Count a VAR; blocks' modulations are projected once per row, the head norm's in every pass."""
    c = config
    row = (1 if c.shared_aln else c.depth) * 6 * c.dim**2
    return ParameterCounts(between=_between_scales(c.dim, 4 * c.dim), image=image, vocab=c.vocab, row=row, **c.work()._asdict())


def infinity(config: InfinityConfig, image: Image, text: int) -> ParameterCounts:
    """Count an Infinity. ``text``: entries of a text, padding included.

    Cross-attention computes queries and output per block and projects the text in every pass; the text is pooled once per row.
    """
    c = config
    entry, once = 2 * c.dim * c.text + c.text * c.dim + c.dim**2, c.dim**2 + 6 * c.dim**2  # weights for each entry of a text, and for all
    row = text * (entry + 2 * c.dim) + once  # pooled by attention of one query
    return ParameterCounts(between=_between_scales(c.dim, c.hidden), image=image, vocab=2 * c.bits, row=row,
                           row_weights=entry + once, **c.work(text)._asdict())


def mar(config: MARConfig, image: Image) -> ParameterCounts:
    """Count a MAR; everything but the blocks is in the layout of a masked model."""
    c = config
    return ParameterCounts(12 * c.dim**2, _between_scales(c.dim, 4 * c.dim), image)


def _between_scales(dim: int, hidden: int) -> int:
    """Return the numbers passed between the products of a block with modulations."""
    return SCALES[0] * dim + SCALES[1] * hidden


def case_bill(case: Case, entry: ModelEntry, method: Method, steps: Sequence[Step] = (), *, images: bool = True) -> Bill | None:
    """Return the bill of a case, or None if the model's products are not counted.

    ``steps``, ``images``: see :func:`bill`.
    """
    parts = entry.parameter_counts()
    if parts is None:
        return None
    layout = replace(entry.shape(case.sampling, case.batch), dtype=getattr(torch, case.dtype))
    return bill(method, layout, parts, codec=codec(case.codec), images=images, steps=steps)
