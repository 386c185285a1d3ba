"""Model entry of the GPT."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from cachemark.cache.layout import Layout
from cachemark.core.spec import Sampling
from cachemark.models import checkpoints, weights
from cachemark.models.protocol import Loaded, ModelEntry, PublishedFile, Request
from cachemark.models.registry import MODELS
from cachemark.roofline.bill import ParameterCounts

from .network import GPT, GPTConfig, layout

CONFIG = GPTConfig()
WEIGHTS = PublishedFile("weights", "gpt.safetensors", "this package", partial(GPT, CONFIG))
PIXEL = 4  # pixels along a side of the square that a token becomes


def decode(tokens: Tensor) -> Tensor:
    """Convert tokens (B, N) to images (B, 3, H, W) in [-1, 1]; a token has four levels per channel."""
    levels = torch.stack((tokens // 16, tokens // 4 % 4, tokens % 4), 1)
    colours = (levels / 1.5 - 1).unflatten(2, (CONFIG.grid, CONFIG.grid))
    return colours.repeat_interleave(PIXEL, 2).repeat_interleave(PIXEL, 3)


def identity(request: Request) -> str:
    """Return the name of the weights, part of the identity of a case."""
    return checkpoints.sha256(request.weights) if request.weights else f"random:{request.seed}"


def load(request: Request) -> Loaded:
    """Load weights from a file, or create random ones."""
    model = weights.transformer(WEIGHTS, request)
    return Loaded(model, decode, identity(request), list(model.parameters()))


def shape(sampling: Sampling, batch: int) -> Layout:
    """Return the shape of a generation without loading anything."""
    return layout(CONFIG, range(batch), sampling, torch.float32, "cpu")


def counts() -> ParameterCounts:
    """Return the cost of matrix products: 12 dim² weights per block, 20 dim activations per token."""
    image = partial(decode, torch.zeros(1, CONFIG.grid**2, dtype=torch.int64, device="meta"))
    return ParameterCounts(12 * CONFIG.dim**2, 20 * CONFIG.dim, image, CONFIG.dim * CONFIG.vocab, CONFIG.vocab)


MODELS.add("gpt")(ModelEntry(
    "gpt", "gpt", GPT.paradigm, (CONFIG.grid, CONFIG.grid), CONFIG.classes, shape, load, identity,
    presets={"paper": Sampling(cfg_scale=1.5)}, summary="A GPT of 3 layers, 8×8 colours; weights optional, else random",
    parameter_counts=counts,
))  # fmt: skip
