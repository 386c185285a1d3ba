"""FLOPs of a model's matrix products, counted as they are dispatched."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from ..cache.kernels.table import counted as kernels_counted


def counted(run: Callable[[], object]) -> int:
    """Return the FLOPs of the matrix products that ``run`` dispatches, attention included.

    A multiplication and an addition are two. Attention uses its unfused kernel meanwhile, since some fused ones have no formula. Works on
    the meta device. Unlike :func:`~.masked_flops.work` it includes the scores that a method needs for its choice.
    """
    counter = FlopCounter(formulas())
    with sdpa_kernel(SDPBackend.MATH), kernels_counted(counter.add), counter:
        run()
    return counter.flops


class UncompiledMode(TorchDispatchMode):
    """A dispatch mode that starts without torch's compiler, whose import takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch would import the compiler to exempt the handler of a mode."""
        return False


class FlopCounter(UncompiledMode):
    """Add up torch's FLOP formulas; decompose operations without a formula if possible.

    Torch's own counter would import the compiler first, and keep account of every module."""

    def __init__(self, formulas: dict[Any, Callable[..., int]]) -> None:
        super().__init__()
        self.formulas, self.flops = formulas, 0
        self._whole: set[Any] = set()  # operations that are not made of others

    def add(self, flops: int) -> None:
        """Add the FLOPs of a kernel that dispatches nothing."""
        self.flops += flops

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = self.formulas.get(func.overloadpacket)
        if formula is None and func not in self._whole:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
            self._whole.add(func)
        out = func(*args, **kwargs)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        return out


@cache
def formulas() -> dict[Any, Callable[..., int]]:
    """Return torch's FLOP formulas, and one for the product with packed weights."""
    from torch.utils.flop_counter import flop_registry, shape_wrapper  # here, because it imports Triton, which few processes need

    def packed(x: torch.Size, weight: torch.Size, *_: object, **__: object) -> int:
        return 2 * math.prod(x) * weight[0]

    own = {torch.ops.mkldnn._linear_pointwise: shape_wrapper(packed)} if torch.backends.mkldnn.is_available() else {}
    return {**flop_registry, **own}
