"""Shared layers, and linear layers packed in the order of the CPU kernel.

A product with few rows is bound by reading weights, which torch copies into blocks at every call. oneDNN accepts weights that are already
in blocks (ADR 13).
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cache.kernels import fused, fused_norms, fused_products
from ..cache.layout import Tokens

M = TypeVar("M", bound=nn.Module)

LEAST = 2**19  # weights of a layer that is packed: below, a call costs more than its blocks save
ROWS = 64  # for which oneDNN chooses the blocks; they serve any number of rows
PACKED_ROWS = range(4, 257)  # rows of a product that packed weights make faster, on Intel and AMD: `studies/packed.py`


class AttentionSizes:
    """Sizes of attention: ``dim`` channels in ``heads`` heads; ``kv_heads``: None for as many as heads."""

    heads: int
    dim: int
    kv_heads: int | None = None

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def groups(self) -> int:
        """The number of K/V heads."""
        return self.kv_heads or self.heads


class MLP(nn.Module):
    """fc2(gelu(fc1·x)), from ``before`` to ``after`` channels; ``approximate``: of torch's gelu."""

    def __init__(self, before: int, hidden: int, after: int, *, approximate: str = "none", bias: bool = True) -> None:
        super().__init__()
        self.approximate = approximate
        self.fc1, self.fc2 = nn.Linear(before, hidden, bias), nn.Linear(hidden, after, bias)

    def forward(self, x: Tensor) -> Tensor:
        fc1 = self.fc1
        if fc1.bias is not None and self.approximate == "tanh" and fused.fuses(x):
            return self.fc2(fused_products.linear_gelu(x, fc1.weight, fc1.bias))
        if fc1.bias is not None and self.approximate == "none" and fused_products.joins(x):
            return self.fc2(fused_products.product(x, fc1.weight, fc1.bias, "gelu"))
        return self.fc2(F.gelu(self.fc1(x), approximate=self.approximate))


def modulation(dim: int, count: int) -> nn.Sequential:
    """Build SiLU and a linear layer to ``count`` vectors; published names count the SiLU as 0."""
    return nn.Sequential(nn.SiLU(), nn.Linear(dim, count * dim))


class Joined:
    """Linear layers of one input as one product: from the first call on, their weights and biases are parts of one tensor each.

    Not a module, so that the layers keep their names.
    """

    def __init__(self, *layers: nn.Linear) -> None:
        self._layers, self._whole = layers, tuple[Tensor, ...]()

    @torch.inference_mode(False)  # a parameter cannot take the data of an inference tensor
    def whole(self) -> tuple[Tensor, ...]:
        """Return the joined weight, and the joined bias if the layers have one."""
        if not self._whole or self._whole[0].data_ptr() != self._layers[0].weight.data_ptr():
            found = list[Tensor]()
            for parts in ([layer.weight for layer in self._layers], [layer.bias for layer in self._layers if layer.bias is not None]):
                if parts:
                    found.append(torch.cat([part.detach() for part in parts]))
                    for part, share in zip(parts, found[-1].split([len(part) for part in parts]), strict=True):
                        part.data = share
            self._whole = tuple(found)
        return self._whole

    def __call__(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, sum of out)."""
        return F.linear(x, *self.whole())


class RMSNorm(nn.Module):
    """x · rsqrt(mean(x²) + eps) in fp32, cast to the dtype of x, then multiplied by the weight."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.rms_norm(x, self.weight.shape, eps=self.eps) * self.weight  # computed in fp32 and rounded once


def added(tokens: Tokens, out: Tensor, following: RMSNorm | None) -> Tokens:
    """Add a branch's output to the tokens; where passes are fused, also compute the norm that follows."""
    if following is None or not fused.fuses(tokens.x):
        return tokens.with_x(tokens.x + out)
    x, y = fused.add_norm(tokens.x, out, following.weight, following.eps)
    return replace(tokens, x=x, normed=(following, y))


def normed(tokens: Tokens, norm: RMSNorm) -> Tensor:
    """Return the norm of the tokens, unless the pass before has computed it."""
    return tokens.normed[1] if tokens.normed is not None and tokens.normed[0] is norm else norm(tokens.x)


Following = tuple[object, fused_norms.Shade]
"""A layer norm with what follows it, and an object that names it."""


def affine(norm: nn.LayerNorm) -> Following:
    """Return a layer norm with its weight and bias, for fused passes."""
    return norm, fused_norms.Shade(norm.weight, norm.bias, norm.eps, rounds=False)


def add_shaded(tokens: Tokens, out: Tensor, following: Following | None, gate: Tensor | None = None) -> Tokens:
    """Add a branch's gated output to the tokens, and compute the norm that follows, in one fused pass."""
    x, y = fused_norms.gate_norm(tokens.x, out, gate, following[1] if following else None)
    return replace(tokens, x=x, normed=(following[0], y) if following else None)


def shaded(tokens: Tokens, norm: Following) -> Tensor:
    """Return a layer norm of the tokens in a fused pass, unless the pass before has computed it."""
    if tokens.normed is not None and tokens.normed[0] is norm[0]:
        return tokens.normed[1]
    return fused_norms.gate_norm(tokens.x, None, None, norm[1])[1]


def rotate_pairs(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate channel pairs (2p, 2p+1) by complex64 ``angles`` ([rows,] tokens, head_dim/2).

    x: (rows, tokens, heads, head_dim). Computed in fp32 and cast back. A zero angle maps the pair to zero; it is not the identity.
    """
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles.unsqueeze(-2)).flatten(-2).to(x.dtype)


def grid_angles(rows: Tensor, columns: Tensor, head_dim: int, base: float) -> Tensor:
    """Return the angles of a grid, (h·w, head_dim/2) fp32: first half by row, second by column.

    ``rows`` (h,), ``columns`` (w,) fp32: their positions.
    """
    half = head_dim // 2
    down, across = (places[:, None] * base ** (-torch.arange(0, half, 2, dtype=torch.float32, device=places.device) / half)
                    for places in (rows, columns))
    shape = (len(rows), len(columns), -1)
    return torch.cat((down[:, None].expand(shape), across[None].expand(shape)), -1).flatten(0, 1)


class Projection(nn.Linear):
    """A linear layer whose bias the caller may replace."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Map (…, in) to (…, out), with ``bias`` (out,) instead of the layer's own."""
        return F.linear(x, self.weight, self.bias if bias is None else bias)


class Packed(nn.Module):
    """A linear fp32 layer on the CPU with a copy of its weights in oneDNN's order, for inference only.

    It replaces :class:`Projection`. Products of ``PACKED_ROWS`` rows use the copy, which is not in the state dict.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("blocks", torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS), persistent=False)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Map (…, in) to (…, out)."""
        bias = self.bias if bias is None else bias
        if x.numel() // x.size(-1) not in PACKED_ROWS:
            return F.linear(x, self.weight, bias)
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), self.blocks, bias, "none", [], "")


def packed(model: M) -> M:
    """Pack the model's large fp32 CPU layers in place and return the model.

    Nothing is packed if torch lacks oneDNN, or if the copies would take more than a quarter of the machine's memory."""
    large = [(module, name, layer) for module in list(model.modules()) for name, layer in module.named_children()
             if isinstance(layer, nn.Linear) and layer.weight.numel() >= LEAST
             and layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if torch.backends.mkldnn.is_available() and 4 * sum(layer.weight.nbytes for _, _, layer in large) <= memory:
        for module, name, layer in large:
            setattr(module, name, Packed(layer))
    return model
