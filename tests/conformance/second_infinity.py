"""A second Infinity, for vectors of shapes without stored outputs of the authors' code.

Written from the formulas alone and without code of the package: no cache, but all tokens of a row at once under a mask, one row after the
other, in the layout and under the names of the authors' vectors. It must reproduce these before it is used for other shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EPS = 1e-6


@dataclass
class SecondInfinity:
    """``weights``: by official names, ``var/…`` and ``vae/…``; ``config``: as in the JSON of a vector.

    ``finest``: the map in units of which positions are counted; ``rounding``: round what cross-attention reads and returns to bf16.
    """

    weights: Mapping[str, Tensor]
    config: Mapping[str, Any]
    finest: tuple[int, int]
    rounding: bool = False

    def __post_init__(self) -> None:
        self.maps = [(rows, columns) for _, rows, columns in self.config["scale_schedule"]]
        self.sizes = [rows * columns for rows, columns in self.maps]

    # -- parts --------------------------------------------------------------------------------------------------------
    def var(self, name: str) -> Tensor:
        return self.weights[f"var/{name}"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.var(f"{name}.weight").T + self.var(f"{name}.bias")

    def text_attention(self, name: str, q: Tensor, text: Tensor) -> Tensor:
        """Mix the values of a text (n, channels) for queries (tokens, heads, head_dim)."""
        k, v = (text @ self.var(f"{name}.mat_kv.weight").T).chunk(2, -1)
        k, v = (part.unflatten(-1, q.shape[1:]) for part in (k, v + self.var(f"{name}.v_bias")))
        if self.rounding:
            q, k, v = (part.bfloat16().float() for part in (q, k, v))
        weights = (torch.einsum("thd,nhd->htn", q, k) / math.sqrt(q.size(-1))).softmax(-1)
        mixed = torch.einsum("htn,nhd->thd", weights, v)
        return self.linear(f"{name}.proj", (mixed.bfloat16().float() if self.rounding else mixed).flatten(1))

    def read(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pooled condition (C,), and the text as blocks read it (n, C)."""
        text = raw * (raw.square().mean(-1, keepdim=True) + EPS).rsqrt() * self.var("text_norm.weight")
        cond = self.text_attention("text_proj_for_sos.ca", self.var("text_proj_for_sos.ca.mat_q"), text)[0]
        return cond, self.linear("text_proj_for_ca.2", F.gelu(self.linear("text_proj_for_ca.0", text), approximate="tanh"))

    @cached_property
    def turns(self) -> Tensor:
        """Return the angles of all tokens, (N, head_dim/2): by rows, then by columns; positions are rounded exactly, half to even."""
        half = self.config["embed_dim"] // self.config["num_heads"] // 2
        speeds = torch.tensor([10000.0 ** (-exponent / half) for exponent in range(0, half, 2)], dtype=torch.float64)
        angles = []
        for rows, columns in self.maps:
            for row in range(rows):
                for column in range(columns):
                    down, across = round(Fraction(row * self.finest[0], rows)), round(Fraction(column * self.finest[1], columns))
                    angles.append(torch.cat((down * speeds, across * speeds)))
        return torch.stack(angles)

    def rotated(self, x: Tensor) -> Tensor:
        """Rotate interleaved pairs of (tokens, heads, head_dim)."""
        angles = self.turns[: len(x), None]
        a, b = x.double()[..., 0::2], x.double()[..., 1::2]
        return torch.stack((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(-2).float()

    def block(self, number: int, x: Tensor, cond: Tensor, text: Tensor, keys: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
        """Return the output of a block for the tokens so far (tokens, C); ``keys`` gets its keys and values (tokens, heads, head_dim)."""
        c = self.config
        per_chunk = c["depth"] // c["block_chunks"]
        name = f"block_chunks.{number // per_chunk}.module.{number % per_chunk}"
        six = self.var(f"{name}.ada_gss")[0, 0] + self.linear("shared_ada_lin.1", F.silu(cond)).view(6, -1)
        gamma1, gamma2, scale1, scale2, shift1, shift2 = six
        fed = F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale1) + shift1
        bias = torch.cat((self.var(f"{name}.sa.q_bias"), torch.zeros_like(cond), self.var(f"{name}.sa.v_bias")))
        q, k, v = (fed @ self.var(f"{name}.sa.mat_qkv.weight").T + bias).unflatten(-1, (3, c["num_heads"], -1)).unbind(1)
        steep = self.var(f"{name}.sa.scale_mul_1H11").view(1, -1, 1).clamp_max(math.log(100)).exp()
        q, k = self.rotated(F.normalize(q, dim=-1) * steep), self.rotated(F.normalize(k, dim=-1))
        keys[number] = k, v
        scale = torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes))[: len(x)]
        hidden = scale[None] > scale[:, None]
        weights = torch.einsum("thd,nhd->htn", q, k).masked_fill(hidden, -torch.inf).softmax(-1)
        x = x + gamma1 * self.linear(f"{name}.sa.proj", torch.einsum("htn,nhd->thd", weights, v).flatten(1))
        normed = F.layer_norm(x, x.shape[-1:], self.var(f"{name}.ca_norm.weight"), self.var(f"{name}.ca_norm.bias"), EPS)
        x = x + self.text_attention(f"{name}.ca", self.linear(f"{name}.ca.mat_q", normed).unflatten(-1, (c["num_heads"], -1)), text)
        fed = F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale2) + shift2
        return x + gamma2 * self.linear(f"{name}.ffn.fc2", F.gelu(self.linear(f"{name}.ffn.fc1", fed), approximate="tanh"))

    def logits(self, x: Tensor, cond: Tensor) -> Tensor:
        scale, shift = self.linear("head_nm.ada_lin.1", F.silu(cond)).chunk(2)
        return self.linear("head", F.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift)

    # -- a generation -------------------------------------------------------------------------------------------------
    def rows(self, texts: Sequence[Tensor], guided: bool) -> list[tuple[Tensor, Tensor]]:
        """Return what each row reads: every text, then for each as many learned vectors."""
        null = [self.var("cfg_uncond")[: len(text)] for text in texts] if guided else []
        return [self.read(raw) for raw in (*texts, *null)]

    def generate(self, texts: Sequence[Tensor], bits: Sequence[Tensor] = ()) -> dict[str, Tensor]:
        """Return the outputs of a greedy generation, or of one along ``bits`` (B, 1, h, w, d) of every scale."""
        config, batch, out = self.config, len(texts), dict[str, Tensor]()
        rows = self.rows(texts, any(cfg != 1 for cfg in config["cfg_list"]))
        begin = self.var("pos_start")[0] + self.var("lvl_embed.weight")[0]
        inputs = [cond[None] + begin for cond, _ in rows]
        total, own = torch.zeros(batch, config["codebook_dim"], *self.maps[-1]), 0
        for scale, (grid, size) in enumerate(zip(self.maps, self.sizes, strict=True)):
            keys: list[dict[int, tuple[Tensor, Tensor]]] = [{} for _ in rows]
            hidden = []
            for (cond, text), fed, stored in zip(rows, inputs, keys, strict=True):
                x = fed
                for number in range(config["depth"]):
                    x = self.block(number, x, cond, text, stored)
                hidden.append(x[own:])
            out[f"out/hidden_last/{scale}"] = torch.stack(hidden)
            plain = torch.stack([self.logits(x, cond) for x, (cond, _) in zip(hidden, rows, strict=True)])
            cfg, tau = config["cfg_list"][scale], config["tau_list"][scale]
            out[f"out/logits_pre/{scale}"] = plain if cfg != 1 else plain[:batch]
            guided = (cfg * plain[:batch] + (1 - cfg) * plain[batch:] if cfg != 1 else plain[:batch]) / tau
            out[f"out/bit_logits_cfg/{scale}"] = pairs = guided.unflatten(-1, (-1, 2)).flatten(1, 2)
            drawn = bits[scale] if bits else pairs.argmax(-1).view(batch, 1, *grid, -1).to(torch.uint8)
            out[f"out/bits/{scale}"] = drawn
            codes = (2 * drawn[:, 0].permute(0, 3, 1, 2).float() - 1) / math.sqrt(config["codebook_dim"])
            out[f"out/codes/{scale}"] = codes[:, :, None]
            total = total + F.interpolate(codes[:, :, None], (1, *self.maps[-1]), mode="trilinear")[:, :, 0]
            own += size
            if scale + 1 < len(self.maps):
                small = F.interpolate(total[:, :, None], (1, *self.maps[scale + 1]), mode="trilinear").flatten(2).mT
                out[f"out/next_input/{scale}"] = small
                fed = self.linear("word_embed", small) + self.var("lvl_embed.weight")[scale + 1]
                inputs = [torch.cat((before, fed[row % batch])) for row, before in enumerate(inputs)]
        for part, name in enumerate("kv"):
            out[f"out/cached_{name}_block0"] = torch.stack([stored[0][part].transpose(0, 1) for stored in keys])
        angles = self.turns
        image = self.image(total).clamp(-1, 1)
        pixels = ((image + 1) / 2 * 255).permute(0, 2, 3, 1).flip(-1).to(torch.uint8)
        return {**out, "out/summed_codes": total, "out/decoded": image, "out/image_uint8_bgr": pixels.contiguous(),
                "rope_cache_prefix": torch.stack((angles.cos(), angles.sin())).float()}

    # -- the image decoder ----------------------------------------------------------------------------------------------
    def image(self, latents: Tensor) -> Tensor:
        x, levels = self._conv("conv_in", latents), len(self.config["vae_ch_mult"])
        for block in ("mid.block_1", "mid.block_2"):
            x = self._residual(block, x)
        for level in reversed(range(levels)):
            for block in range(self.config["vae_num_res_blocks"] + 1):
                x = self._residual(f"up.{level}.block.{block}", x)
            if level:
                x = self._conv(f"up.{level}.upsample.conv", F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self._conv("conv_out", self._norm("norm_out", x))

    def _layer(self, name: str) -> tuple[Tensor, Tensor]:
        """Return weight and bias; names have another level in the authors' files."""
        full = next(at for at in (f"vae/decoder.{name}{level}" for level in (".conv", ".norm", "")) if f"{at}.weight" in self.weights)
        return self.weights[f"{full}.weight"], self.weights[f"{full}.bias"]

    def _conv(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._layer(name)
        return F.conv2d(x, weight, bias, padding=weight.size(-1) // 2)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return F.silu(F.group_norm(x, 32, *self._layer(name), EPS))

    def _residual(self, name: str, x: Tensor) -> Tensor:
        inner = self._conv(f"{name}.conv2", self._norm(f"{name}.norm2", self._conv(f"{name}.conv1", self._norm(f"{name}.norm1", x))))
        has_shortcut = any(f"vae/decoder.{name}.nin_shortcut" in key for key in self.weights)
        return inner + (self._conv(f"{name}.nin_shortcut", x) if has_shortcut else x)
