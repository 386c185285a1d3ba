"""FLOPs of a model's matrix products, counted as they are dispatched."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..cache.kernels.table import counted as kernels_counted
from ..core.errors import Unsupported

REORDERED = "_reorder_"  # operations that bring weights into another order, and multiply nothing
# Names of operations that multiply matrices or vectors.
PRODUCT = re.compile(r"mm(_|$)|(^|_)(mv|matmul|linear|dot|vdot|ger|addr|attention|convolution|conv\w*d|cdist|bilinear|trilinear)(_|$)"
                     r"|(^|_)(lstm|gru|rnn)(_|$)|^_?linalg_(solve|inv|lu|ldl|qr|svd|eig|cholesky|lstsq|pinv|householder|matrix_exp)")
ELEMENTWISE = {"outer", "ger", "vecdot", "linalg_vecdot"}


def counted(run: Callable[[], object]) -> int:
    """Return the FLOPs of the matrix products that ``run`` dispatches, attention included.

    A multiplication and an addition are two. Attention uses its unfused kernel meanwhile, since some fused ones have no formula. Works on
    the meta device. Unlike :func:`~.masked_flops.work` it includes the scores that a method needs for its choice. Raises Unsupported for a
    product that has no formula.
    """
    counter = FlopCounter(formulas())
    with sdpa_kernel(SDPBackend.MATH), kernels_counted(counter.add), ElementwiseProducts(counter), counter:
        run()
    if counter.uncounted:
        raise Unsupported(f"The FLOPs of {', '.join(sorted(counter.uncounted))} cannot be counted: torch has no formula.",
                          remedy="Write the product as matmul, bmm or einsum.")
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
        self.uncounted: set[str] = set()  # products without a formula that ran
        self._whole: dict[Any, bool] = {}  # of operations without a formula that are not made of others: whether they multiply

    def add(self, flops: int) -> None:
        """Add the FLOPs of a kernel that dispatches nothing."""
        self.flops += flops

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = self.formulas.get(func.overloadpacket)
        if formula is not None:
            out = func(*args, **kwargs)
            self.flops += formula(*args, **kwargs, out_val=out)
            return out
        if func not in self._whole:
            if not func.is_view:
                with self:
                    out = func.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            name = func.overloadpacket.__name__
            self._whole[func] = bool(PRODUCT.search(name)) and not name.startswith(REORDERED)
        if self._whole[func]:
            self.uncounted.add(func.overloadpacket.__name__)
        return func(*args, **kwargs)


class ElementwiseProducts(TorchFunctionMode):
    """Counts products that torch runs as elementwise multiplications, which no operation shows."""

    def __init__(self, counter: FlopCounter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.counter.flops
        out = func(*args, **(kwargs or {}))
        if (name := getattr(func, "__name__", "")) in ELEMENTWISE:
            size = out.numel() if name in ("outer", "ger") else max(part.numel() for part in args[:2])
            self.counter.flops = max(self.counter.flops, before + 2 * size)  # where torch does run it as a product
        return out


@cache
def formulas() -> dict[Any, Callable[..., int]]:
    """Return torch's FLOP formulas, and those of products that it lacks."""
    from torch.utils.flop_counter import flop_registry, shape_wrapper  # here, because it imports Triton, which few processes need

    def of_sum(_: torch.Size, first: torch.Size, second: torch.Size, *__: object, **___: object) -> int:
        """Return the FLOPs of a product that is added to the first argument."""
        return 2 * math.prod(first) * (second[-1] if len(second) > 1 or len(first) == 1 else 1)

    def of_product(first: torch.Size, *_: object, out_shape: torch.Size, **__: object) -> int:
        return 2 * math.prod(out_shape) * first[-1]

    def of_distances(first: torch.Size, second: torch.Size, *_: object, **__: object) -> int:
        return 2 * math.prod(first) * second[-2]

    aten = torch.ops.aten
    products = [aten.mv, aten.dot, aten.vdot, aten._int_mm]
    products += [aten.linear, aten.matmul]  # which are made of others, but that takes time to find out
    products += [torch.ops.mkldnn._linear_pointwise] if torch.backends.mkldnn.is_available() else []
    lacking = {**dict.fromkeys(products, of_product), **dict.fromkeys((aten.addmv, aten.addr, aten.addbmm), of_sum),
               aten._cdist_forward: of_distances}
    return {**flop_registry, **{packet: shape_wrapper(formula) for packet, formula in lacking.items() if packet not in flop_registry}}
