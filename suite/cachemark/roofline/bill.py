"""The bill of a generation on paper: FLOPs and bytes of every pass, for any model, method, batch, dtype and codec.

What is counted: matrix products and attention; weights once per pass; keys and values that are live and read, or written; what passes
between the products of a block; a method's own scoring and moving. What is not: elementwise arithmetic, sampling, launches. Entries
that rows of a shorter condition do not have are counted as if they had them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from ..cache.codec import NATIVE, Codec
from ..cache.layout import Layout, Site, Step, raster_steps, scale_steps
from ..cache.masked_layout import Load, MaskedLayout, MaskedStep, masked_steps
from ..contract.method import Method
from ..core.limits import Bill, Op
from .flops import counted
from .masked_flops import FREQUENCIES, MLP


@dataclass(frozen=True)
class ParameterCounts:
    """Counts of weights (each one multiplication where it is met) and of numbers.

    ``block``: weights of one block's products. ``between``: numbers per token and block that its products hand to one another
    through memory if all that is elementwise is fused into them. ``logits``: weights between a hidden state and its logits, of which
    there are ``vocab``. ``fed``: weights that make a drawn token an input, once for all branches of guidance. ``row``: weights
    that a row meets once in a generation, ``row_pass``: once in each pass. ``scale``: multiplications per image in every pass but
    the last, between what it drew and what the next is fed.
    ``image()`` decodes one image on the meta device, where nothing is computed but FLOPs can be counted.
    """

    block: int
    between: int
    image: Callable[[], object]
    logits: int = 0
    vocab: int = 0
    fed: int = 0
    row: int = 0
    row_pass: int = 0
    scale: int = 0


Alike = list[tuple[Site, int]]
HEAD_BETWEEN = (4, 6)  # numbers per token and channel around the modulation and the MLP of a block of the diffusion head


def bill(method: Method, layout: Layout, counts: ParameterCounts, *, codec: Codec = NATIVE, images: bool = True) -> Bill:
    """The costs of a generation of ``layout`` under a method, in the layout's dtype; ``images``: with the image decoder, which is charged
    its FLOPs alone, as if it ran in that dtype. Raises what :meth:`Method.resolve` raises."""
    method.resolve(layout)
    batch = _batch(layout)
    if isinstance(layout, MaskedLayout):
        steps: list[MaskedStep] | list[Step] = masked_steps(layout, method.passes(layout.steps))
        ops = list(_masked(method, layout, counts, codec))
    else:
        steps = scale_steps(layout) if layout.scales else raster_steps(layout)
        alike = _alike(method, layout)
        ops = [op for step in steps for op in _pass(method, layout, counts, codec, step, alike)]
        width = layout.dtype.itemsize
        ops.append(Op("once", 2 * layout.rows * counts.row, counts.row * width))
    if images:
        ops.append(Op("decode", batch * _decoded(counts.image)))
    return Bill.of((op for op in ops if op.flops or op.nbytes), batch, len(steps))


def attended(method: Method, layout: Layout) -> float:
    """Entries that a query looks at, its own among them: mean over passes and layers. After :meth:`Method.resolve`."""
    steps = scale_steps(layout) if layout.scales else raster_steps(layout)
    alike = _alike(method, layout)
    found = [times * method.attended(layout, site, step) for step in steps for site, times in alike]
    return sum(found) / len(steps) / layout.layers


def _batch(layout: Layout) -> int:
    """Samples: the rows without those that guidance adds."""
    return layout.rows // (1 + max(layout.branches, default=0))


@cache
def _decoded(image: Callable[[], object]) -> int:
    """FLOPs of decoding an image; counted once, since the decoder has to be built for it."""
    return counted(image)


# -- next-token and next-scale ----------------------------------------------------------------------------------------
def _alike(method: Method, layout: Layout) -> Alike:
    """One layer of each kind, and how many there are of it: layers that hold as many entries see as many."""
    room: dict[int, list[Site]] = {}
    for layer in range(layout.layers):
        site = Site("decoder", layer)
        room.setdefault(method.capacity(layout, site), []).append(site)
    return [(sites[0], len(sites)) for sites in room.values()]


def _pass(method: Method, layout: Layout, counts: ParameterCounts, codec: Codec, step: Step, alike: Alike) -> Iterator[Op]:
    """Operations of one pass of all rows."""
    rows, width = layout.rows, layout.dtype.itemsize
    tokens = step.count or layout.longest_condition
    fed = rows * tokens
    yield Op("linear", 2 * fed * counts.block, counts.block * width, activations=fed * counts.between * width, times=layout.layers)
    for site, times in alike:
        seen = method.attended(layout, site, step)
        entry = 2 * rows * layout.kv_heads * codec.entry_bytes(layout.head_dim, layout.dtype)
        yield Op("attention", 4 * fed * layout.heads * layout.head_dim * seen, read=entry * seen, written=entry * tokens, times=times)
        own = method.overhead(layout, site, step)
        yield Op("method", 2 * rows * own.products, own=rows * own.numbers * width, times=times)
    drawn = rows * max(step.count, 1) if layout.scales else rows
    yield Op("logits", 2 * (drawn * counts.logits + rows * counts.row_pass), (counts.logits + counts.row_pass) * width,
             activations=2 * drawn * counts.vocab * width)
    if step.index:
        yield Op("input", 2 * _batch(layout) * (tokens * counts.fed + counts.scale), counts.fed * width)


# -- masked -----------------------------------------------------------------------------------------------------------
def _masked(method: Method, layout: MaskedLayout, counts: ParameterCounts, codec: Codec) -> Iterator[Op]:
    steps = masked_steps(layout, method.passes(layout.steps))
    head = _head_loads(method, layout, steps[0])
    width, dim, inside = layout.dtype.itemsize, layout.dim, layout.head_width
    for step in steps:
        seen, shown = layout.buffer + step.first, layout.batch * step.first
        yield Op("input", 2 * dim * (shown * layout.channels + layout.rows * seen * dim), dim * (dim + layout.channels) * width,
                 activations=2 * layout.rows * seen * dim * width)
        for stack, depth, tokens in (("encoder", layout.encoder, seen), ("decoder", layout.layers, layout.places)):
            plain = Load(layout.rows, tokens, tokens, tokens)
            for layer in range(depth):
                site = Site(stack, layer)
                yield from _block(method.computes(site, step, plain), layout, counts, codec, stack)
                own = method.overhead(layout, site, step)
                yield Op("method", 2 * layout.rows * own.products, own=layout.rows * own.numbers * width)
        yield from _head(head, layout, step.count)
    embedding = inside * (FREQUENCIES + inside)
    yield Op("head", 2 * layout.diffusion * embedding, embedding * width)


def _block(load: Load, layout: MaskedLayout, counts: ParameterCounts, codec: Codec, stack: str) -> Iterator[Op]:
    """Products of one block, of which the MLP may see fewer tokens, and its attention."""
    dim, width = layout.dim, layout.dtype.itemsize
    entry = 2 * layout.kv_heads * codec.entry_bytes(layout.head_dim, layout.dtype)
    tokens, mlp = load.rows * load.tokens, load.rows * load.mlp
    share = 4 / (4 + 2 * MLP)  # of a block's weights, those around its attention
    around = round(counts.between * share)
    yield Op(stack, 2 * dim**2 * (4 * tokens + 2 * MLP * mlp), counts.block * width if tokens or mlp else 0,
             activations=(tokens * around + mlp * (counts.between - around)) * width)
    read = load.rows * load.keys * entry if tokens else 0
    yield Op(f"{stack} attention", 4 * tokens * dim * load.keys, read=read, written=tokens * entry)


def _head_loads(method: Method, layout: MaskedLayout, step: MaskedStep) -> Counter[tuple[Load, ...]]:
    """Work of the head's blocks for one token, with the number of its passes that do it; equal in any pass of the transformer."""
    plain = Load(layout.rows, 1, 0, 1)
    found: Counter[tuple[Load, ...]] = Counter()
    for inner in range(layout.diffusion):
        at = replace(step, inner=inner, inners=layout.diffusion)
        found[tuple(method.computes(Site("head", layer), at, plain) for layer in range(layout.head))] += 1
    return found


def _head(loads: Counter[tuple[Load, ...]], layout: MaskedLayout, count: int) -> Iterator[Op]:
    """All passes of the head for ``count`` tokens of every sample: its blocks, and what comes before and behind them."""
    inside, width = layout.head_width, layout.dtype.itemsize
    yield Op("head", 2 * count * layout.rows * layout.dim * inside, layout.dim * inside * width)
    for blocks, times in loads.items():
        for load in blocks:
            tokens, mlp = count * load.rows * load.tokens, count * load.rows * load.mlp
            weights = inside**2 * (3 * bool(tokens) + 2 * bool(mlp)) * width
            moved = (HEAD_BETWEEN[0] * tokens + HEAD_BETWEEN[1] * mlp) * inside * width
            yield Op("head", 2 * inside**2 * (3 * tokens + 2 * mlp), weights, activations=moved, times=times)
        rows = blocks[-1].rows if blocks else layout.rows
        ends = inside * layout.channels, 2 * inside * (inside + layout.channels)
        yield Op("head", 2 * count * (layout.batch * ends[0] + rows * ends[1]), sum(ends) * width, times=times)
