"""Costs of a generation: FLOPs and bytes of every pass.

Counted: matrix products and attention; weights once per pass; keys and values that are live and read, or written; activations between the
products of a block; a method's own scoring and moving. Not counted: elementwise arithmetic, sampling, launches. Rows with shorter
conditions count as if they had the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ..cache.codec import NATIVE, Codec
from ..cache.layout import Layout, Site, Step
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from ..core.spec import FULL
from .flops import counted
from .flops_budget import share
from .masked_flops import masked_ops
from .operations import Bill, Op
from .passes import ParameterCounts, layers_alike, load_of, pass_ops, steps_of

SAVES_NOTHING = "With these parameters it computes and reads on this model all that the full cache does: it saves nothing."


def bill(
    method: Method, layout: Layout, counts: ParameterCounts, *, codec: Codec = NATIVE, images: bool = True, steps: Sequence[Step] = (),
) -> Bill:
    """Return the costs of a generation of ``layout`` under a method, in the layout's dtype.

    ``images``: include the FLOPs of the image decoder, as if in that dtype. ``steps``: the passes of a next-token generation with parallel
    decoding; by default one token each. Raises what :meth:`Method.resolve` raises.
    """
    method.resolve(layout)
    if isinstance(layout, MaskedLayout):
        passes = method.passes(layout.steps)
        ops = list(masked_ops(method, layout, counts.block, counts.between, codec))
    else:
        steps = steps or steps_of(method, layout)
        passes, alike = len(steps), layers_alike(method, layout)
        ops = [op for step in steps for op in pass_ops(method, layout, counts, codec, step, alike)]
        width = layout.dtype.itemsize
        ops.append(Op("once", 2 * layout.rows * counts.row, (counts.row_weights or counts.row) * width))
        if layout.draft is not None and counts.drafter is not None:
            draft = bill(Method(), layout.draft, counts.drafter, codec=codec, images=False)
            ops, passes = [*ops, *draft.ops], passes + draft.passes
    if images:
        ops.append(Op("decode", layout.batch * _decoded(counts.image)))
    return Bill.merged((op for op in ops if op.flops or op.nbytes), layout.batch, passes)


def attended(method: Method, layout: Layout) -> float:
    """Return the mean entries a query attends to, its own included. After :meth:`Method.resolve`."""
    steps, alike = steps_of(method, layout), layers_alike(method, layout)
    products = [times * method.attended_by_heads(layout, site, step) for step in steps for site, times in alike]
    return sum(products) / len(steps) / layout.layers / layout.kv_heads


def idle_reason(method: Method, layout: Layout) -> str:
    """Return why a method cannot change anything on this layout, or "".

    The reason is the method's own, or that all its passes cost as much as the full cache's and predict tokens in the same order. It is
    empty for the full cache. Raises the errors of :meth:`Method.resolve`.
    """
    if method.name == FULL:
        return ""
    method.resolve(layout)
    return method.idle_reason(layout) or (SAVES_NOTHING if _as_full(method, layout) else "")


def _as_full(method: Method, layout: Layout) -> bool:
    if isinstance(layout, MaskedLayout):
        return share(method, layout) == 1 and not method.reorders
    full, sites = Method(), [Site("decoder", layer) for layer in range(layout.layers)]
    if any(method.capacity(layout, site) != full.capacity(layout, site) for site in sites):
        return False
    if method.scales(layout) < full.scales(layout):
        return False
    return all(load_of(method, layout, site, step) == load_of(full, layout, site, step)
               for site in sites for step in steps_of(full, layout))


_decoded = cache(counted)  # of an image; once, since the decoder has to be built for it
