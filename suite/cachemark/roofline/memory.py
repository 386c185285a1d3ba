"""Memory of a generation: the weights, and the allocations of its method."""

from __future__ import annotations

from contextlib import suppress

from ..cache.arena import Memory
from ..cache.codec import NATIVE, Codec
from ..cache.layout import Layout, Site
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from .masked_flops import head_weights
from .passes import ParameterCounts


def allocated(method: Method, layout: Layout, codec: Codec = NATIVE) -> int:
    """Return the bytes that a method allocates: slots, workspace and state.

    The generation starts on the meta device, which counts bytes without allocating them. Raises the errors of :meth:`Method.resolve`.
    """
    masked = {"encoder": layout.encoder, "decoder": layout.layers, "head": layout.head} if isinstance(layout, MaskedLayout) else {}
    sites = [Site(stack, layer) for stack, depth in (masked or {"decoder": layout.layers}).items() for layer in range(depth)]
    memory = Memory("meta", codec)
    method.resolve(layout)
    with suppress(RuntimeError):  # a plug-in reads a value, which the meta device lacks; its allocations so far are counted
        method.begin(layout, sites, memory)
    draft = allocated(Method(), layout.draft, codec) if layout.draft else 0  # freed before the refiner allocates
    return max(memory.nbytes(), draft)


def entries(method: Method, layout: Layout) -> int:
    """Return the entries per row and head that a method allocates, all layers together."""
    method.resolve(layout)
    return sum(method.capacity(layout, Site("decoder", layer)) for layer in range(layout.layers))


def weight_bytes(layout: Layout, counts: ParameterCounts) -> int:
    """Return the bytes of the weights of blocks and heads, without tables and the image decoder."""
    if isinstance(layout, MaskedLayout):
        fed = layout.dim * (layout.dim + layout.channels)
        return layout.dtype.itemsize * (counts.block * (layout.encoder + layout.layers) + fed + head_weights(layout))
    blocks = (counts.block + counts.text_block) * layout.layers
    draft = weight_bytes(layout.draft, counts.drafter) if layout.draft and counts.drafter else 0
    return draft + layout.dtype.itemsize * (blocks + counts.logits + (counts.row_weights or counts.row) + counts.row_pass)
