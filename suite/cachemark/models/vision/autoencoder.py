"""The decoder of VQGAN and latent diffusion, with published names ``up.N.block.M``.

VAR's multi-scale tokenizer and MAR's KL autoencoder use it. Blocks come from :mod:`~cachemark.models.vision.vq`, whose files order them
differently.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .vq import Attend, Pyramid, ResBlock, Upsample, conv, middle, norm

MIDDLE = "block_1", "attn_1", "block_2"


class JointAttnBlock(nn.Module):
    """Residual attention over all H·W positions with one head; one convolution makes q, k and v."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = norm(channels)
        self.qkv, self.proj_out = conv(channels, 3 * channels, 1), conv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v)  # (B, 1, HW, C); its own scale is C^-1/2
        return x + self.proj_out(mixed.squeeze(1).transpose(1, 2).reshape(x.shape))


class KLLevel(nn.Module):
    """All blocks of one resolution; absent parts are identities, which add no key to the state dict."""

    def __init__(self, c_in: int, c_out: int, depth: int, attend: Attend) -> None:
        super().__init__()
        self.block = nn.ModuleList(ResBlock(c_in if i == 0 else c_out, c_out) for i in range(depth))
        self.attn = nn.ModuleList(attend(c_out) for _ in range(depth))
        self.upsample: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for block, attn in zip(self.block, self.attn, strict=True):
            x = attn(block(x))
        return self.upsample(x)


class KLDecoder(nn.Module):
    """Latents (B, z, h, w) to images (B, 3, f·h, f·w). ``up.0`` is the highest resolution and runs last.

    ``in_levels``: attend in the lowest resolution too, not only in the middle.
    """

    def __init__(self, shape: Pyramid, z: int, attend: Attend, *, in_levels: bool = True) -> None:
        super().__init__()
        widths = shape.widths
        self.conv_in = conv(z, widths[-1])
        self.mid = middle(widths[-1], attend, MIDDLE)
        kinds = [*[nn.Identity] * (len(widths) - 1), attend if in_levels else nn.Identity]
        levels = zip((*widths[1:], widths[-1]), widths, kinds, strict=True)
        self.up = nn.ModuleList(KLLevel(a, b, shape.num_res_blocks + 1, kind) for a, b, kind in levels)
        for level, width in zip(self.up[1:], widths[1:], strict=True):
            level.upsample = Upsample(width)
        self.norm_out = norm(widths[0])
        self.conv_out = conv(widths[0], 3)

    def forward(self, latents: Tensor) -> Tensor:
        x = self.mid(self.conv_in(latents))
        for level in reversed(self.up):
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(x)))
