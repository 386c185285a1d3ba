"""MAR's image tokenizer: negative controls of its checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.nn.functional as F
from torch import nn

from cachemark.models.vision.kl import KL
from cachemark.models.vision.vq import AttnBlock

from .checks import Vector
from .readers.mar_vae import autoencoder

Break = Callable[[Vector, pytest.MonkeyPatch], Any]


def no_attention(vector: Vector, patch: pytest.MonkeyPatch) -> KL:
    patch.setattr(AttnBlock, "forward", lambda self, x: x)
    return autoencoder(vector)


def group_norm_eps(vector: Vector, _: pytest.MonkeyPatch) -> KL:
    model = autoencoder(vector)
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            module.eps = 1e-3
    return model


def another_scale(vector: Vector, patch: pytest.MonkeyPatch) -> KL:
    patch.setattr("cachemark.models.vision.kl.SCALE", 0.18215)
    return autoencoder(vector)


def padded_on_all_sides(vector: Vector, _: pytest.MonkeyPatch) -> KL:
    model = autoencoder(vector)
    for name, module in model.named_modules():
        if name.endswith("downsample") and hasattr(module, "conv"):
            module.forward = lambda x, conv=module.conv: F.conv2d(x, conv.weight, conv.bias, stride=2, padding=1)
    return model


def variance_for_deviation(vector: Vector, patch: pytest.MonkeyPatch) -> KL:
    moments = KL.moments
    patch.setattr(KL, "moments", lambda self, images: (moments(self, images)[0], moments(self, images)[1].square()))
    return autoencoder(vector)


CONTROLS: dict[str, dict[Break, tuple[str, ...]]] = {
    "vae_decoder": {
        no_attention: ("image", "decoded"),
        group_norm_eps: ("image", "decoded"),
        another_scale: ("decoded",),
    },
    "vae_encoder": {
        no_attention: ("moments", "mean", "deviation", "encoded"),
        group_norm_eps: ("moments", "mean", "deviation"),
        another_scale: ("encoded",),
        padded_on_all_sides: ("moments", "mean", "deviation", "encoded"),
        variance_for_deviation: ("deviation",),
    },
}
