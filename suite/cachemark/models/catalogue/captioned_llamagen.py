"""The LlamaGen models that read texts, as they can be named in a plan. Importing this file registers them.

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
from .. import checkpoints, costs, llamagen_text, text_features
from ..llamagen_text import PAPER, SIZES, CaptionConfig, CaptionedLlamaGen
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..text_features import Features
from ..vision.vq import VQ
from ..weights import coder, identity, transformer
from .family import register, with_greedy
from .text_to_image import TEXTS, labels_of

ORIGIN = "peizesun/llamagen_t2i on Hugging Face"
FILES = {256: "t2i_XL_stage1_256.pt", 512: "t2i_XL_stage2_512.pt"}
DECODER = PublishedFile("decoder_weights", "vq_ds16_t2i.pt", ORIGIN, VQ, ignored=checkpoints.EXTRAS)


@dataclass(frozen=True)
class PublishedCaptioned:
    """One of the two stages, by the pixels along a side of its images, and the texts that it is asked for."""

    pixels: int
    texts: tuple[str, ...] = TEXTS

    @property
    def config(self) -> CaptionConfig:
        return SIZES[self.pixels]

    @property
    def file(self) -> PublishedFile:
        """The transformer."""
        return PublishedFile("weights", FILES[self.pixels], ORIGIN, partial(CaptionedLlamaGen, self.config), pixels=self.pixels)

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
        digest = identity(self.file, request)
        if request.weights:
            text = text_features.identity(text_features.encoder_folder(request.weights))
            digest = hashlib.sha256(f"{digest} {text}".encode()).hexdigest()
        return f"{digest}/{identity(DECODER, request)}"

    def load(self, request: Request) -> Loaded:
        texts = self.features(request)
        model = transformer(partial(CaptionedLlamaGen, self.config, texts), request)
        tokenizer = coder(DECODER, request)
        return Loaded(model, tokenizer.decode, self.identity(request),
                      [*model.parameters(), *model.buffers(), model.rope, *texts.resident, *tokenizer.parameters()], prompted=True)

    def shape(self, sampling: Sampling, batch: int) -> Layout:
        labels = labels_of(batch, len(self.texts))
        return llamagen_text.layout(self.config, self.lengths, labels, range(batch), sampling, torch.float32, "cpu")

    @property
    def entry(self) -> ModelEntry:
        c = self.config.transformer
        return ModelEntry(
            f"llamagen-t2i-{self.pixels}", "llamagen", CaptionedLlamaGen.paradigm, (c.grid, c.grid), len(self.texts), self.shape, self.load,
            self.identity, with_greedy(PAPER), summary=f"LlamaGen-XL from text, {c.layers} layers, {c.grid}×{c.grid} tokens; weights "
            "optional, else random", files=(self.file, DECODER), prompts=self.texts, preset="coco", parameter_counts=self._counts,
            asking=lambda texts: replace(self, texts=texts).entry,
        )

    def _counts(self) -> costs.ParameterCounts:
        return costs.captioned_llamagen(self.config, lambda: DECODER.build().decode, max(self.lengths))


for _pixels in SIZES:
    register(PublishedCaptioned(_pixels).entry)
