"""LlamaGen, text-to-image: the class-conditional transformer with text features as condition.

Sun et al., "Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation" (2024); published checkpoints load under their own
names. The condition is up to 120 vectors of a T5 encoder, each through the same two layers. Rotations of the condition are zero, so text
is read by its values only. The unconditional row reads the last of the learned vectors, as many as the text has, since the authors mask
the same columns in both halves. What differs from their code: a row has the entries of its own text (theirs: 120 with a mask), a longer
text is rejected (theirs: cut), and texts are read as written (theirs: without links, tags and capital letters).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..cache.layout import Layout, Step, Tokens
from ..core.spec import Sampling
from . import llamagen
from .layers import MLP
from .llamagen import LlamaGen, LlamaGenConfig
from .text_features import lengths_of

PAPER = Sampling(cfg_scale=7.5, top_k=1000)


@dataclass(frozen=True)
class CaptionConfig:
    """Sizes: of the transformer, channels of the text encoder, and most tokens of a text."""

    transformer: LlamaGenConfig
    text: int = 2048
    longest: int = 120

    def layout(
        self, seeds: Sequence[int], sampling: Sampling, lengths: Sequence[int], labels: Sequence[int], dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> Layout:
        """Return the layout: one condition entry per text token, in conditional and unconditional rows.

        ``lengths``: tokens of all texts, by label.
        """
        base = self.transformer.layout(seeds, sampling, dtype, device)
        return replace(base, condition=tuple(lengths[label] for label in labels) * (base.rows // len(labels)))


XL = CaptionConfig(llamagen.SIZES["XL"])
SIZES = {pixels: replace(XL, transformer=replace(XL.transformer, grid=pixels // 16)) for pixels in (256, 512)}  # stages of one training


class CaptionEmbedding(nn.Module):
    """Projection of text features; unconditional rows use ``uncond_embedding`` (longest, text)."""

    uncond_embedding: Tensor

    def __init__(self, config: CaptionConfig) -> None:
        super().__init__()
        self.cap_proj = MLP(config.text, config.transformer.dim, config.transformer.dim, approximate="tanh", bias=False)
        self.register_buffer("uncond_embedding", torch.zeros(config.longest, config.text))

    def forward(self, features: Tensor) -> Tensor:
        """Map (rows, tokens, text) to (rows, tokens, dim)."""
        return self.cap_proj(features)


class CaptionedLlamaGen(LlamaGen):
    """The transformer, and the features (n, text) of every prompt by label."""

    cls_embedding: CaptionEmbedding

    def __init__(self, config: CaptionConfig, texts: Sequence[Tensor] = ()) -> None:
        super().__init__(config.transformer)
        self.captions, self.texts, self.lengths = config, texts, lengths_of(texts)
        self.cls_embedding = CaptionEmbedding(config)

    def initialise(self, seed: int) -> CaptionedLlamaGen:
        """Draw random weights, and random features of no text."""
        super().initialise(seed)
        self.cls_embedding.uncond_embedding.normal_(0, self.captions.text**-0.5, generator=torch.Generator().manual_seed(seed))
        return self

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        weight = self.output.weight
        return self.captions.layout(seeds, sampling, self.lengths, labels, weight.dtype, str(weight.device))

    def first(self, labels: Tensor, layout: Layout) -> Tensor:
        """Return features (rows, longest, text), zero-padded at the end."""
        prompts = [self.texts[label].to(self.output.weight) for label in labels.tolist()]
        none = [self.cls_embedding.uncond_embedding[-len(text) :] for text in prompts if layout.rows > len(prompts)]
        return nn.utils.rnn.pad_sequence([*prompts, *none], batch_first=True)

    def feed(self, fed: Tensor, step: Step, place: Tensor, starts: Tensor) -> Tokens:
        if step.count:
            return super().feed(fed, step, place, starts)
        return Tokens(self.cls_embedding(fed), self.rope.index_select(0, place).expand(fed.size(1), -1))
