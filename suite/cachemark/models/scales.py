"""The generation loop of next-scale models: all tokens of a map per pass, coarse to fine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache import random_streams as streams
from ..cache.arena import Memory
from ..cache.engines import Engine
from ..cache.kernels import fused, fused_norms
from ..cache.kernels.fused_norms import Shade
from ..cache.layout import Grid, Layout, ScaleWork, Site, Step, Tokens, guided_rows, scale_steps
from ..contract.block import Branch
from ..contract.method import Method, graph_key, run_blocks
from ..core.spec import Sampling
from .layers import AttentionSizes, Following, add_shaded, modulation, shaded
from .vision.maps import ABSENT, MapQuantizer


class ScaleSizes(AttentionSizes):
    """Sizes of a next-scale transformer. ``unguided``: the largest ``cfg_scale`` without guidance."""

    unguided: ClassVar[float] = 1
    depth: int

    @property
    @abstractmethod
    def scales(self) -> tuple[Grid, ...]:
        """Rows and columns of the token maps, coarse to fine."""

    @property
    def grid(self) -> Grid:
        """Rows and columns of the last map."""
        return self.scales[-1]

    @property
    def tokens(self) -> int:
        """The number of tokens of all maps."""
        return sum(rows * columns for rows, columns in self.scales)

    @abstractmethod
    def work(self, text: int = 0) -> ScaleWork:
        """Return the sizes of the products, with ``text`` entries of a text."""

    def layout(
        self, seeds: Sequence[int], sampling: Sampling, dtype: torch.dtype = torch.float32, device: str = "cpu", *, text: int = 0,
    ) -> Layout:
        """Return the layout of a generation: no condition entries, unconditional rows last.

        ``text``: entries of a text.
        """
        row_seeds, branches = guided_rows(seeds, sampling.cfg_scale > self.unguided)
        return Layout(ScaleModel.paradigm, (0,) * len(branches), 0, 0, self.heads, self.heads, self.head_dim, self.depth, row_seeds,
                      branches, dtype, device, self.scales, work=self.work(text))


@dataclass(frozen=True)
class Given:
    """Constants of a generation: seeds ``key`` (batch, 1), condition (rows, dim), modulations.

    ``modulations`` of all blocks: (rows, depth, 6, dim). ``by_row``: names of the tensors that have rows.
    """

    by_row: ClassVar[tuple[str, ...]] = ("cond", "modulations")
    key: Tensor
    cond: Tensor
    modulations: Tensor

    def first(self, rows: int) -> Self:
        """Return the constants of the first ``rows`` rows."""
        parts: dict[str, Any] = {name: getattr(self, name)[:rows] for name in self.by_row}
        return self if rows == len(self.cond) else replace(self, **parts)

    @property
    def guided(self) -> bool:
        """True if every sample has an unconditional row."""
        return len(self.cond) > len(self.key)


G = TypeVar("G", bound=Given)


class ScaleModel(nn.Module, Generic[G]):
    """A stack of blocks that predicts the next token map; subclasses add input, logits and sampling."""

    paradigm = "next-scale"
    config: ScaleSizes
    head: nn.Linear
    stacked: Sequence[ModulatedBlock]  # one per entry of ``sites``
    shared_ada_lin: nn.Module | None
    sites: Sequence[Site]
    longest = 0  # entries of a text

    @property
    @abstractmethod
    def quantizer(self) -> MapQuantizer:
        """The quantizer of the image tokenizer."""

    def share(self, quantizer: Any) -> None:
        """Use another model's equal ``quantizer``, so that one tokenizer is in memory."""

    def layout(self, seeds: Sequence[int], sampling: Sampling, labels: Sequence[int] = ()) -> Layout:
        """Return the layout of a generation of these samples."""
        weight = self.head.weight
        return self.config.layout(seeds, sampling, weight.dtype, str(weight.device), text=self.longest)

    @abstractmethod
    def condition(self, labels: Tensor, key: Tensor, layout: Layout, engine: Engine) -> G:
        """Compute the constants that all passes read."""

    @abstractmethod
    def feed(self, step: Step, condition: G, f_hat: Tensor) -> Tokens:
        """Return the input of a pass, given the feature map so far."""

    @abstractmethod
    def guided(self, hidden: Tensor, step: Step, sampling: Sampling, condition: G) -> Tensor:
        """Return guided fp32 logits (batch, count, …, vocab) from hidden states of the condition's rows."""

    @abstractmethod
    def drawn(self, logits: Tensor, step: Step, sampling: Sampling, condition: G) -> Tensor:
        """Sample tokens (batch, count) int64 from guided logits."""

    def initialise(self, seed: int) -> Self:
        """Draw random weights with std 0.02, including gates and head.

        Scales of attention and norms of the text keep their weights.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if not name.endswith(("scale_mul_1H11", "text_norm.weight", "ca_norm.weight")):
                parameter.data.normal_(0, 0.02, generator=generator)
        return self

    def modulations(self, cond: Tensor) -> Tensor:
        """Return modulations of all blocks, (rows, depth, 6, dim), from the condition (rows, dim)."""
        shared = self.shared_ada_lin(cond).unflatten(-1, (6, -1)) if self.shared_ada_lin else None
        return torch.stack([block.modulation(cond, shared) for block in self.stacked], 1)

    def forward(self, tokens: Tokens, step: Step, method: Method) -> Tensor:
        """Run one pass under a method: hidden states before the head's norm, (rows, tokens, dim)."""
        return method.stack("decoder", step, tokens, lambda fed: run_blocks(self.sites, self.stacked, step, method, fed).x)

    @torch.inference_mode()
    def generate(
        self, labels: Tensor, seeds: Sequence[int], method: Method, sampling: Sampling, memory: Memory, *,
        forced: Tensor | None = None, see: Callable[[int, Tensor], None] | None = None, mark: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Generate tokens (batch, N) int64, scale by scale, for ``labels`` (batch,) under ``method``.

        The method states how many scales are generated, and how many rows each computes; tokens of other scales are ``ABSENT``. ``forced``
        (batch, N, or as many as the first scales have) replaces sampled tokens; ``see(first, logits)`` receives the guided fp32 logits of a
        scale; ``mark(i)`` is called when all tokens up to i exist, for timing.
        """
        layout, engine = self.layout(seeds, sampling), memory.engine
        method.begin(layout, self.sites, memory)
        key = engine.hold("seeds", streams.seeds_tensor(seeds, labels.device)[:, None])
        out = torch.full((len(labels), layout.visual), ABSENT, device=labels.device)
        condition = self.condition(labels, key, layout, engine)
        f_hat = self.quantizer.empty(len(labels)).to(labels.device)
        for step in scale_steps(layout, method.scales(layout)):
            span = slice(step.first, step.first + step.count)
            inputs = (f_hat,) if forced is None or span.stop > forced.size(1) else (f_hat, forced[:, span])
            fed = condition.first(method.computed_rows(layout, step.index))
            work = partial(self._pass, step, method, sampling, fed, see is not None)
            codes, f_hat, *logits = engine.run((step.index, see is not None, graph_key(method, step)), work, inputs, method)
            method.end_step(step)
            out[:, span] = codes
            if see is not None and logits:
                see(step.first, logits[0])
            if mark is not None:
                mark(span.stop - 1)
        return out

    def _pass(
        self, step: Step, method: Method, sampling: Sampling, condition: G, with_logits: bool, f_hat: Tensor, forced: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Run one scale: tokens (batch, count), the new feature map and, ``with_logits``, guided logits.

        After the last scale the feature map is not computed.
        """
        hidden = self(self.feed(step, condition, f_hat), step, method)
        logits = self.guided(hidden, step, sampling if condition.guided else replace(sampling, cfg_scale=0), condition)
        codes = self.drawn(logits, step, sampling, condition) if forced is None else forced
        f_hat = f_hat if step.last else self.quantizer.add(f_hat, codes, step.index)
        return (codes, f_hat, logits) if with_logits else (codes, f_hat)


class ModulatedBlock(nn.Module):
    """x += γ₁·attention(norm(x)·(1 + s₁) + b₁); x += γ₂·ffn(norm(x)·(1 + s₂) + b₂).

    The tokens' ``cond`` (rows, depth, 6, dim) holds γ₁, γ₂, 1 + s₁, 1 + s₂, b₁, b₂ of every block. A block has its own projection of the
    condition, ``ada_lin``, or a table ``ada_gss`` (1, 1, 6, dim) added to a shared one.
    """

    ffn: nn.Module
    ada_lin: nn.Module
    ada_gss: nn.Parameter

    def __init__(self, layer: int, eps: float) -> None:
        super().__init__()
        self.layer, self.eps = layer, eps
        self.marks = object(), object()  # names of its two norms
        self.after: tuple[ModulatedBlock | None] = (None,)  # the next block; in a tuple, so that it is not a submodule

    def modulation(self, cond: Tensor, shared: Tensor | None) -> Tensor:
        """Return (rows, 6, dim) from the condition (rows, dim), or from the ``shared`` projection of it."""
        own = self.ada_lin(cond).unflatten(-1, (6, -1)) if shared is None else shared + self.ada_gss[0]
        return own + own.new_tensor((0, 0, 1, 1, 0, 0))[:, None]

    @abstractmethod
    def branches(self, site: Site, step: Step, method: Method) -> list[Branch]:
        """Return its branches in order; the last is the MLP."""

    def mix(self, site: Site, step: Step, tokens: Tokens, method: Method) -> Tokens:
        for branch in self.branches(site, step, method)[:-1]:
            tokens = branch.join(tokens, branch.run(tokens))
        return tokens

    def branch(self, tokens: Tokens) -> Tensor:
        return self.ffn(self.modulated(tokens, 1))

    def join(self, tokens: Tokens, branch: Tensor) -> Tokens:
        return self.gated(tokens, branch, 1)

    @property
    def mlp(self) -> Branch:
        """The MLP."""
        return Branch(self.branch, self.join)

    def modulated(self, tokens: Tokens, which: int) -> Tensor:
        """Return the normed and modulated input of the attention (0) or the MLP (1)."""
        if fused.fuses(tokens.x):
            return shaded(tokens, self.shade(tokens, which))
        normed = F.layer_norm(tokens.x, tokens.x.shape[-1:], eps=self.eps)
        return torch.addcmul(self._part(tokens, 4 + which), normed, self._part(tokens, 2 + which))

    def gated(self, tokens: Tokens, out: Tensor, which: int) -> Tokens:
        """Add the gated output of the attention (0) or the MLP (1)."""
        if fused.fuses(tokens.x):
            return add_shaded(tokens, out, self.following(tokens, which), self._part(tokens, which))
        return tokens.with_x(torch.addcmul(tokens.x, self._part(tokens, which), out))

    def following(self, tokens: Tokens, which: int) -> Following | None:
        """Return the norm after the attention (0) or the MLP (1), or None after the last block."""
        if which == 0:
            return self.shade(tokens, 1)
        (after,) = self.after
        return None if after is None else after.shade(tokens, 0)

    def shade(self, tokens: Tokens, which: int) -> Following:
        """Return the norm before the attention (0) or the MLP (1), for fused passes."""
        return self.marks[which], Shade(self._part(tokens, 2 + which), self._part(tokens, 4 + which), self.eps)

    def _part(self, tokens: Tokens, which: int) -> Tensor:
        assert tokens.cond is not None
        return tokens.cond[:, self.layer, which, None]


class HeadNorm(nn.Module):
    """norm(x)·(1 + s) + b in fp32, with s and b projected from the condition."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.ada_lin = modulation(dim, 2)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """Normalize ``x`` (rows, tokens, dim) under ``cond`` (rows, dim)."""
        scale, shift = self.ada_lin(cond)[:, None].chunk(2, -1)
        if fused.fuses(x):
            return fused_norms.gate_norm(x, None, None, Shade(scale, shift, self.eps, plus=True, rounds=False))[1]
        scale, shift = scale.float(), shift.float()
        return torch.addcmul(shift, F.layer_norm(x.float(), x.shape[-1:], eps=self.eps), 1 + scale)
