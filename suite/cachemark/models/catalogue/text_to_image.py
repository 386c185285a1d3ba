"""The text-to-image models that can be named in a plan. Importing this file registers them.

One published folder holds all of a model: its transformer, its image tokenizer and its text tokenizer. Without it weights are random and
prompts are split by a stand-in, so that speed and bytes can be measured; an entry's shapes are always those of the stand-in.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from ...cache.layout import Layout
from ...core import seeds
from ...core.spec import Sampling
from .. import checkpoints, costs, janus, prompt_lists
from ..janus import PAPER_CFG, SIZES, Janus, JanusConfig
from ..llama import frequencies
from ..prompts import HashedWords, Prompts, PublishedTokenizer, tokenizer_file
from ..protocol import Loaded, ModelEntry, PublishedFile, Request
from ..weights import coder, identity, transformer
from .family import register, with_greedy

LIST = "own64"
TEXTS = prompt_lists.packaged(LIST)
ORIGIN = "the folder of deepseek-ai on Hugging Face, or the one that deepseek-community has converted"
BESIDE = "the folder of `weights`, unless another is named"
SUBSET = "s2k"  # whose labels go round all prompts


def labels_of(batch: int, prompts: int) -> list[int]:
    """Prompts of the first ``batch`` samples of any subset, for a list of so many: labels repeat once all have been asked for."""
    round_ = seeds.subset(SUBSET, prompts).labels[:prompts]
    return [round_[i % len(round_)] for i in range(batch)]


@dataclass(frozen=True)
class PublishedJanus:
    """One size: its published folder under two keys, the second for another file of the image tokenizer; and the texts it is asked for."""

    size: str
    texts: tuple[str, ...] = TEXTS

    @property
    def config(self) -> JanusConfig:
        return SIZES[self.size]

    @property
    def files(self) -> tuple[PublishedFile, PublishedFile]:
        """The transformer, and the image tokenizer."""
        name = f"Janus-Pro-{self.size}"
        ignored = (*checkpoints.EXTRAS, *janus.UNUSED, f"{janus.PREFIX}*")
        beside = (*checkpoints.EXTRAS, *janus.UNUSED_BY_TOKENIZER)
        return (PublishedFile("weights", name, ORIGIN, partial(Janus, self.config, Prompts()), ignored=ignored, rename=janus.official),
                PublishedFile("decoder_weights", name, BESIDE, janus.tokenizer, ignored=beside, rename=janus.official_tokenizer))

    def identity(self, request: Request) -> str:
        """Weights of the transformer with the text tokenizer beside them, and those of the image tokenizer."""
        own, images = self.files
        digest = identity(own, request)
        if request.weights:
            text = checkpoints.sha256(tokenizer_file(request.weights))
            digest = hashlib.sha256(f"{digest} {text}".encode()).hexdigest()
        return f"{digest}/{identity(images, _whole(request))}"

    def load(self, request: Request) -> Loaded:
        own, images = self.files
        make = partial(Janus, self.config, self.prompts(request.weights) if request.weights else self.stand_in)
        model = transformer(make, request, ignore=own.ignored, wrappers=own.wrappers, rename=own.rename)
        tokenizer = coder(images, _whole(request))
        turns = frequencies(self.config.decoder.head_dim, self.config.decoder.rope_base, model.gen_embed.weight.device)
        return Loaded(model, tokenizer.decode, self.identity(request), [*model.parameters(), turns, *tokenizer.parameters()],
                      prompted=True)

    def prompts(self, weights: str) -> Prompts:
        """The prompts as the tokenizer beside ``weights`` splits them."""
        return janus.prompts_of(self.texts, PublishedTokenizer(tokenizer_file(weights)))

    @cached_property
    def stand_in(self) -> Prompts:
        """The prompts where weights are random."""
        return janus.prompts_of(self.texts, HashedWords(self.config.decoder.vocab))

    def shape(self, sampling: Sampling, batch: int) -> Layout:
        labels = labels_of(batch, len(self.texts))
        return janus.layout(self.config, self.stand_in, labels, range(batch), sampling, torch.float32, "cpu")

    @property
    def entry(self) -> ModelEntry:
        c = self.config
        summary = f"Janus-Pro-{self.size}, {c.decoder.layers} layers, {c.grid}×{c.grid} tokens; weights optional, else random"
        return ModelEntry(
            f"janus-pro-{self.size.lower()}", "janus", Janus.paradigm, (c.grid, c.grid), len(self.texts), self.shape, self.load,
            self.identity, with_greedy(Sampling(cfg_scale=PAPER_CFG)), summary=summary, files=self.files, prompts=self.texts, preset="coco",
            asking=lambda texts: replace(self, texts=texts).entry,
            parameter_counts=partial(costs.janus, c, lambda: janus.tokenizer().decode),
        )


def _whole(request: Request) -> Request:
    """The image tokenizer lies in the folder of the weights, unless another file is given."""
    return replace(request, decoder_weights=request.decoder_weights or request.weights)


for _size in SIZES:
    register(PublishedJanus(_size).entry)
