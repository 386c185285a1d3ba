"""Wrong VAR and Infinity models and image tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cachemark.models import sampling, scales, var
from cachemark.models.infinity import Infinity
from cachemark.models.layers import RMSNorm
from cachemark.models.scales import ModulatedBlock
from cachemark.models.vision import bsq
from cachemark.models.vision.msvq import MultiScaleQuantizer
from cachemark.models.vision.vq import Downsample

from ..readers import infinity as infinity_reader
from .wrong_model import (
    changed,
    pad_on_all_sides,
    patched,
    top_p_without_the_crossing_token,
    with_eps,
)

# -- Infinity -------------------------------------------------------------------------------------------------------------
PASSES = "logits guided hidden"


def table_for_another_finest_map(head_dim: int, sides: tuple[int, ...], base: float, device: torch.device) -> Tensor:
    """Positions in units of the finest map of this image."""
    half = head_dim // 2
    tables = []
    for side in sides:
        turn = (torch.arange(side) * sides[-1] / side)[:, None] * base ** (-torch.arange(0, half, 2) / half)
        angles = torch.cat((turn[:, None].expand(side, side, -1), turn[None].expand(side, side, -1)), -1).flatten(0, 1)
        tables.append(torch.polar(torch.ones_like(angles), angles))
    return torch.cat(tables)


def read_with_padding(right: Callable[..., Any]) -> Callable[..., Any]:
    """The shorter text's padding is attended."""

    def read(self: Infinity, *arguments: Any) -> tuple[Tensor, Tensor]:
        features, attended = right(self, *arguments)
        return features, torch.ones_like(attended)

    return read


def read_with_a_whole_unconditional_text(right: Callable[..., Any]) -> Callable[..., Any]:
    """The unconditional row sees as many learned vectors as the longest text has."""

    def read(self: Infinity, labels: Any, copies: int) -> tuple[Tensor, Tensor]:
        features, attended = right(self, labels, copies)
        attended[len(labels) :] = True
        return features, attended

    return read


INFINITY = [
    patched("another finest map", "rotations", infinity_reader, "rope_table", lambda _: table_for_another_finest_map),
    patched("padding is seen", PASSES, Infinity, "read", read_with_padding),
    patched("whole unconditional text", PASSES, Infinity, "read", read_with_a_whole_unconditional_text),
    patched("resized by area", "next_maps summed image", bsq, "resized",
            lambda _: lambda x, side: F.interpolate(x, size=(side, side), mode="area")),
    changed("group norm eps", "image", lambda subject: with_eps(subject.images, nn.GroupNorm, 1e-2)),
    changed("large norm eps", PASSES, lambda subject: with_eps(subject.model, (RMSNorm, ModulatedBlock, scales.HeadNorm), 1e-2)),
    patched("text read in fp32", "rounded", infinity_reader, "in_bf16", lambda _: lambda mixed: mixed),
]


# -- VAR ------------------------------------------------------------------------------------------------------------------
def spread_to_the_nearest(self: MultiScaleQuantizer, codes: Tensor, scale: int) -> Tensor:
    side = self.sides[scale]
    h = F.embedding(codes, self.embedding.weight).transpose(1, 2).unflatten(2, (side, side))
    return F.interpolate(h, size=(self.sides[-1],) * 2, mode="nearest")


def one_phi(subject: Any) -> None:
    """One convolution for all scales."""
    for model in subject.models.values():
        model.quantizer._phi = [0] * len(model.quantizer._phi)


VAR = [
    patched("scale not clamped", "logits guided hidden teacher", var, "STEEPEST", lambda _: 99.0),
    patched("guided alike in every scale", "guided", var, "guide_scale",
            lambda _: lambda logits, setting, index, total: sampling.guide_scale(logits, setting, total - 1, total)),
    changed("one phi for all scales", "maps image restored quantised", one_phi),
    patched("nearest instead of bicubic", "maps next_maps quantised restored", MultiScaleQuantizer, "spread",
            lambda _: spread_to_the_nearest),
    changed("top-p drops the crossing token", "kept",
            lambda subject: replace(subject, filter_logits=top_p_without_the_crossing_token(subject.filter_logits))),
]
VAR_TOKENIZER = [  # the full-size tokenizer takes seconds to make
    replace(changed("group norm eps", "image latents again", lambda model: with_eps(model, nn.GroupNorm, 1e-2)), nightly=True),
    replace(changed("padded on all sides", "latents tokens", lambda model: pad_on_all_sides(model, Downsample)), nightly=True),
]
