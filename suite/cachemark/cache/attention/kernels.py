"""Which kernel computes an attention without a mask, and that it is a fused one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..layout import Layout
from .attention import KERNEL

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


@contextmanager
def fused(device: str) -> Iterator[None]:
    """On a CUDA device attention within runs a fused kernel or raises RuntimeError, so that no figure of a fast engine is that of the
    written-out formula. A CPU has one kernel of its own."""
    if torch.device(device).type == "cpu":
        yield
        return
    with sdpa_kernel(FUSED):
        yield


def chosen(layout: Layout) -> str:
    """The kernel that the dispatcher takes for keys of this layout, ``sdpa-flash`` for instance; on a CPU it is just ``sdpa``.

    Asked with one row, a few tokens and a prefix of a longer buffer: type, head width and strides decide, and none of the sizes.
    """
    if torch.device(layout.device).type == "cpu":
        return KERNEL
    many = layout.scales or layout.paradigm == "masked"
    tokens = 16 if many else layout.heads // layout.kv_heads
    buffer = torch.zeros(1, layout.kv_heads, 64, layout.head_dim, dtype=layout.dtype, device=layout.device)
    q = torch.zeros(1, layout.kv_heads, tokens, layout.head_dim, dtype=layout.dtype, device=layout.device)
    with fused(layout.device):
        backend = SDPBackend(torch._fused_sdp_choice(q, buffer[:, :, :48], buffer[:, :, :48]))
    return f"{KERNEL}-{backend.name.removesuffix('_ATTENTION').lower()}"
