"""Emu3-Gen, text-to-image: a Llama decoder with grouped K/V heads and one vocabulary.

Wang et al., "Emu3: Next-Token Prediction is All You Need" (2024), as in the transformers library. A prompt ends with the size of the
image in codes, then follow lines of codes. As in the authors' script, words on quality are added to each text, and the unconditional row
is a list of faults. Differences from the script: both branches of guidance run in one batch, each row with its own positions and number of
entries, guidance combines logits (theirs: log-probabilities, which gives the same distribution), forbidden logits are very small (theirs:
−∞), and tokens are sampled by Gumbel-max keyed by the sample. The three tokens after the last line are not generated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.spec import Sampling
from .lined import ImageIds, LinedConfig, LinedLlama
from .llama import LlamaConfig
from .prompts import Prompts, TextTokenizer, refuse_unreadable
from .vision import vq

PAPER = Sampling(cfg_scale=3.0, top_k=2048)  # the authors' script
CONTEXT = 9216  # positions that it was trained with

IDS = ImageIds(first=151854, codes=32768, line_end=151846)


@dataclass(frozen=True)
class Emu3Config(LinedConfig):
    """Sizes: of the decoder, then of the image in codes, height first."""

    ids: ImageIds = IDS


GEN = Emu3Config(LlamaConfig(32, 32, 4096, 14336, 184622, kv_heads=8, norm_eps=1e-5, rope_base=1e6), 90, 90)

# -- published files ---------------------------------------------------------------------------------------------------
IMAGES = "vqmodel."  # prefix of the image tokenizer, which is in the same file
UNUSED = (f"{IMAGES}*",)  # in addition to the generator
UNUSED_BY_TOKENIZER = ("model.*", "lm_head.weight", *vq.ENCODER)
NAMES = (
    (r"^model\.text_model\.", "model."), (r"^text_model\.model\.", "model."), (r"^text_model\.lm_head\.", "lm_head."),
    (r"^model\.vqmodel\.", IMAGES),
)  # fmt: skip


def official(name: str) -> str:
    """Return the model's name of a tensor in the published file, or in one that transformers 5 saves."""
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def official_tokenizer(name: str) -> str:
    """Return the name of a tensor within the image tokenizer; other names are unchanged."""
    return official(name).removeprefix(IMAGES)


# -- prompts -----------------------------------------------------------------------------------------------------------
BEGIN, IMAGE, CODES = "<|extra_203|>", "<|image start|>", "<|image token|>"
QUALITY = " masterpiece, film grained, best quality."
FAULTS = ("lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, low quality, "
          "normal quality, jpeg artifacts, signature, watermark, username, blurry.")


def prompts_of(config: Emu3Config, texts: Sequence[str], tokenizer: TextTokenizer) -> Prompts:
    """Return ids of each text and of ``FAULTS``, with the image size. Raises Unsupported.

    A text must not be empty, and must fit in the model's context together with the image.
    """
    begin, image, codes = map(tokenizer.special, (BEGIN, IMAGE, CODES))
    size, longest = tokenizer.ids(f"{config.lines}*{config.line - 1}"), CONTEXT - config.lines * config.line

    def row(text: str) -> tuple[int, ...]:
        return tokenizer.whole((begin, *tokenizer.ids(text), image, *size, codes))

    conditional = tuple(row(text.strip() + QUALITY) for text in texts)
    for text, ids in zip(texts, conditional, strict=True):
        refuse_unreadable(text, len(ids), longest)
    return Prompts(conditional, (row(FAULTS),) * len(texts))


# -- the model ---------------------------------------------------------------------------------------------------------
class Emu3(LinedLlama):
    """The generator."""

    config: Emu3Config
