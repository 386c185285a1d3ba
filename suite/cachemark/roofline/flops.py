"""FLOPs of a model's matrix products, counted as they are dispatched."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def counted(run: Callable[[], object]) -> int:
    """FLOPs of the matrix products that ``run`` dispatches, those of attention among them: a multiplication and an addition are two.

    Attention is computed by its unfused kernel meanwhile, since not every fused one has a count. Works on the meta device, where
    nothing is computed. Differs from :func:`~.masked_flops.work` by what that leaves out: scores that a method needs for its
    choice alone."""
    from torch.utils.flop_counter import FlopCounterMode  # here, because it imports Triton, which few processes need

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=_packed()) as counter:
        run()
    return counter.get_total_flops()


def _packed() -> dict[Any, Callable[..., int]]:
    """Formulas that torch's counter lacks: the product with packed weights."""

    def flops(x: torch.Size, weight: torch.Size, *_: object, **__: object) -> int:
        return 2 * math.prod(x) * weight[0]

    return {torch.ops.mkldnn._linear_pointwise: flops} if torch.backends.mkldnn.is_available() else {}
