"""The generation loop of next-scale models, coarse to fine: all tokens of a map at once.

What their blocks share is here too: norms and gates that are modulated by the condition of a row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.engine.engine import Engine
from ..cache.layout import Layout, Site, Step, Tokens, scale_steps
from ..contract.method import Method, graph_key, run_blocks
from ..core.spec import Sampling
from .layers import modulation


class MapQuantizer(Protocol):
    """Turns token maps into the input of the next one. Feature maps are (B, width, P, P) fp32, tokens (B, side²) int64."""

    def empty(self, batch: int) -> Tensor:
        """The feature map before the first scale."""

    def add(self, f_hat: Tensor, codes: Tensor, scale: int) -> Tensor:
        """The feature map with the tokens of scale ``scale`` (from 0) added."""

    def next_map(self, f_hat: Tensor, scale: int) -> Tensor:
        """The model's input at scale ``scale`` ≥ 1, (B, side², width)."""


@dataclass(frozen=True)
class Given:
    """Constants of a generation's passes: the samples' seeds (batch, 1), the embedding of what a row is asked for (rows, dim), and the
    modulations of all blocks that follow from it (rows, depth, 6, dim)."""

    key: Tensor
    cond: Tensor
    modulations: Tensor


G = TypeVar("G", bound=Given)


class ScaleModel(nn.Module, Generic[G]):
    """A stack of blocks that predicts the next token map. What a model adds is what a pass is fed, how hidden states become logits and how
    tokens are drawn from them."""

    paradigm = "next-scale"
    sites: Sequence[Site]

    @property
    @abstractmethod
    def stacked(self) -> Iterable[nn.Module]:
        """The blocks in order, one at each of ``sites``."""

    @property
    @abstractmethod
    def quantizer(self) -> MapQuantizer:
        """That of the image tokenizer."""

    @abstractmethod
    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        """Shape of a generation of these samples by this model."""

    @abstractmethod
    def condition(self, labels: Tensor, key: Tensor, layout: Layout, engine: Engine) -> G:
        """Constants of a generation that all of its passes read."""

    @abstractmethod
    def feed(self, step: Step, condition: G, f_hat: Tensor) -> Tokens:
        """The input of a pass, from the feature map so far."""

    @abstractmethod
    def guided(self, hidden: Tensor, step: Step, sampling: Sampling, condition: G) -> Tensor:
        """The guided fp32 logits of a map, (batch, count, …, vocab), from the hidden states of all rows."""

    @abstractmethod
    def drawn(self, logits: Tensor, step: Step, sampling: Sampling, condition: G) -> Tensor:
        """Tokens (batch, count) int64 from guided logits."""

    def forward(self, tokens: Tokens, step: Step, method: Method) -> Tensor:
        """One pass of the stack under a method: hidden states before the head's norm, (rows, tokens, dim)."""
        return method.stack("decoder", step, tokens, lambda fed: run_blocks(self.sites, self.stacked, step, method, fed).x)

    @torch.inference_mode()
    def generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, *,
        forced: Tensor | None = None, see: Callable[[int, Tensor], None] | None = None, mark: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Generate tokens (batch, N) int64, scale by scale, for ``labels`` (batch,) under ``method``.

        ``forced`` (batch, N) replaces what is drawn; ``see(first, logits)`` receives the guided fp32 logits of a scale, as
        :meth:`guided` gives them; ``mark(i)`` is called when all tokens up to i have been drawn, for a clock.
        """
        layout, engine = self.layout(seeds, sampling), memory.engine
        method.begin(layout, self.sites, memory)
        key = engine.hold("seeds", streams.seeds_tensor(seeds, labels.device)[:, None])
        out = torch.empty(len(labels), layout.visual, dtype=torch.int64, device=labels.device)
        condition = self.condition(labels, key, layout, engine)
        f_hat = self.quantizer.empty(len(labels)).to(labels.device)
        for step in scale_steps(layout):
            span = slice(step.first, step.first + step.count)
            work = partial(self._pass, step, method, sampling, condition, see is not None)
            inputs = (f_hat,) if forced is None else (f_hat, forced[:, span])
            codes, f_hat, *logits = engine.run((step.index, see is not None, graph_key(method, step)), work, inputs, method)
            method.end_step(step)
            out[:, span] = codes
            if see is not None:
                see(step.first, logits[0])
            if mark is not None:
                mark(span.stop - 1)
        return out

    def _pass(
        self, step: Step, method: Method, sampling: Sampling, condition: G, with_logits: bool, f_hat: Tensor, forced: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """From the feature map so far: the tokens of a scale (batch, count), the feature map with them and, ``with_logits``, the
        guided logits. Nobody reads the feature map of the last scale, so it stays as it was."""
        hidden = self(self.feed(step, condition, f_hat), step, method)
        logits = self.guided(hidden, step, sampling, condition)
        codes = self.drawn(logits, step, sampling, condition) if forced is None else forced
        f_hat = f_hat if step.last else self.quantizer.add(f_hat, codes, step.index)
        return (codes, f_hat, logits) if with_logits else (codes, f_hat)


class ModulatedBlock(nn.Module):
    """x += γ₁·attention(norm(x)·(1 + s₁) + b₁); …; x += γ₂·ffn(norm(x)·(1 + s₂) + b₂).

    The tokens' ``cond`` (rows, depth, 6, dim) holds γ₁, γ₂, 1 + s₁, 1 + s₂, b₁, b₂ of every block. A block has a projection of the
    condition, ``ada_lin``, or where all share one a table that is added to it, ``ada_gss`` (1, 1, 6, dim).
    """

    ffn: nn.Module
    ada_lin: nn.Module
    ada_gss: nn.Parameter

    def __init__(self, layer: int, eps: float) -> None:
        super().__init__()
        self.layer, self.eps = layer, eps

    def modulation(self, cond: Tensor, shared: Tensor | None) -> Tensor:
        """(rows, 6, dim) from the condition's embedding (rows, dim), or from what the shared projection made of it."""
        own = self.ada_lin(cond).unflatten(-1, (6, -1)) if shared is None else shared + self.ada_gss[0]
        return own + own.new_tensor((0, 0, 1, 1, 0, 0))[:, None]

    def branch(self, tokens: Tokens) -> Tensor:
        return self.ffn(self.modulated(tokens, 1))

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        return self.gated(tokens, branch, 1)

    def modulated(self, tokens: Tokens, which: int) -> Tensor:
        """Normed and modulated input of the attention (0) or the MLP (1)."""
        normed = F.layer_norm(tokens.x, tokens.x.shape[-1:], eps=self.eps)
        return torch.addcmul(self._part(tokens, 4 + which), normed, self._part(tokens, 2 + which))

    def gated(self, tokens: Tokens, out: Tensor, which: int) -> Tokens:
        """The tokens with what the attention (0) or the MLP (1) gave added."""
        return tokens.with_x(torch.addcmul(tokens.x, self._part(tokens, which), out))

    def _part(self, tokens: Tokens, which: int) -> Tensor:
        assert tokens.cond is not None
        return tokens.cond[:, self.layer, which, None]


class HeadNorm(nn.Module):
    """norm(x)·(1 + s) + b with s, b from the condition's embedding itself, even where the blocks share a projection. In fp32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.ada_lin = modulation(dim, 2)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """``x`` (rows, tokens, dim), ``cond`` (rows, dim)."""
        scale, shift = self.ada_lin(cond).float()[:, None].chunk(2, -1)
        return torch.addcmul(shift, F.layer_norm(x.float(), x.shape[-1:], eps=self.eps), 1 + scale)
