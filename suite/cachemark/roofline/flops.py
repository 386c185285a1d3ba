"""FLOPs of an image of a masked model: counted as they are dispatched, and as they are printed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

TERA = 10**12


def counted(run: Callable[[], object]) -> int:
    """FLOPs of the matrix products that ``run`` dispatches, those of attention among them: a multiplication and an addition are two.

    Attention is computed by its unfused kernel meanwhile, since not every fused one has a count. Works on the meta device, where
    nothing is computed. Differs from :func:`~.masked_flops.work` by what that leaves out: scores that a method needs for its
    choice alone."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=_packed()) as counter:
        run()
    return counter.get_total_flops()


def _packed() -> dict[Any, Callable[..., int]]:
    """What torch's counter does not know: the product with packed weights."""

    def flops(x: torch.Size, weight: torch.Size, *_: object, **__: object) -> int:
        return 2 * math.prod(x) * weight[0]

    return {torch.ops.mkldnn._linear_pointwise: flops} if torch.backends.mkldnn.is_available() else {}


@dataclass(frozen=True)
class PrintedFlops:
    """FLOPs of an image, in 10¹², as LazyMAR's Table 1 prints them: under its own method (``lazymar``) or none (``full``)."""

    model: str
    steps: int
    method: str
    printed: str

    def off(self, flops: int) -> float:
        """How far ``flops`` are from the printed figure, as a share of that: negative where they are fewer."""
        return flops / TERA / float(self.printed) - 1


def published(model: str = "") -> list[PrintedFlops]:
    """The figures that LazyMAR prints, of one model or of all."""
    text = (resources.files("cachemark") / "data" / "published" / "lazymar.json").read_text(encoding="utf-8")
    return [found for row in json.loads(text)["flops"] if (found := PrintedFlops(**row)).model == model or not model]
