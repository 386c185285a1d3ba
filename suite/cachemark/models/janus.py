"""Janus-Pro, text-to-image: a Llama decoder with its own embedding and head for image tokens.

Chen et al., "Janus-Pro: Unified Multimodal Understanding and Generation with Data and Model Scaling" (2025). What differs from the
authors' code: logits are guided and sampled in fp32 (theirs: bf16), tokens are sampled by Gumbel-max keyed by the sample, and prompts of
different length run in one batch, each row with its own positions and number of entries. As in theirs, the unconditional row has the
length of the conditional one, with all ids but the first and the last replaced by attended padding. The parts that read images are left
out.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..cache.layout import Step, Tokens
from ..cache.masked_layout import take
from ..contract.method import Uncached
from .llama import Llama, LlamaConfig, PromptedConfig, PromptedLlama
from .prompts import Prompts, TextTokenizer, refuse_unreadable
from .vision import vq
from .vision.vq import VQ, VQ16

PAPER_CFG = 5.0
LONGEST = 4096 - 24**2  # tokens of a prompt: those that it was trained with, less an image


@dataclass(frozen=True)
class JanusConfig(PromptedConfig):
    """Sizes: of the decoder, number of image codes, width of their embedding, side of the grid."""

    codes: int = 16384
    code_dim: int = 8
    grid: int = 24


SIZES = {
    "1B": JanusConfig(LlamaConfig(24, 16, 2048, 5632, 102400)),
    "7B": JanusConfig(LlamaConfig(30, 32, 4096, 11008, 102400)),
}
TOKENIZER = VQ16

# -- published files ---------------------------------------------------------------------------------------------------
PREFIX = "gen_vision_model."  # of the image tokenizer, which is in the same file
READING = ("vision_model.*", "aligner.*")  # for reading images: not used for generation
UNUSED = ("language_model.lm_head.weight", "*.rotary_emb.inv_freq", *READING)  # in addition to the generator, and the head for text
UNUSED_BY_TOKENIZER = ("language_model.*", "gen_embed.*", "gen_aligner.*", "gen_head.*", *vq.UNUSED, *READING)
# Names in the files that the transformers library converted, and the authors' names.
CONVERTED = (
    (r"^model\.language_model\.", "language_model.model."), (r"^lm_head\.", "language_model.lm_head."),
    (r"^model\.generation_embeddings\.", "gen_embed."),
    (r"^model\.generation_aligner\.fc1\.", "gen_aligner.layers.0."),
    (r"^model\.generation_aligner\.hidden_layers\.0\.", "gen_aligner.layers.2."),
    (r"^model\.generation_head\.proj_out\.", "gen_head.output_mlp_projector."), (r"^model\.generation_head\.", "gen_head."),
    (r"^model\.vision_model\.", "vision_model."), (r"^model\.aligner\.", "aligner."),
    (r"^model\.vqmodel\.decoder\.up\.(\d+)\.block\.", r"model.vqmodel.decoder.up.\1.res."),
    (r"^model\.vqmodel\.decoder\.up\.", PREFIX + "decoder.conv_blocks."),
    (r"^model\.vqmodel\.decoder\.mid\.block_1\.", PREFIX + "decoder.mid.0."),
    (r"^model\.vqmodel\.decoder\.mid\.attn_1\.", PREFIX + "decoder.mid.1."),
    (r"^model\.vqmodel\.decoder\.mid\.block_2\.", PREFIX + "decoder.mid.2."),
    (r"^model\.vqmodel\.", PREFIX),
)


def official(name: str) -> str:
    """Return the authors' name of a tensor in their file or in one converted by transformers."""
    for pattern, replacement in CONVERTED:
        name = re.sub(pattern, replacement, name)
    return name


def official_tokenizer(name: str) -> str:
    """Return the name of a tensor within the image tokenizer; other names are unchanged."""
    return official(name).removeprefix(PREFIX)


# -- prompts -----------------------------------------------------------------------------------------------------------
BEGIN, PAD, IMAGE = "<｜begin▁of▁sentence｜>", "<｜▁pad▁｜>", "<begin_of_image>"
CONVERSATION = "<|User|>: {}\n\n<|Assistant|>:"  # without a system prompt


def prompts_of(texts: Sequence[str], tokenizer: TextTokenizer, longest: int = LONGEST, *, form: str = CONVERSATION) -> Prompts:
    """Return ids of each text in its ``form``, with unconditional rows. Raises Unsupported.

    A text must not be empty or longer than ``longest`` tokens.
    """
    begin, pad, image = map(tokenizer.special, (BEGIN, PAD, IMAGE))
    conditional = tuple(tokenizer.whole((begin, *tokenizer.ids(form.format(text.strip())), image)) for text in texts)
    for text, ids in zip(texts, conditional, strict=True):
        refuse_unreadable(text, len(ids), longest)
    return Prompts(conditional, tuple(unconditional(ids, pad) for ids in conditional))


def unconditional(ids: tuple[int, ...], pad: int) -> tuple[int, ...]:
    """Return a prompt's unconditional row: all ids but the first and the last are padding."""
    return (ids[0], *[pad] * (len(ids) - 2), ids[-1])


# -- the model ---------------------------------------------------------------------------------------------------------
class Janus(PromptedLlama):
    """The generator, with the authors' parameter names."""

    def __init__(self, config: JanusConfig, prompts: Prompts) -> None:
        super().__init__()
        self.config, self.prompts = config, prompts
        self.language_model = nn.ModuleDict({"model": Llama(config.decoder)})
        self.gen_embed, dim = nn.Embedding(config.codes, config.code_dim), config.decoder.dim
        self.gen_aligner = nn.Sequential(OrderedDict(layers=nn.Sequential(nn.Linear(config.code_dim, dim), nn.GELU(), nn.Linear(dim, dim))))
        self.gen_head = nn.Sequential(OrderedDict(
            output_mlp_projector=nn.Linear(dim, dim), gelu=nn.GELU(), vision_head=nn.Linear(dim, config.codes)))
        self.sites = self.decoder.sites

    @property
    def decoder(self) -> Llama:
        module = self.language_model["model"]
        assert isinstance(module, Llama)
        return module

    def embedded(self, codes: Tensor) -> Tensor:
        """Embed image codes (…) as inputs of the decoder (…, dim)."""
        return self.gen_aligner(self.gen_embed(codes))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.gen_head(self.decoder.norm(hidden)).float()

    def teacher(self, prompts: Sequence[Sequence[int]], tokens: Tensor) -> Tensor:
        """Return training logits (rows, N, codes) for ``tokens`` (rows, N), given prompts and earlier tokens.

        Tokens directly follow their own prompt; padding of shorter rows is at the end and not attended.
        """
        device, count = tokens.device, tokens.size(1) - 1
        text = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in prompts], batch_first=True).to(device)
        lengths = torch.tensor([[len(ids)] for ids in prompts], device=device)
        x = torch.cat((self.decoder.embed_tokens(text), self.embedded(tokens[:, :-1])), 1)
        place = torch.arange(x.size(1), device=device).expand(x.shape[:2])
        behind = torch.where(place < lengths + count, place + text.size(1) - lengths, place - count)
        x = take(x, torch.where(place < lengths, place, behind))
        hidden = self(Tokens(x, self.decoder.turns(place)), Step(0, 1), Uncached())
        return self.logits(take(hidden, lengths - 1 + torch.arange(count + 1, device=device)))


def tokenizer() -> VQ:
    """Build the image tokenizer: LlamaGen's architecture with weights of its own."""
    return VQ(TOKENIZER)
