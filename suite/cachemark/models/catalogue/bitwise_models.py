"""The models of bitwise tokens that can be named in a plan. Importing this file registers them.

Transformer, image tokenizer and text encoder are published apart. Where no transformer is named its weights are random and texts are read
by a stand-in, so that speed and bytes can be measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from ...cache.layout import Layout
from ...core.spec import Sampling
from .. import checkpoints, costs, infinity, text_features
from ..infinity import SCALES, SIDES, SIZES, Infinity, InfinityConfig
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..text_features import Features
from ..vision import bsq
from ..vision.bsq import BSQ, BSQConfig
from ..weights import coder, identity, transformer
from .family import register, with_greedy
from .text_to_image import TEXTS

ORIGIN = "FoundationVision/Infinity on Hugging Face"
PAPER = Sampling(cfg_scale=4.0, top_k=900, top_p=0.97, temperature=0.5)  # the authors' script for single images
FILES = {"2B": ("infinity_2b_reg.pth", "infinity_vae_d32reg.pth"), "8B": ("infinity_8b_weights", "infinity_vae_d56_f8_14_patchify.pth")}
# No manifest of the tokenizer with 14 channels is at hand: it is taken to be the one with 32, a level less.
TOKENIZERS = {"2B": BSQConfig(), "8B": BSQConfig(ch_mult=(1, 2, 4, 4), z=14, patch=2)}


@dataclass(frozen=True)
class PublishedInfinity:
    """One size at one resolution, in pixels along a side, and the texts that it is asked for."""

    size: str
    pixels: int
    texts: tuple[str, ...] = TEXTS

    @property
    def config(self) -> InfinityConfig:
        return replace(SIZES[self.size], sides=SIDES[: SCALES[self.pixels]])

    @property
    def name(self) -> str:
        return f"infinity-{self.size.lower()}" + ("" if self.pixels == max(SCALES) else f"-{self.pixels}")

    @property
    def files(self) -> tuple[PublishedFile, PublishedFile]:
        """The transformer, and the image tokenizer."""
        own, images = FILES[self.size]
        shape = replace(TOKENIZERS[self.size], sides=self.config.sides)
        return (PublishedFile("weights", own, ORIGIN, partial(Infinity, self.config),
                              ignored=(*checkpoints.EXTRAS, *infinity.BUFFERS)),
                PublishedFile("decoder_weights", images, ORIGIN, partial(BSQ, shape), ("vae", *checkpoints.WRAPPERS),
                              (*checkpoints.EXTRAS, *bsq.UNUSED), bsq.official))

    @cached_property
    def lengths(self) -> Sequence[int]:
        """Number of features of each prompt where weights are random."""
        return text_features.stand_in_lengths(self.texts, self.config.longest)

    def features(self, request: Request) -> Features:
        """Features of the prompts by the encoder beside the weights, or the stand-in."""
        c, where = self.config, (request.device, request.dtype)
        if not request.weights:
            return text_features.stand_in(self.texts, c.text, *where)
        return text_features.encoded(self.texts, text_features.encoder_folder(request.weights), c.text, c.longest, *where)

    def identity(self, request: Request) -> str:
        """Weights of the transformer with the text encoder beside them, and those of the image tokenizer."""
        own, images = self.files
        digest = identity(own, request)
        if request.weights:
            text = text_features.identity(text_features.encoder_folder(request.weights))
            digest = hashlib.sha256(f"{digest} {text}".encode()).hexdigest()
        return f"{digest}/{identity(images, request)}"

    def load(self, request: Request) -> Loaded:
        own, images = self.files
        texts = self.features(request)
        make = partial(Infinity, self.config, texts, recompute=request.engine == "reference")
        model = transformer(make, request, ignore=own.ignored, wrappers=own.wrappers)
        tokenizer = coder(images, request)
        return Loaded(model, tokenizer.decode, self.identity(request),
                      [*model.parameters(), model.rope, *texts.resident, *tokenizer.parameters()], token_dtype=torch.int64)

    def shape(self, sampling: Sampling, batch: int) -> Layout:
        return infinity.layout(self.config, range(batch), sampling, torch.float32, "cpu")

    @property
    def entry(self) -> ModelEntry:
        c = self.config
        summary = f"Infinity-{self.size}, {c.depth} blocks, {len(c.sides)} scales up to {c.grid}×{c.grid}; weights optional, else random"
        return ModelEntry(
            self.name, "infinity", Infinity.paradigm, (c.grid, c.grid), len(self.texts), self.shape, self.load, self.identity,
            with_greedy(PAPER), summary=summary, files=self.files, prompts=self.texts, preset="coco", parameter_counts=self._counts,
            asking=self.asking,
        )

    def asking(self, texts: tuple[str, ...]) -> ModelEntry:
        """The entry for other texts. Raises Unsupported for one that it does not read, which its shape would not tell."""
        text_features.stand_in_lengths(texts, self.config.longest)
        return replace(self, texts=texts).entry

    def _counts(self) -> costs.ParameterCounts:
        _, images = self.files
        return costs.infinity(self.config, lambda: images.build().decode, max(self.lengths))


for _size, _pixels in (("2B", 1024), ("2B", 512), ("2B", 256), ("8B", 1024), ("8B", 512)):
    register(PublishedInfinity(_size, _pixels).entry)
