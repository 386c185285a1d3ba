"""The decoder of Emu3's video tokenizer for single images: 8×8 pixels per code.

Wang et al., "Emu3: Next-Token Prediction is All You Need" (2024); normalization by the codes as in MoVQ (Zheng et al., 2022). Parameter
names as in the transformers library. An image is the first of the frames that the published code decodes. Its convolutions over
frames are causal, so the first frame reads only the last slice of each kernel, and the others are not computed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from .vq import Codebook, Pyramid, Upsample, conv, norm


@dataclass(frozen=True)
class Emu3VQConfig(Pyramid):
    """Shape of the decoder.

    ``width``: channels of a code; ``attended``: levels with attention; ``frames`` per code."""

    ch: int = 256
    ch_mult: tuple[int, ...] = (1, 2, 2, 4)
    width: int = 4
    codebook_size: int = 32768
    attended: tuple[int, ...] = (3,)
    frames: int = 4


EMU3_VQ = Emu3VQConfig()


class FrameConv(nn.Module):
    """A causal convolution over three frames, for the first one: (B, c_in, H, W) to (B, c_out, H, W)."""

    def __init__(self, c_in: int, c_out: int, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(c_in, c_out, (3, size, size))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.conv.weight[:, :, -1], self.conv.bias, padding=self.conv.kernel_size[-1] // 2)


class FrameBlock(nn.Module):
    """Two normalized convolutions over frames with a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), FrameConv(channels, channels, 3)
        self.norm2, self.conv2 = nn.BatchNorm2d(channels), FrameConv(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h)))


class FrameUpsample(nn.Module):
    """Twice as many frames, then a convolution; the first frame is the first of its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = FrameConv(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class CodeNorm(nn.Module):
    """GroupNorm, scaled and shifted by projections of the code vectors, upsampled to its resolution."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.norm_layer = norm(channels)
        self.conv_y, self.conv_b = conv(width, channels, 1), conv(width, channels, 1)

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        vectors = F.interpolate(vectors, size=x.shape[-2:], mode="nearest")
        return self.norm_layer(x) * self.conv_y(vectors) + self.conv_b(vectors)


class CodeBlock(nn.Module):
    """Two convolutions, normalized by the codes, with a shortcut: (B, c_in, H, W) to (B, c_out, H, W)."""

    def __init__(self, c_in: int, c_out: int, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = CodeNorm(c_in, width), conv(c_in, c_out)
        self.norm2, self.conv2 = CodeNorm(c_out, width), conv(c_out, c_out)
        self.nin_shortcut = nn.Identity() if c_in == c_out else conv(c_in, c_out, 1)

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x, vectors)))
        return self.nin_shortcut(x) + self.conv2(F.silu(self.norm2(h, vectors)))


class PixelAttention(nn.Module):
    """Attention over all positions, with one head: (B, C, H, W) to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(channels, channels) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.flatten(2).transpose(1, 2)
        q, k, v = (project(pixels).unsqueeze(1) for project in (self.q_proj, self.k_proj, self.v_proj))
        mixed = F.scaled_dot_product_attention(q, k, v).squeeze(1)
        return self.out_proj(mixed).transpose(1, 2).reshape(x.shape)


class MiddleBlock(nn.Module):
    """Two residual blocks with attention between them."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.block_1, self.block_2 = (CodeBlock(channels, channels, width) for _ in range(2))
        self.attn_1, self.attn_norm = PixelAttention(channels), CodeNorm(channels, width)

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        x = self.block_1(x, vectors)
        return self.block_2(x + self.attn_1(self.attn_norm(x, vectors)), vectors)


class UpLevel(nn.Module):
    """All blocks of one resolution, with attention if ``attended``."""

    def __init__(self, c_in: int, c_out: int, depth: int, width: int, *, attended: bool, upsample: bool) -> None:
        super().__init__()
        self.block = nn.ModuleList(CodeBlock(c_in if i == 0 else c_out, c_out, width) for i in range(depth))
        self.attn = nn.ModuleList(PixelAttention(c_out) for _ in range(depth if attended else 0))
        self.attn_norms = nn.ModuleList(CodeNorm(c_out, width) for _ in self.attn)
        self.upsample = Upsample(c_out) if upsample else nn.Identity()

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        for i, block in enumerate(self.block):
            x = block(x, vectors)
            if self.attn:
                x = x + self.attn[i](self.attn_norms[i](x, vectors))
        return self.upsample(x)


class UpBlock(nn.Module):
    """All resolutions; ``up.0`` is the highest one and runs last."""

    def __init__(self, config: Emu3VQConfig) -> None:
        super().__init__()
        widths = config.widths
        self.up = nn.ModuleList(
            UpLevel(c_in, c_out, config.num_res_blocks + 1, config.width, attended=level in config.attended, upsample=level > 0)
            for level, (c_in, c_out) in enumerate(zip((*widths[1:], widths[-1]), widths, strict=True)))

    def forward(self, x: Tensor, vectors: Tensor) -> Tensor:
        for level in reversed(self.up):
            x = level(x, vectors)
        return x


class Emu3Decoder(nn.Module):
    """Latents and code vectors (B, width, h, w) to pixels (B, 3, f·h, f·w)."""

    def __init__(self, config: Emu3VQConfig) -> None:
        super().__init__()
        width, widths = config.width, config.widths
        self.time_res_stack = nn.ModuleList(FrameBlock(width) for _ in range(config.num_res_blocks))
        self.time_conv = nn.ModuleList(FrameUpsample(width) for _ in range(int(math.log2(config.frames))))
        self.conv_in = conv(width, widths[-1])
        self.middle_block, self.up_block = MiddleBlock(widths[-1], width), UpBlock(config)
        self.norm_out, self.conv_out = CodeNorm(widths[0], width), conv(widths[0], 3)

    def forward(self, latents: Tensor, vectors: Tensor) -> Tensor:
        latents, vectors = self.first_frame(latents), self.first_frame(vectors)
        x = self.up_block(self.middle_block(self.conv_in(latents), vectors), vectors)
        return self.conv_out(F.silu(self.norm_out(x, vectors)))

    def first_frame(self, x: Tensor) -> Tensor:
        """Return the first frame (B, width, h, w) of the convolutions over frames, from one code per position."""
        for block in self.time_res_stack:
            x = block(x)
        for upsample in self.time_conv:
            x = F.silu(upsample(x))
        return x


class Emu3VQ(nn.Module):
    """Codes to images, in fp32."""

    def __init__(self, config: Emu3VQConfig = EMU3_VQ) -> None:
        super().__init__()
        self.config, self.decoder = config, Emu3Decoder(config)
        self.quantize = Codebook(config.codebook_size, config.width, unit=False)
        self.post_quant_conv = FrameConv(config.width, config.width, 1)

    def decode(self, codes: Tensor, grid: tuple[int, int]) -> Tensor:
        """Decode codes (B, h·w) on ``grid`` = (h, w) to images (B, 3, f·h, f·w), nominally in [−1, 1].

        Raises Unsupported.
        """
        vectors = self.quantize(codes, grid)
        return self.decoder(self.post_quant_conv(vectors), vectors).float()
