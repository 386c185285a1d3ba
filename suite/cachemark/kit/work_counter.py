"""Work of a generation as it is dispatched: FLOPs of products with the model's weights, those within attention, and all others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..cache.layout import Site, Step
from ..contract.method import Method
from ..roofline.flops import FlopCounter, formulas
from .capture import tensors
from .driver import Onlooker
from .reachable import place

RANDOM = {"bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "native_dropout", "normal",
          "normal_", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "random_", "randperm",
          "uniform", "uniform_"}  # fmt: skip
UNCOUNTED = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_fused_attention_overrideable")


@dataclass
class DispatchedWork:
    """Work of a generation by kind. ``weights``: FLOPs of products with the model's weights; ``attend``: of all products within the
    scope ``attend``; ``flops``: of all; ``drawn``: torch's random operations, with how often."""

    weights: int = 0
    attend: int = 0
    flops: int = 0
    drawn: Counter[str] = field(default_factory=Counter)


class WorkCounter(FlopCounter, Onlooker):
    """Counts the operations of a generation under the very kernels that it is timed with. ``parameters`` are the model's. Work of other
    threads is not dispatched here, so it is missing."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__({**formulas(), **_fused()})
        self.work = DispatchedWork()
        self._weights = {place(tensor) for tensor in parameters} - {0}
        self._before = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, before = func.overloadpacket.__name__, self.flops
        if name in RANDOM:
            self.work.drawn[name] += 1
        out = super().__torch_dispatch__(func, types, args, kwargs)
        counts = func.overloadpacket in self.formulas
        if counts and ("pointwise" in name or any(place(tensor) in self._weights for tensor in tensors((args, kwargs or {})))):
            self.work.weights += self.flops - before
        return out

    def before(self, method: Method, site: Site, step: Step) -> None:
        self._before = self.flops

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.work.attend += self.flops - self._before

    @contextmanager
    def counting(self) -> Iterator[DispatchedWork]:
        """Inside, everything is counted; the work is whole behind it."""
        with self:
            yield self.work
        self.work.flops = self.flops


def _fused() -> dict[Any, Callable[..., int]]:
    """The formula of attention for the fused kernels that not every version of torch has a count for."""
    packets = [getattr(torch.ops.aten, name, None) for name in UNCOUNTED]
    return {packet: _attended for packet in packets if packet is not None and packet not in formulas()}


def _attended(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> int:
    return 2 * math.prod(q.shape[:-1]) * k.size(-2) * (q.size(-1) + v.size(-1))
