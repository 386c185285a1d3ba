"""Facts about a case beside its figures: kernel, true budget, source, and why its speed may not be compared."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch

from ...cache.attention.attention import KERNEL
from ...cache.attention.kernels import chosen
from ...cache.attention.mass import FUSED_MASS_KERNEL, MASS_KERNEL
from ...cache.attention.mass import name as mass_kernel
from ...cache.layout import Layout
from ...cache.masked_layout import MaskedLayout
from ...contract.method import Method
from ...core.spec import Case
from ...plans.expand import Planned
from ...roofline.kv_bytes import entries
from ...roofline.masked_flops import share, work
from .bench import Bench, method_factory

ENGINE_REASON = "engine_reason"  # of an outcome's facts: why the engine that a plan leaves open is not graph here


def case_facts(planned: Planned, bench: Bench) -> dict[str, Any]:
    case = planned.case
    method = method_factory(case)()
    layout = bench.entry.shape(case.sampling, case.batch)
    kernel = _kernel(method, replace(layout, dtype=getattr(torch, case.dtype), device=bench.device))
    facts: dict[str, Any] = {"kernel": kernel, "source": method.source, "footnotes": list(method.footnotes),
                             "paradigm": layout.paradigm}
    if planned.engine_reason:
        facts[ENGINE_REASON] = planned.engine_reason
    if isinstance(layout, MaskedLayout):
        facts["true_ratio"] = float(share(method, layout))
        facts["flops"] = asdict(work(method, layout))
    elif layout.scales and method.evicts:
        facts["true_ratio"] = entries(method, layout) / (layout.layers * layout.cacheable)
    elif "B" in case.knobs:
        facts["true_ratio"] = case.knobs["B"] / layout.visual
    return facts | _apart(case, method, kernel)


def _apart(case: Case, method: Method, kernel: str) -> dict[str, str]:
    """Facts for a reader where a method attends with another kernel than the full cache: that its speed is not compared, or, where the
    kernel is as fused as the full cache's and reads no more than the method needs, that its price is in the time."""
    if case.engine == "reference" or method.kernel == Method().kernel:
        return {}
    if kernel == FUSED_MASS_KERNEL:
        return {"own_kernel": f"It attends with {kernel}, since it needs the attention mass of every key; what that costs is in its time."}
    why = "It needs the attention mass of every key, which the fused kernel does not return" if method.needs_mass else (
        f"It attends with {method.kernel}, the full cache with {Method().kernel}")
    return {"quality_only": f"{why}; a speed-up between two kernels would measure the kernels."}


def _kernel(method: Method, layout: Layout) -> str:
    """The kernel that a method's attention runs on the device of a layout."""
    if method.kernel == MASS_KERNEL:
        return mass_kernel(layout.device)
    return chosen(layout) if method.kernel == KERNEL else method.kernel
