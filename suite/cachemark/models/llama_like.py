"""Any Llama that draws an image as tokens of its own vocabulary, from the sizes that its published configuration tells.

A text, then the codes of a square image line by line; what is read of the files is the decoder alone, and LlamaGen's image tokenizer turns
codes into images. A model that guides, splits lines or feeds codes in a way of its own is a family of its own (Janus-Pro, Lumina-mGPT).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from ..cache.layout import Layout
from ..core import seeds
from ..core.spec import Sampling
from . import checkpoints, costs, prompt_lists
from .llama import Llama, LlamaConfig, frequencies
from .prompted_llama import NEVER, PromptedLlama, prompted_layout
from .prompts import HashedWords, Prompts, PublishedTokenizer, TextTokenizer, refuse_unreadable, tokenizer_file
from .protocol import Loaded, ModelEntry, PublishedFile, Request
from .vision.vq import VQ
from .weights import coder, identity, transformer

LIST, SUBSET = "own64", "s2k"
DECODER = PublishedFile("decoder_weights", "vq_ds16_t2i.pt", "peizesun/llamagen_t2i on Hugging Face", VQ, ignored=checkpoints.EXTRAS)


@dataclass(frozen=True)
class LlamaLikeConfig:
    """Sizes: those of the decoder, the id of the first image code, the number of codes, and the side of the image in codes. ``begin`` are
    the ids before a text and ``image`` those behind it, which the unconditional row has alone; ``longest``: tokens of a prompt, with them.
    ``tied``: the head is the embedding."""

    decoder: LlamaConfig
    first: int
    codes: int
    grid: int
    begin: tuple[int, ...]
    image: tuple[int, ...] = ()
    longest: int = 1024
    tied: bool = False


class LlamaLike(PromptedLlama):
    """The generator. Parameter names are those of the transformers library."""

    def __init__(self, config: LlamaLikeConfig, prompts: Prompts) -> None:
        super().__init__()
        self.config, self.prompts = config, prompts
        self.model = Llama(config.decoder)
        if not config.tied:
            self.lm_head = nn.Linear(config.decoder.dim, config.decoder.vocab, bias=False)
        self.sites = self.model.sites

    @property
    def decoder(self) -> Llama:
        return self.model

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        weight = self.model.embed_tokens.weight
        return layout(self.config, self.prompts, labels, seeds, sampling, weight.dtype, str(weight.device))

    def logits(self, hidden: Tensor) -> Tensor:
        head = self.model.embed_tokens.weight if self.config.tied else self.lm_head.weight
        return nn.functional.linear(self.model.norm(hidden), head).float()

    def allowed(self, logits: Tensor, place: Tensor) -> Tensor:
        """Image codes alone."""
        ids, c = torch.arange(logits.size(-1), device=logits.device), self.config
        return logits.masked_fill((ids < c.first) | (ids >= c.first + c.codes), NEVER)


def layout(
    config: LlamaLikeConfig, prompts: Prompts, labels: Sequence[int], seeds: Sequence[int], sampling: Sampling, dtype: torch.dtype,
    device: str,
) -> Layout:
    """Shape of a generation: a row has as many condition entries as its prompt has ids; with guidance the unconditional rows come last."""
    return prompted_layout(config.decoder, prompts, labels, seeds, sampling, (config.grid, config.grid), dtype, device)


def codebook_size() -> int:
    """Number of codes that the image tokenizer knows."""
    with torch.device("meta"):
        images: Any = DECODER.build()
    return int(images.config.codebook_size)


def prompts_of(config: LlamaLikeConfig, texts: Sequence[str], tokenizer: TextTokenizer) -> Prompts:
    """Each text as ids. Raises Unsupported for one that is empty or too long."""
    conditional = []
    for text in texts:
        conditional.append((*config.begin, *tokenizer.whole(tuple(tokenizer.ids(text))), *config.image))
        refuse_unreadable(text, len(conditional[-1]), config.longest)
    return Prompts(tuple(conditional), ((*config.begin, *config.image),) * len(texts))


# -- its entry ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Described:
    """A published model under a name: its sizes, where the decoder's tensors lie in its files (``prefix``, and the name of the head), names
    that may stand beside them, the scale of its guidance, and the texts that it is asked for."""

    name: str
    config: LlamaLikeConfig
    prefix: str = "model."
    head: str = "lm_head.weight"
    ignored: tuple[str, ...] = ()
    cfg_scale: float = 1.0
    texts: tuple[str, ...] = prompt_lists.packaged(LIST)

    @property
    def file(self) -> PublishedFile:
        """The decoder."""
        return PublishedFile("weights", self.name, "the folder that it was described from", partial(LlamaLike, self.config, Prompts()),
                             (), (*checkpoints.EXTRAS, *self.ignored), self.official)

    def official(self, name: str) -> str:
        """The name of a tensor here, of its name in the files."""
        if name == self.head:
            return "lm_head.weight"
        return f"model.{name.removeprefix(self.prefix)}" if name.startswith(self.prefix) else name

    @cached_property
    def stand_in(self) -> Prompts:
        """The prompts where weights are random."""
        return prompts_of(self.config, self.texts, HashedWords(self.config.decoder.vocab))

    def identity(self, request: Request) -> str:
        """Weights of the decoder with the text tokenizer beside them, and those of the image tokenizer."""
        digest = identity(self.file, request)
        if request.weights:
            text = checkpoints.sha256(tokenizer_file(request.weights))
            digest = hashlib.sha256(f"{digest} {text}".encode()).hexdigest()
        return f"{digest}/{identity(DECODER, request)}"

    def load(self, request: Request) -> Loaded:
        """The decoder and the image tokenizer, ready to run."""
        file, prompts = self.file, self.stand_in
        if request.weights:
            prompts = prompts_of(self.config, self.texts, PublishedTokenizer(tokenizer_file(request.weights)))
        model = transformer(partial(LlamaLike, self.config, prompts), request, ignore=file.ignored, wrappers=file.wrappers,
                            rename=file.rename)
        images = coder(DECODER, request)
        turns = frequencies(self.config.decoder.head_dim, self.config.decoder.rope_base, model.model.embed_tokens.weight.device)
        return Loaded(model, lambda tokens: images.decode((tokens - self.config.first).clamp(0, images.config.codebook_size - 1)),
                      self.identity(request), [*model.parameters(), turns, *images.parameters()], prompted=True)

    def shape(self, sampling: Sampling, batch: int) -> Layout:
        """Shape of a generation."""
        labels = (seeds.subset(SUBSET, len(self.texts)).labels * batch)[:batch]
        return layout(self.config, self.stand_in, labels, range(batch), sampling, torch.float32, "cpu")

    @property
    def entry(self) -> ModelEntry:
        """The entry that a plan names."""
        c = self.config
        return ModelEntry(
            self.name, "llama", LlamaLike.paradigm, (c.grid, c.grid), len(self.texts), self.shape, self.load, self.identity,
            {"paper": Sampling(cfg_scale=self.cfg_scale), "greedy": Sampling(cfg_scale=self.cfg_scale, temperature=0.0)}, preset="coco",
            summary=f"A Llama of {c.decoder.layers} layers, {c.grid}×{c.grid} tokens; weights optional, else random",
            files=(self.file, DECODER), prompts=self.texts, asking=lambda texts: replace(self, texts=texts).entry,
            parameter_counts=partial(costs.llama_like, c.decoder, c.grid**2, lambda: DECODER.build().decode),
        )
