"""Lumina-mGPT, text-to-image: a Llama decoder with one vocabulary for text and image.

Liu et al., "Lumina-mGPT: Illuminate Flexible Photorealistic Text-to-Image Generation with Multimodal Generative Pretraining" (2024), a
further trained Chameleon. An image is 8197, two tokens of its size, then lines of codes. What differs from the authors' code: both
branches of guidance run in one batch, each row with its own positions and number of entries (theirs: batches of one), the size is part of
the prompt (theirs: sampled), forbidden logits are very small (theirs: −∞), and tokens are sampled by Gumbel-max keyed by the sample. The
token after the last line is not generated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.errors import BadCheckpoint
from ..core.spec import Sampling
from .lined import ImageIds, LinedConfig, LinedLlama
from .llama import LlamaConfig
from .prompts import Prompts, TextTokenizer, refuse_unreadable
from .vision.vqgan import CHAMELEON

PAPER = Sampling(cfg_scale=4.0, top_k=2000)
UNIT = 32  # pixels that the tokens of the size count in
ASKED = "Generate an image of {width}x{height} according to the following prompt:\n{text}"
CODE_NAME = re.compile(r"IMGIMG([A-J]+)Z")  # a code's number spelt in letters
UNUSED = ("*.rotary_emb.inv_freq", "model.vqmodel.*")  # in addition to the generator; the latter reads images


@dataclass(frozen=True)
class Vocabulary(ImageIds):
    """Ids of non-text tokens; ``size`` is the id of size 0."""

    first: int = 4
    codes: int = 8192
    line_end: int = 8803
    begin: int = 0
    image: int = 8197
    separator: int = 8710
    size: int = 8804


@dataclass(frozen=True)
class LuminaConfig(LinedConfig):
    """Sizes: of the decoder, then of the image in units of 32 pixels, height first."""

    ids: Vocabulary = Vocabulary()
    codes_per_unit: ClassVar[int] = 2  # along one side


DECODER = LlamaConfig(32, 32, 4096, 11008, 65536, norm_eps=1e-5, qk_norm=True)
SIZES = {f"7B-{pixels}": LuminaConfig(DECODER, pixels // UNIT, pixels // UNIT) for pixels in (768, 1024)}
TOKENIZER = CHAMELEON


# -- prompts -----------------------------------------------------------------------------------------------------------
def prompts_of(config: LuminaConfig, texts: Sequence[str], tokenizer: TextTokenizer) -> Prompts:
    """Return ids of each text and image size. Raises Unsupported for an empty text.

    The unconditional row is the size only.
    """
    for text in texts:
        refuse_unreadable(text, 0)
    ids, size = config.ids, {"width": config.width * UNIT, "height": config.height * UNIT}
    prefix = ids.image, ids.size + config.height, ids.size + config.width
    conditional = ((ids.begin, *tokenizer.ids(ASKED.format(text=text, **size)), ids.separator) for text in texts)
    return Prompts(tuple((*tokenizer.whole(prompt), *prefix) for prompt in conditional), (prefix,) * len(texts))


def code_table(vocabulary: Mapping[str, int], ids: Vocabulary) -> Tensor:
    """Return the image code of each id from ``ids.first`` on, (codes,) int64. Raises BadCheckpoint.

    The codes are spelled in the tokenizer's token names.
    """
    numbers = {number: match[1] for name, number in vocabulary.items() if (match := CODE_NAME.fullmatch(name))}
    table = [int("".join(str(ord(letter) - ord("A")) for letter in numbers.get(ids.first + i, "")) or -1) for i in range(ids.codes)]
    if sorted(table) != list(range(ids.codes)):
        raise BadCheckpoint(f"The tokenizer names {len(set(table) - {-1})} of the {ids.codes} image codes (IMGIMG…Z).",
                            remedy="Use the tokenizer.json that was published with the weights.")
    return torch.tensor(table)


# -- the model ---------------------------------------------------------------------------------------------------------
class Lumina(LinedLlama):
    """The generator, with published parameter names."""

    config: LuminaConfig
