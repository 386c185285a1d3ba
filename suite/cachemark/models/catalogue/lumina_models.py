"""The Lumina-mGPT models that can be named in a plan. Importing this file registers them.

The transformer is published in a folder with its text tokenizer; the image tokenizer is Chameleon's and comes from there. Without the first
weights are random and prompts are split by a stand-in, so that speed and bytes can be measured.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from ...cache.layout import Layout
from ...core.spec import Sampling
from .. import checkpoints, costs, lumina
from ..llama import frequencies
from ..lumina import PAPER, SIZES, Lumina, LuminaConfig, LuminaDecoder
from ..prompts import HashedWords, Prompts, PublishedTokenizer, TextTokenizer, tokenizer_file
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..vision import vqgan
from ..vision.vqgan import VQGAN
from ..weights import coder, identity, transformer
from .family import register, with_greedy
from .text_to_image import TEXTS, labels_of

ORIGIN = "the folder of Alpha-VLLM on Hugging Face"
IMAGES = "the tokenizer of Meta's Chameleon, which asks for an agreement to its terms"


@dataclass(frozen=True)
class PublishedLumina:
    """One size at one resolution, and the texts that it is asked for."""

    size: str
    texts: tuple[str, ...] = TEXTS

    @property
    def config(self) -> LuminaConfig:
        return SIZES[self.size]

    @property
    def files(self) -> tuple[PublishedFile, PublishedFile]:
        """The transformer, and the image tokenizer."""
        return (PublishedFile("weights", f"Lumina-mGPT-{self.size}", ORIGIN, partial(Lumina, self.config, Prompts()),
                              ignored=(*checkpoints.EXTRAS, *lumina.UNUSED), pixels=lumina.UNIT * self.config.width),
                PublishedFile("decoder_weights", "vqgan.ckpt", IMAGES, partial(VQGAN, lumina.TOKENIZER),
                              ignored=(*checkpoints.EXTRAS, *vqgan.UNUSED)))

    def identity(self, request: Request) -> str:
        """Weights of the transformer with the text tokenizer beside them, and those of the image tokenizer."""
        own, images = self.files
        digest = identity(own, request)
        if request.weights:
            text = checkpoints.sha256(tokenizer_file(request.weights))
            digest = hashlib.sha256(f"{digest} {text}".encode()).hexdigest()
        return f"{digest}/{identity(images, request)}"

    def load(self, request: Request) -> Loaded:
        own, images = self.files
        text = PublishedTokenizer(tokenizer_file(request.weights)) if request.weights else None
        make = partial(Lumina, self.config, self.stand_in if text is None else self.prompts(text))
        model = transformer(make, request, ignore=own.ignored, wrappers=own.wrappers)
        tokenizer = coder(images, request)
        table = None if text is None else lumina.code_table(text.vocabulary, self.config.ids).to(request.device)
        turns = frequencies(self.config.decoder.head_dim, self.config.decoder.rope_base, model.lm_head.weight.device)
        return Loaded(model, LuminaDecoder(self.config, tokenizer, table).decode, self.identity(request),
                      [*model.parameters(), turns, *tokenizer.parameters()], prompted=True)

    def prompts(self, tokenizer: TextTokenizer) -> Prompts:
        """The prompts as a tokenizer splits them."""
        return lumina.prompts_of(self.config, self.texts, tokenizer)

    @cached_property
    def stand_in(self) -> Prompts:
        """The prompts where weights are random."""
        return self.prompts(HashedWords(self.config.decoder.vocab))

    def shape(self, sampling: Sampling, batch: int) -> Layout:
        labels = labels_of(batch, len(self.texts))
        return lumina.layout(self.config, self.stand_in, labels, range(batch), sampling, torch.float32, "cpu")

    @property
    def entry(self) -> ModelEntry:
        c = self.config
        summary = (f"Lumina-mGPT-{self.size}, {c.decoder.layers} layers, {c.lines} lines of {c.line} tokens, the last of which ends the "
                   "line; weights optional, else random")
        return ModelEntry(
            f"lumina-mgpt-{self.size.lower()}", "lumina", Lumina.paradigm, (c.lines, c.line), len(self.texts), self.shape, self.load,
            self.identity, with_greedy(PAPER), summary=summary, files=self.files, prompts=self.texts, preset="coco",
            asking=lambda texts: replace(self, texts=texts).entry,
            parameter_counts=partial(costs.lumina, c, lambda: LuminaDecoder(c, VQGAN(lumina.TOKENIZER)).decode),
        )


for _size in SIZES:
    register(PublishedLumina(_size).entry)
