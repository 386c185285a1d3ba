"""The Triton kernel that returns the mass of each key for any number of queries."""

from __future__ import annotations

import os
from functools import cache

from torch import Tensor

from .plain import Outputs, joined
from .record import HEADS, Entries, Kernel, Query, flops, fold


@cache
def triton_missing() -> str:
    """Return why Triton kernels cannot be used, or "". Importing Triton takes a second."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed"
    return ""


def interpreted() -> bool:
    """Return whether Triton's interpreter runs kernels on the CPU, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _refuses(query: Query) -> str:
    if query.device != "cuda":
        return "it needs a CUDA device"
    if not query.mass:
        return "it is for the attention mass alone"
    if query.masked or query.causal or query.lengths == HEADS:
        return "it has no masks, no order of queries, and one length for all heads"
    return triton_missing()


def _attend(q: Tensor, entries: Entries, causal: bool, visible: Tensor | None, mass: bool) -> Outputs:
    from .mass_triton import attention_with_mass

    results = []
    for part in entries.parts():
        queries = q[part.rows]
        out, weights = attention_with_mass(fold(queries, part.k.size(1)), part.k, part.v)
        results.append((out.reshape(queries.shape), weights))
    return joined(results)


MASS = Kernel("triton-with-mass", _refuses, _attend, flops, ours=True)
