"""Any Llama that generates image codes from its own vocabulary, described by its configuration.

The prompt is a text; the output is the codes of a square image in raster order. Only the decoder is read from the files; LlamaGen's image
tokenizer decodes. A model with other guidance, line ends or a code embedding of its own is a family of its own (Janus-Pro, Lumina-mGPT).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.spec import Sampling
from . import checkpoints, costs, prompt_lists
from .catalogue.family import CatalogueModel, Family, with_greedy
from .llama import Llama
from .prompted_llama import NEVER, PromptedConfig, PromptedLlama, layout, rotations
from .prompts import HashedWords, Prompts, TextTokenizer, TokenReader, refuse_unreadable
from .protocol import PublishedFile, Request
from .vision.vq import VQ

LIST = "own64"
DECODER = PublishedFile("decoder_weights", "vq_ds16_t2i.pt", "peizesun/llamagen_t2i on Hugging Face", VQ, ignored=checkpoints.EXTRAS)


@dataclass(frozen=True)
class LlamaLikeConfig(PromptedConfig):
    """Sizes: of the decoder, id of the first image code, number of codes, side of the image in codes.

    ``begin``: ids before a text; ``image``: ids after it. The unconditional row consists of both. ``longest``: tokens of a whole prompt.
    ``tied``: the head is the embedding.
    """

    first: int
    codes: int
    grid: int
    begin: tuple[int, ...]
    image: tuple[int, ...] = ()
    longest: int = 1024
    tied: bool = False


class LlamaLike(PromptedLlama):
    """The generator, with the parameter names of transformers."""

    config: LlamaLikeConfig

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

    def logits(self, hidden: Tensor) -> Tensor:
        head = self.model.embed_tokens.weight if self.config.tied else self.lm_head.weight
        return nn.functional.linear(self.model.norm(hidden), head).float()

    def allowed(self, logits: Tensor, place: Tensor) -> Tensor:
        """Mask everything but image codes."""
        ids, c = torch.arange(logits.size(-1), device=logits.device), self.config
        return logits.masked_fill((ids < c.first) | (ids >= c.first + c.codes), NEVER)


def codebook_size() -> int:
    """Return the number of codes of the image tokenizer."""
    with torch.device("meta"):
        images: Any = DECODER.build()
    return int(images.config.codebook_size)


def prompts_of(config: LlamaLikeConfig, texts: Sequence[str], tokenizer: TextTokenizer) -> Prompts:
    """Return the ids of each text. Raises Unsupported if it is empty or too long."""
    conditional = []
    for text in texts:
        conditional.append((*config.begin, *tokenizer.whole(tuple(tokenizer.ids(text))), *config.image))
        refuse_unreadable(text, len(conditional[-1]), config.longest)
    return Prompts(tuple(conditional), ((*config.begin, *config.image),) * len(texts))


# -- its entry ---------------------------------------------------------------------------------------------------------
def _network(config: LlamaLikeConfig, prompts: Prompts | None, engine: str) -> LlamaLike:
    return LlamaLike(config, prompts or Prompts())


def _decoding(config: LlamaLikeConfig, images: VQ, request: Request) -> Callable[[Tensor], Tensor]:
    return lambda tokens: images.decode((tokens - config.first).clamp(0, images.config.codebook_size - 1))


@dataclass(frozen=True)
class Described:
    """A published Llama under a name of its own, and where its files store the decoder.

    ``prefix``: of the decoder's tensors; ``head``: name of its head; ``ignored``: tensors that may be beside them.
    """

    name: str
    config: LlamaLikeConfig
    prefix: str = "model."
    head: str = "lm_head.weight"
    ignored: tuple[str, ...] = ()
    cfg_scale: float = 1.0

    @property
    def model(self) -> CatalogueModel:
        """The model as the catalogue describes it."""
        c = self.config
        family = Family(
            "llama", LlamaLike.paradigm, "the folder that it was described from", _network, layout,
            lambda config, decode, prompts: costs.llama_like(config.decoder, config.lines * config.line, decode), (),
            (*checkpoints.EXTRAS, *self.ignored), self.official, tables=rotations, decoding=_decoding, prompted=True,
            reader=lambda config: TokenReader(partial(prompts_of, config), HashedWords(config.decoder.vocab)),
        )
        return family.published(self.name, c, self.name, DECODER, with_greedy(Sampling(cfg_scale=self.cfg_scale)),
                                f"A Llama of {c.decoder.layers} layers, {c.grid}×{c.grid} tokens", texts=prompt_lists.packaged(LIST),
                                preset="coco")

    def official(self, name: str) -> str:
        """Return the model's name of a tensor for its name in the files."""
        if name == self.head:
            return "lm_head.weight"
        return f"model.{name.removeprefix(self.prefix)}" if name.startswith(self.prefix) else name
