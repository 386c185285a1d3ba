"""The check of work: FLOPs dispatched in a generation, compared with those that the method declares."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from ..cache.bank import SlotBank
from ..cache.codec import NATIVE
from ..cache.kernels.plain import fused
from ..cache.kernels.table import counted as kernels_counted
from ..cache.layout import Layout, Site, Step
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from ..core.errors import Unsupported
from ..roofline.flops import ElementwiseProducts, FlopCounter, formulas
from ..roofline.masked_flops import masked_ops
from ..roofline.passes import steps_of
from .capture import tensors
from .common import DECIDES, Findings, MethodCell
from .driver import Onlooker
from .reachable import storage_address

TOLERANCE = 0.001  # relative difference between dispatched and declared work
RANDOM = {"bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "native_dropout", "normal",
          "normal_", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "random_", "randperm",
          "uniform", "uniform_"}  # fmt: skip
UNCOUNTED = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_fused_attention_overrideable")


class WorkCounter(FlopCounter, Onlooker):
    """Counts the operations of a generation under the timed kernels, in this thread.

    ``flops`` of all products, ``weights`` of those with weights, ``attend`` of those within ``attend``; ``merged`` of those within
    ``merge`` of the storage; ``random_calls`` of torch. Products with the ``constants`` of a codec are not counted: they can be folded
    into weights.
    """

    def __init__(self, parameters: Iterable[Tensor], constants: Iterable[Tensor] = ()) -> None:
        super().__init__({**formulas(), **_fused_formulas()})
        self._constants = {storage_address(tensor) for tensor in constants} - {0}
        self.weights = self.attend = self.merged = self._before = 0
        self.random_calls = set[str]()
        self._addresses = {storage_address(tensor) for tensor in parameters} - {0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, before = func.overloadpacket.__name__, self.flops
        if name in RANDOM:
            self.random_calls.add(name)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        counted = func.overloadpacket in self.formulas
        if counted and any(storage_address(t) in self._constants for t in tensors((args, kwargs or {}))):
            self.flops = before
        elif counted and ("pointwise" in name or any(storage_address(t) in self._addresses for t in tensors((args, kwargs or {})))):
            self.weights += self.flops - before
        return out

    def before(self, method: Method, site: Site, step: Step) -> None:
        self._before = self.flops

    def after(self, method: Method, site: Site, step: Step, q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        self.attend += self.flops - self._before


def _fused_formulas() -> dict[Any, Callable[..., int]]:
    """Return formulas of the fused attention kernels that some versions of torch do not count."""
    packets = [getattr(torch.ops.aten, name, None) for name in UNCOUNTED]
    return {packet: _fused_flops for packet in packets if packet is not None and packet not in formulas()}


def _fused_flops(q: Tensor, k: Tensor, v: Tensor, *_: object, **__: object) -> int:
    return 2 * math.prod(q.shape[:-1]) * k.size(-2) * (q.size(-1) + v.size(-1))


def work_is_declared(cell: MethodCell) -> Findings:
    """The FLOPs that run are those that the method declares, to 0.1 %.

    It computes every token and layer that it does not declare as skipped, attention reads as many entries as ``attended`` declares, scores
    and other products cost what ``overhead`` declares, and no random numbers of torch are used.
    """
    layout, method = cell.layout, cell.tight()
    method.resolve(layout)
    if layout.scales and not method.capturable:
        raise Unsupported(DECIDES)  # the entries it reads are not known in advance
    work = count_work(cell, cell.tight())
    if work.uncounted:
        yield cell.finding("products whose FLOPs can be counted, such as matmul, bmm and einsum", ", ".join(sorted(work.uncounted)))
    if work.random_calls and not layout.scales:
        yield cell.finding("random numbers of the sample's seed only", f"it calls {', '.join(sorted(work.random_calls))}")
    if layout.paradigm == "masked":
        assert isinstance(layout, MaskedLayout)
        declared = sum(op.flops * op.times for op in masked_ops(method, layout, 0, 0, NATIVE))
        if not (1 - TOLERANCE) * declared <= work.flops <= (1 + TOLERANCE) * declared:
            yield cell.finding(f"{declared:,} FLOPs, as declared by computes and overhead", f"{work.flops:,}")
        return
    full = _full_cache_work(replace(cell, cls=Method, mode=()))
    if work.weights < (1 - TOLERANCE) * full.weights:
        yield cell.finding(f"{full.weights:,} FLOPs of products with the model's weights, as the full cache", f"{work.weights:,}")
    yield from _attention_and_scores(cell, method, work)


def _attention_and_scores(cell: MethodCell, method: Method, work: WorkCounter) -> Findings:
    """Compare products without weights, in any scope, with ``attended`` and ``overhead``.

    Rows may have conditions of different lengths.
    """
    shortest = replace(cell.layout, condition=(min(cell.layout.condition),) * len(cell.layout.condition))
    least, most, counted = _attention_flops(method, shortest), sum(_attention_flops(method, cell.layout)), work.flops - work.weights
    if work.attend < (1 - TOLERANCE) * least[0]:
        yield cell.finding(f"at least {least[0]:,} FLOPs of attention, as declared by attended", f"{work.attend:,}")
    elif counted - work.merged > (1 + TOLERANCE) * most:  # an author need not declare the product of merge itself
        yield cell.finding(f"at most {most:,} FLOPs of attention and scores, as declared by attended and overhead",
                           f"{counted:,}: it computes more than declared")
    elif counted < (1 - TOLERANCE) * sum(least):
        yield cell.finding(f"at least {sum(least):,} FLOPs of attention and scores, as declared by attended and overhead", f"{counted:,}")


@functools.cache
def _full_cache_work(cell: MethodCell) -> WorkCounter:
    return count_work(cell, Method())


def count_work(cell: MethodCell, method: Method) -> WorkCounter:
    """Return the work of a generation with the cell's codec, whose constants count nothing."""
    constants = cell.memory().codec.constants(cell.layout.head_dim, torch.device("cpu"))
    counter = WorkCounter(cell.parameters, constants)
    merge = SlotBank.merge

    def merging(*args: Any, **options: Any) -> None:
        before = counter.flops
        merge(*args, **options)
        counter.merged += counter.flops - before

    with fused("cpu"), kernels_counted(counter.add), patch.object(SlotBank, "merge", merging), ElementwiseProducts(counter), counter:
        cell.run(method, counter, bare=True)
    return counter


def _attention_flops(method: Method, layout: Layout) -> tuple[int, int]:
    """Return the FLOPs of attention in a generation, and the FLOPs of the method's own products."""
    method.resolve(layout)
    width = layout.heads // layout.kv_heads * layout.head_dim
    attention = own = 0
    for step in steps_of(method, layout):
        tokens = layout.rows * (step.count or layout.longest_condition)
        for site in (Site("decoder", layer) for layer in range(layout.layers)):
            attention += 4 * tokens * width * method.attended_by_heads(layout, site, step)
            own += 2 * layout.rows * method.overhead(layout, site, step).products
    return attention, own
