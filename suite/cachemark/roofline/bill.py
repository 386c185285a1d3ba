"""Costs of a generation: FLOPs and bytes of every pass.

Counted: matrix products and attention; weights once per pass; keys and values that are live and read, or written; activations between the
products of a block; a method's own scoring and moving. Not counted: elementwise arithmetic, sampling, launches. Rows with shorter
conditions count as if they had the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from ..cache.codec import NATIVE, Codec
from ..cache.layout import Layout, Site, Step, raster_steps, scale_steps
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from ..core.spec import FULL
from .flops import counted
from .masked_flops import masked_ops, share
from .operations import Bill, Op

SAVES_NOTHING = "With these parameters it computes and reads on this model all that the full cache does: it saves nothing."


@dataclass(frozen=True)
class ParameterCounts:
    """Counts of weights (one multiplication per use each) and of numbers.

    ``block``: weights of one block's products. ``between``: numbers per token and block that its products pass through memory if
    elementwise operations are fused. ``logits``: weights between a hidden state and its ``vocab`` logits. ``fed``: weights that embed a
    drawn token, once for all branches of guidance. ``row``: multiplications of a row once per generation, by ``row_weights`` (0: as many
    weights; entries of a text share theirs). ``row_pass``: weights that a row uses once per pass. ``scale``: multiplications per image in
    every pass but the last, between its output and the next input. ``text``: text entries to which every token attends in every block, and
    ``text_block``: weights of a block for each of them in every pass. ``image()`` decodes one image on the meta device, where FLOPs are
    counted without computing.
    """

    block: int
    between: int
    image: Callable[[], object]
    logits: int = 0
    vocab: int = 0
    fed: int = 0
    row: int = 0
    row_weights: int = 0
    row_pass: int = 0
    scale: int = 0
    text: int = 0
    text_block: int = 0


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
        steps = steps or (scale_steps(layout) if layout.scales else raster_steps(layout))
        passes, alike = len(steps), _alike(method, layout)
        ops = [op for step in steps for op in _pass(method, layout, counts, codec, step, alike)]
        width = layout.dtype.itemsize
        ops.append(Op("once", 2 * layout.rows * counts.row, (counts.row_weights or counts.row) * width))
    if images:
        ops.append(Op("decode", layout.batch * _decoded(counts.image)))
    return Bill.merged((op for op in ops if op.flops or op.nbytes), layout.batch, passes)


def attended(method: Method, layout: Layout) -> float:
    """Return the mean entries a query attends to, its own included. After :meth:`Method.resolve`."""
    steps = scale_steps(layout) if layout.scales else raster_steps(layout)
    alike = _alike(method, layout)
    products = [times * method.attended_by_heads(layout, site, step) for step in steps for site, times in alike]
    return sum(products) / len(steps) / layout.layers / layout.kv_heads


def idle_reason(method: Method, layout: Layout) -> str:
    """Return why a method cannot change anything on this layout, or "".

    The reason is the method's own, or that all its passes cost as much as the full cache's. The full cache has none. Raises what
    :meth:`Method.resolve` raises.
    """
    if method.name == FULL:
        return ""
    method.resolve(layout)
    return method.idle_reason(layout) or (SAVES_NOTHING if _as_full(method, layout) else "")


def _as_full(method: Method, layout: Layout) -> bool:
    if isinstance(layout, MaskedLayout):
        return share(method, layout) == 1
    full, sites = Method(), [Site("decoder", layer) for layer in range(layout.layers)]
    if any(method.capacity(layout, site) != full.capacity(layout, site) for site in sites):
        return False
    steps = scale_steps(layout) if layout.scales else raster_steps(layout)
    return all(method.attended(layout, site, step) == full.attended(layout, site, step) for site in sites for step in steps)


_decoded = cache(counted)  # of an image; once, since the decoder has to be built for it


def _alike(method: Method, layout: Layout) -> list[tuple[Site, int]]:
    """Return one layer of each kind, with the number of layers of that kind."""
    kinds: dict[tuple[Hashable, ...], list[Site]] = {}
    for layer in range(layout.layers):
        site = Site("decoder", layer)
        attended_by_scale = (method.attended_by_heads(layout, site, step) for step in (scale_steps(layout) if layout.scales else ()))
        kinds.setdefault((method.capacity(layout, site), method.kind(layout, site), *attended_by_scale), []).append(site)
    return [(sites[0], len(sites)) for sites in kinds.values()]


def _pass(method: Method, layout: Layout, counts: ParameterCounts, codec: Codec, step: Step, alike: list[tuple[Site, int]]) -> Iterator[Op]:
    """Yield the operations of one pass of all rows."""
    rows, width = layout.rows, layout.dtype.itemsize
    tokens = step.count or layout.longest_condition
    fed = rows * tokens
    yield Op("matmul", 2 * fed * counts.block, counts.block * width, activations=fed * counts.between * width, times=layout.layers)
    if counts.text:
        read, across = rows * counts.text, layout.heads * layout.head_dim
        yield Op("matmul", 2 * read * counts.text_block, counts.text_block * width, times=layout.layers)
        yield Op("attention", 4 * fed * across * counts.text, activations=2 * read * across * width, times=layout.layers)
    for site, times in alike:
        read_by_heads, entry = method.attended_by_heads(layout, site, step), rows * codec.pair_bytes(layout.head_dim, layout.dtype)
        shared = codec.shared_bytes(layout.head_dim, layout.dtype, read_by_heads // layout.kv_heads)  # 0 where heads differ
        yield Op("attention", 4 * fed * layout.heads // layout.kv_heads * layout.head_dim * read_by_heads,
                 read=entry * read_by_heads + rows * layout.kv_heads * shared, written=entry * layout.kv_heads * tokens, times=times)
        own = method.overhead(layout, site, step)
        yield Op("method", 2 * rows * own.products, own=rows * own.numbers * width, times=times)
    drawn = rows * max(step.count, 1)
    yield Op("logits", 2 * (drawn * counts.logits + rows * counts.row_pass), (counts.logits + counts.row_pass) * width,
             activations=2 * drawn * counts.vocab * width)
    if step.index:
        yield Op("input", 2 * layout.batch * (tokens * counts.fed + counts.scale), counts.fed * width)
